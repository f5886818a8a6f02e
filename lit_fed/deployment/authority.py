"""A certificate authority in a folder, and what it signs: elliptic curves (P-256), TLS for servers or for clients."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lit_fed.errors import ConfigError
from lit_fed.system.files import whole_file, write_atomically

__all__ = ["Authority"]

DAYS_OF_AUTHORITY = 10 * 365
CLOCKS_DIFFER = timedelta(hours=1)
"""Certificates are good from so long ago: a machine's clock may be slow."""

PEM = serialization.Encoding.PEM
OTHER_USES = (
    "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only",
)  # fmt: skip


class Authority:
    """A CA, `ca.pem` and `ca.key`, which is made where there is none.

    Args:
        folder: where it lies.
        days: how long what it signs is good.

    Raises:
        ConfigError: if its files are damaged, or not of one CA.
    """

    def __init__(self, folder: Path, days: int) -> None:
        self.days, certificate = days, folder / "ca.pem"
        if not certificate.exists():
            self.name, self.key = _named("lit_fed federation"), ec.generate_private_key(ec.SECP256R1())
            own = [x509.BasicConstraints(ca=True, path_length=0), _uses(signs_others=True)]
            made = self._signed(self.name, self.key, own, DAYS_OF_AUTHORITY)
            _write_key(folder / "ca.key", self.key)
            write_atomically(certificate, made.public_bytes(PEM))
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
        """Write a pair.

        Args:
            path: of both files, without their suffixes `.pem` and `.key`.
            name: whose certificate it is.
            hosts: of a server; none: it is a client's.
        """
        purpose = x509.ExtendedKeyUsageOID.SERVER_AUTH if hosts else x509.ExtendedKeyUsageOID.CLIENT_AUTH
        key = ec.generate_private_key(ec.SECP256R1())
        own = [x509.BasicConstraints(ca=False, path_length=None), _uses(signs_others=False)]
        own.append(x509.ExtendedKeyUsage([purpose]))
        certificate = self._signed(_named(name), key, own, self.days, [_host(one) for one in hosts])
        _write_key(path.with_name(f"{path.name}.key"), key)
        write_atomically(path.with_name(f"{path.name}.pem"), certificate.public_bytes(PEM))

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


def _host(host: str) -> Any:
    """How a certificate says a host."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _named(name: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _uses(*, signs_others: bool) -> Any:
    others = dict.fromkeys(OTHER_USES, False)
    return x509.KeyUsage(
        digital_signature=not signs_others, key_cert_sign=signs_others, crl_sign=signs_others, **others
    )


def _write_key(path: Path, key: Any) -> None:
    plain = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with whole_file(path, private=True) as file:
        file.write(plain)
