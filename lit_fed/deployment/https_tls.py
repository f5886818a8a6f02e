"""The certificates of both ends: TLS 1.3, and no other CA than that of the federation."""

from __future__ import annotations

import ssl
from pathlib import Path

from lit_fed.errors import ConfigError

__all__ = ["tls_of_node", "tls_of_server"]


def _tls(kind: int, folder: Path, name: str, option: str) -> ssl.SSLContext:
    """TLS 1.3 with a certificate of one's own, and no other CA than that of the folder."""
    files = [folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem"]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ConfigError(f"{option} {folder}: no {', '.join(missing)} in it; `lit-fed certificates` writes them")
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files[0], files[1], password="")  # no prompt for a key that has one
        context.load_verify_locations(files[2])
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{option} {folder}: its certificates cannot be used ({why}); make them anew") from error
    return context


def tls_of_server(folder: Path, option: str) -> ssl.SSLContext:
    """The server's: `server.pem`, `server.key` and `ca.pem` of a folder; nodes need a certificate of that CA.

    Raises:
        ConfigError: naming the folder and what is wrong in it.
    """
    return _tls(ssl.PROTOCOL_TLS_SERVER, folder, "server", option)


def tls_of_node(folder: Path, option: str) -> ssl.SSLContext:
    """A node's: `node.pem`, `node.key` and `ca.pem` of a folder; the server's name has to be in its certificate.

    Raises:
        ConfigError: naming the folder and what is wrong in it.
    """
    return _tls(ssl.PROTOCOL_TLS_CLIENT, folder, "node", option)
