"""The router's TLS certificate and private key."""

from __future__ import annotations

from pathlib import Path
from ssl import Purpose, SSLContext, SSLError, create_default_context

from fairbench.errors import UsageError
from fairbench.files.reader import opened

CERTIFICATE, KEY = "--tls-cert", "--tls-key"
MOST_BYTES = 2**20
_CERTIFICATE_MARK, _KEY_MARK = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"


def server_tls(certificate: Path | None, key: Path | None) -> SSLContext | None:
    """Return the TLS context (versions 1.2 and 1.3) for two PEM files, or None if none are given.

    Raises UsageError or DataError if a file is missing, unreadable, encrypted or of another format,
    or if the key does not belong to the certificate.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, missing = (CERTIFICATE, KEY) if key is None else (KEY, CERTIFICATE)
        raise UsageError(f"{given} needs {missing}, too")
    _check_pem(CERTIFICATE, certificate, _CERTIFICATE_MARK, "certificate")
    _check_pem(KEY, key, _KEY_MARK, "private key")
    context = create_default_context(Purpose.CLIENT_AUTH)

    # Without this function, OpenSSL would ask for a passphrase at the terminal.
    def no_password() -> bytes:
        raise UsageError(
            f"{KEY} {key}: the private key is encrypted; give a file without a passphrase"
        )

    try:
        context.load_cert_chain(certificate, key, no_password)
    except SSLError as error:
        pair = f"{CERTIFICATE} {certificate}, {KEY} {key}"
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"{pair}: the private key does not belong to the certificate"
            ) from None
        raise UsageError(f"{pair}: cannot be used: {error.reason or error}") from None
    return context


def _check_pem(flag: str, path: Path, mark: bytes, what: str) -> None:
    shown = f"{flag} {path}"
    with opened(path, shown) as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES or mark not in data:
        raise UsageError(f"{shown}: holds no {what} in PEM format")
