"""TLS of a listener: the context made from files, and made anew when the files change.

Rules: TLS 1.2 at least. An error names the configuration key, the file and the problem. A renewed
certificate takes effect without a restart; while the new files cannot be used, the old ones
stay, and a trouble stands.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ConfigError
from onelog.observe import Troubles, get_logger

_log = get_logger("net")

CHECK_INTERVAL_S: Final = 10.0
"""Shortest time between two checks of the files; a check happens only at a connect."""

TLS_TROUBLE: Final = "tls-files"
"""Standing: the changed files of a listener cannot be used."""

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for the TLS of a listener."""

    cert_file: str
    """PEM file: the server's certificate and those between it and the root."""
    key_file: str
    """PEM file: the server's private key, without a password."""
    client_ca_file: str = ""
    """PEM file: the authorities that may sign client certificates."""
    client_cert: Literal["none", "optional", "required"] = "none"
    """Whether a client shows a certificate."""
    version_min: Literal["1.2", "1.3"] = "1.2"
    alpn: tuple[str, ...] = ()
    """Protocol names (ALPN), the best one first; none: no agreement."""

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that is read."""
        return tuple(filter(None, (self.cert_file, self.key_file, self.client_ca_file)))


def server_context(settings: TlsSettings, name: str = "tls") -> ssl.SSLContext:
    """A context for a server; `name` is the section that errors speak of. Raises ConfigError."""
    _check_readable("cert_file", settings.cert_file, name)
    _check_readable("key_file", settings.key_file, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.version_min]
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # Without the function, a key with a password would ask for it on the terminal.
        context.load_cert_chain(settings.cert_file, settings.key_file, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_explain_pair(settings, name, error)) from None
    if settings.client_cert != "none":
        _load_client_ca(context, settings, name)
    if settings.alpn:
        context.set_alpn_protocols(list(settings.alpn))
    return context


def mutual_context(settings: TlsSettings, name: str = "tls") -> ssl.SSLContext:
    """A context for a client that shows a certificate to servers whose certificates are signed by
    `client_ca_file`. The caller checks the name in the server's certificate. Raises ConfigError."""
    _check_readable("cert_file", settings.cert_file, name)
    _check_readable("key_file", settings.key_file, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[settings.version_min]
    context.check_hostname = False
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_explain_pair(settings, name, error)) from None
    _load_client_ca(context, settings, name)
    return context


class Tls:
    """The TLS of one listener, or of those who dial; `context` is always the current one."""

    def __init__(
        self,
        settings: TlsSettings,
        clock: Clock,
        name: str = "tls",
        make: Callable[[TlsSettings, str], ssl.SSLContext] = server_context,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._name = name
        self._make = make
        self._stamps = _stamps(settings)
        self._context = make(settings, name)
        self._look_at = clock.monotonic() + CHECK_INTERVAL_S
        self.reloads = 0
        """How often changed files were taken."""
        self.troubles: Troubles | None = None
        """The register that hears of changed files which cannot be used."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + CHECK_INTERVAL_S
            stamps = _stamps(self._settings)
            if stamps != self._stamps:
                self._stamps = stamps
                self._reload()
        return self._context

    def _reload(self) -> None:
        try:
            self._context = self._make(self._settings, self._name)
        except ConfigError as error:
            _log.error("changed TLS files cannot be used, the old ones stay", error=str(error))
            if self.troubles is not None:
                problem = f"changed TLS files cannot be used, the old ones stay: {error}"
                self.troubles.stand(TLS_TROUBLE, self._name, problem, blocks=False)
            return
        if self.troubles is not None:
            self.troubles.clear(TLS_TROUBLE, self._name)
        self.reloads += 1
        _log.info("changed TLS files are in use", listener=self._name)


def _load_client_ca(context: ssl.SSLContext, settings: TlsSettings, name: str) -> None:
    if not settings.client_ca_file:
        raise ConfigError(
            f'{name}.client_cert = "{settings.client_cert}" needs {name}.client_ca_file: the '
            "certificates that sign those of the clients"
        )
    _check_readable("client_ca_file", settings.client_ca_file, name)
    try:
        context.load_verify_locations(cafile=settings.client_ca_file)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{name}.client_ca_file = {settings.client_ca_file!r} holds no certificates in PEM "
            f"format ({_reason(error)})"
        ) from None
    context.verify_mode = _VERIFY[settings.client_cert]


def _check_readable(key: str, file: str, name: str) -> None:
    if not file:
        raise ConfigError(f"{name}.{key} is missing: TLS needs it")
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}.{key} = {file!r} cannot be read: {error.strerror}") from None


def _explain_pair(settings: TlsSettings, name: str, error: Exception) -> str:
    """Which of the two files OpenSSL complains about."""
    reason = _reason(error)
    if reason == "KEY_VALUES_MISMATCH":
        return (
            f"{name}.key_file = {settings.key_file!r} is not the key of the certificate "
            f"{name}.cert_file = {settings.cert_file!r}"
        )
    text = Path(settings.cert_file).read_bytes()
    if b"-----BEGIN CERTIFICATE-----" not in text:
        return f"{name}.cert_file = {settings.cert_file!r} holds no certificate in PEM format"
    text = Path(settings.key_file).read_bytes()
    if b"ENCRYPTED" in text:
        return f"{name}.key_file = {settings.key_file!r} has a password: store the key without one"
    if b"PRIVATE KEY-----" not in text:
        return f"{name}.key_file = {settings.key_file!r} holds no private key in PEM format"
    return (
        f"{name}.cert_file = {settings.cert_file!r} and {name}.key_file = {settings.key_file!r} "
        f"cannot be used: {reason}"
    )


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


def _stamps(settings: TlsSettings) -> tuple[tuple[int, int, int] | None, ...]:
    return tuple(_stamp(file) for file in settings.files)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
