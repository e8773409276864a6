"""Where a broker listens and how to log in there: from the options of a command.

Rules: an option comes before the configuration. A password comes from a file, never from the
command line, where other users of the machine could read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from onelog.base.errors import ConfigError
from onelog.cli.options import Assignments, ConfigFile, load_options
from onelog.cli.talk.link import ANSWER_S, BrokerAddress


class AddressOptions(Protocol):
    """The options that commands with a broker share."""

    @property
    def host(self) -> str:
        """Host of the broker; empty: that of the configuration."""
        ...

    @property
    def port(self) -> int:
        """Its port; 0: that of the configuration."""
        ...

    @property
    def user(self) -> str:
        """Who logs in; empty: nobody."""
        ...

    @property
    def password_file(self) -> Path | None:
        """The file with the password in its first line."""
        ...

    @property
    def tls(self) -> bool:
        """Whether to speak TLS."""
        ...

    @property
    def ca_file(self) -> str:
        """Authorities for the broker's certificate; empty: those of the system."""
        ...

    @property
    def config(self) -> ConfigFile:
        """The file of the configuration."""
        ...

    @property
    def assignments(self) -> Assignments:
        """Settings of the command line."""
        ...


def address_of(options: AddressOptions, protocol: str, answer_s: float = ANSWER_S) -> BrokerAddress:
    """The address for a protocol; `answer_s` bounds the wait for an answer. Raises ConfigError."""
    listeners = load_options(options.config, None, options.assignments).config.listeners
    listener = getattr(listeners, f"{protocol}_tls" if options.tls else protocol)
    if not (options.port or listener.port):
        raise ConfigError("the configuration has no port: name it with --port")
    return BrokerAddress(
        host=options.host or listener.host,
        port=options.port or listener.port,
        user=options.user,
        password=_password_of(options),
        tls=options.tls,
        ca_file=options.ca_file,
        answer_s=answer_s,
    )


def _password_of(options: AddressOptions) -> str:
    path = options.password_file
    if path is None:
        if options.user:
            raise ConfigError("--user needs --password-file FILE")
        return ""
    try:
        return path.read_text().partition("\n")[0]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
