"""Certificates of a federation: its own CA, a pair for the server, a pair for each node.

    OUTPUT/ca.key                                    signs; must never leave the operator's machine
    OUTPUT/ca.pem, server.pem, server.key            what the server needs
    OUTPUT/<client>/ca.pem, node.pem, node.key       what a node needs, under the client's name

A node's certificate holds its name (common name) and is valid for TLS clients only; the server's holds its hosts and is
valid for TLS servers only. So neither can be used as the other. Keys are on the curve P-256 and have mode 600.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lit_fed.deployment.transport import check_node_name
from lit_fed.errors import ConfigError
from lit_fed.system.files import whole_file, write_atomically
from lit_fed.system.packages import imported_later, optional_package

__all__ = ["DAYS", "make_certificates"]

DAYS = 825
"""The longest validity that common systems accept."""

MOST_DAYS = DAYS_OF_AUTHORITY = 10 * 365
CLOCKS_DIFFER = timedelta(hours=1)
"""Certificates are valid from so long ago, since a machine's clock may be slow."""

HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62})?)*")
OWN_NAMES = {"ca.key", "ca.pem", "server.key", "server.pem"}
OF_NODE = {"ca.pem", "node.key", ".ca.pem.partial", ".node.key.partial", ".node.pem.partial"}
"""What a folder of a node may hold before its certificate is written."""

OTHER_USES = (
    "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only",
)  # fmt: skip

# of the extra `federation`: the command's parser works without it
x509 = imported_later("cryptography.x509")
ec = imported_later("cryptography.hazmat.primitives.asymmetric.ec")
hashes = imported_later("cryptography.hazmat.primitives.hashes")
serialization = imported_later("cryptography.hazmat.primitives.serialization")


def make_certificates(server: Sequence[str], clients: Sequence[str], output: Path, days: int = DAYS) -> list[Path]:
    """Write certificates and keys; existing ones, the CA among them, are kept.

    A certificate is the last file of its pair: a pair without it was interrupted, and is made again.

    Args:
        server: hosts by which nodes reach the server, names or addresses; none: the server's pair exists already.
        clients: names of nodes.
        output: the folder, created if needed.
        days: validity of the certificates.

    Returns:
        The folders and certificates that were written.

    Raises:
        ConfigError: if a name is invalid or taken, or days are not positive; nothing was written then.
    """
    _check_names(server, clients, days)
    _check_folder(server, clients, output)
    optional_package("cryptography", "cryptography>=42", "federation", "certificates")
    try:
        output.mkdir(parents=True, exist_ok=True)
        authority = _Authority(output, days)
        if server:
            authority.issue(output / "server", "server", server)
        for name in clients:
            (output / name).mkdir(mode=0o700, exist_ok=True)
            write_atomically(output / name / "ca.pem", (output / "ca.pem").read_bytes())
            authority.issue(output / name / "node", name)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}; give a folder that can be written") from error
    return [*([output / "server.pem"] if server else []), *(output / name for name in clients)]


def _check_names(server: Sequence[str], clients: Sequence[str], days: int) -> None:
    if not 0 < days <= MOST_DAYS:
        raise ConfigError(f"--days is {days}; give a whole number from 1 to {MOST_DAYS}")
    if not server and not clients:
        raise ConfigError("neither --server nor --clients is given; give what certificates are to be made for")
    for host in server:
        if _address(host) is None and not HOST.fullmatch(host):
            raise ConfigError(
                f"--server {host[:80]!r}: no host; give names or addresses by which nodes reach the server"
            )
    for name in clients:
        check_node_name(name, "--clients")
        if name.lower() in OWN_NAMES or [one.lower() for one in clients].count(name.lower()) > 1:
            raise ConfigError(f"--clients {name!r}: the name is taken; give another one")


def _check_folder(server: Sequence[str], clients: Sequence[str], output: Path) -> None:
    """Refuse to overwrite files, and to extend an incomplete CA."""
    for name in clients:
        there = {one.name for one in (output / name).iterdir()} if (output / name).is_dir() else None
        if (output / name).exists() and (there is None or "node.pem" in there or there - OF_NODE):
            raise ConfigError(f"{output / name} is there already; leave {name} out, or move it away for a new one")
    authority = [one for one in ("ca.pem", "ca.key") if (output / one).exists()]
    if len(authority) == 1:
        raise ConfigError(
            f"{output}: of its CA there is {authority[0]} alone; bring the other part, or give a new --output"
        )
    made = (output / "server.pem").exists()
    if server and made:
        raise ConfigError(
            f"{output / 'server.pem'} is there already; leave --server out to add clients, or move it away"
        )
    if not server and not made:
        raise ConfigError(f"--server is not given, and {output} has no server.pem; give the server's hosts")


def _address(host: str) -> Any:
    """The IP address of a host given as one; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class _Authority:
    """The CA in a folder, `ca.pem` and `ca.key`; created if there is none, refused if damaged."""

    def __init__(self, folder: Path, days: int) -> None:
        self.days, certificate = days, folder / "ca.pem"
        if not certificate.exists():
            self.name, self.key = _named("lit_fed federation"), ec.generate_private_key(ec.SECP256R1())
            own = [x509.BasicConstraints(ca=True, path_length=0), _uses(signs_others=True)]
            made = self._signed(self.name, self.key, own, DAYS_OF_AUTHORITY)
            _write_key(folder / "ca.key", self.key)
            write_atomically(certificate, made.public_bytes(serialization.Encoding.PEM))
            return
        try:
            known = x509.load_pem_x509_certificate(certificate.read_bytes())
            self.name = known.subject
            self.key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            if self.key.public_key() != known.public_key():
                raise ValueError
        except (ValueError, TypeError) as error:
            fix = "bring those that were made together, or give a new --output"
            raise ConfigError(f"{folder}: ca.pem and ca.key are damaged, or of two CAs; {fix}") from error

    def issue(self, path: Path, name: str, hosts: Sequence[str] = ()) -> None:
        """Write a pair, `path`.pem and `path`.key, for the hosts of a server, or without hosts for a client."""
        purpose = x509.ExtendedKeyUsageOID.SERVER_AUTH if hosts else x509.ExtendedKeyUsageOID.CLIENT_AUTH
        key = ec.generate_private_key(ec.SECP256R1())
        own = [x509.BasicConstraints(ca=False, path_length=None), _uses(signs_others=False)]
        own.append(x509.ExtendedKeyUsage([purpose]))
        alternatives = [x509.IPAddress(one) if (one := _address(host)) else x509.DNSName(host) for host in hosts]
        certificate = self._signed(_named(name), key, own, self.days, alternatives)
        _write_key(path.with_name(f"{path.name}.key"), key)
        write_atomically(path.with_name(f"{path.name}.pem"), certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(self, name: Any, key: Any, critical: Sequence[Any], days: int, hosts: Sequence[Any] = ()) -> Any:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self.name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - CLOCKS_DIFFER).not_valid_after(now + timedelta(days=days))
        others = [
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
            *([x509.SubjectAlternativeName(hosts)] if hosts else []),
        ]
        for one in (*critical, *others):
            builder = builder.add_extension(one, critical=one in critical)
        return builder.sign(self.key, hashes.SHA256())


def _named(name: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _uses(*, signs_others: bool) -> Any:
    others = dict.fromkeys(OTHER_USES, False)
    return x509.KeyUsage(
        digital_signature=not signs_others, key_cert_sign=signs_others, crl_sign=signs_others, **others
    )


def _write_key(path: Path, key: Any) -> None:
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with whole_file(path, private=True) as file:
        file.write(plain)
