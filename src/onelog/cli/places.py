"""Which server a command talks to, and how it proves who it is.

Rules: `--url`, else the variable `ONELOG_URL`, names a server anywhere; it gets the token in
`ONELOG_TOKEN`, else what `onelog login` saved for that URL. Otherwise the server is the one of a
data directory of this machine: its control socket gives the URL and a pass, to the system user who
runs it and to root. Everybody else asks its admin listener, with the token or with nothing. A
secret is never an argument, and does not cross a network in clear without a word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter

from onelog.base.commands import raise_error
from onelog.base.errors import ConfigError, InvalidRequest, Timeout, Unavailable
from onelog.base.networks import is_loopback
from onelog.cli.client import TOKEN_VARIABLE, URL_VARIABLE, AdminClient, Target, target_at
from onelog.cli.failures import NotReachable
from onelog.cli.options import Assignments, ConfigFile, DataDir, load_options

if TYPE_CHECKING:
    from onelog.config.listeners import AdminListener

ServerUrl = Annotated[
    str,
    Parameter(
        name="--url",
        show_default=False,
        help="Admin API of the server, https://host:8080; default: ONELOG_URL, else here.",
    ),
]
CaFile = Annotated[
    str,
    Parameter(
        name="--ca-file",
        show_default=False,
        help="PEM file: authorities for the certificate of --url.",
    ),
]
Insecure = Annotated[
    bool,
    Parameter(
        name="--insecure",
        negative=(),
        show_default=False,
        help="Let the token or password cross a network without TLS.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Place:
    """Which server."""

    url: ServerUrl = ""
    ca_file: CaFile = ""
    insecure: Insecure = False
    config: ConfigFile = None
    data: DataDir = None
    assignments: Assignments = ()

    @property
    def is_named(self) -> bool:
        """Whether a URL says which server it is."""
        return bool(self.named_url)

    @property
    def named_url(self) -> str:
        """The URL that was given, if any. Raises ConfigError."""
        if self.url:
            return clean_url(self.url, "--url")
        local = self.config is not None or self.data is not None or self.assignments
        found = "" if local else os.environ.get(URL_VARIABLE, "")
        return clean_url(found, URL_VARIABLE) if found else ""

    @property
    def is_kept_elsewhere(self) -> bool:
        """Whether the configuration keeps users, rules and streams in etcd or an object store."""
        chosen = load_options(self.config, self.data, self.assignments).config
        return chosen.cluster.mode != "single" or bool(chosen.metadata.url)

    @property
    def data_dir(self) -> Path:
        """The data directory of this machine."""
        return Path(load_options(self.config, self.data, self.assignments).config.data_dir)

    def target(self) -> Target:
        """The server, and what it gets to see."""
        url = self.named_url
        if url:
            return self._named(url)
        loaded = load_options(self.config, self.data, self.assignments).config
        return local_target(Path(loaded.data_dir), loaded.listeners.admin)

    def _named(self, url: str) -> Target:
        from onelog.cli.saved_logins import find_login  # noqa: PLC0415 - not for this machine's

        target = Target(url=url, ca_file=self.ca_file)
        token = os.environ.get(TOKEN_VARIABLE, "")
        saved = None if token else find_login(url)
        if token or saved is not None:
            self.check_secrecy(url)
        if token:
            return replace(target, token=token)
        if saved is None:
            return target
        return replace(
            target,
            token=saved.token,
            session=saved.session,
            csrf=saved.csrf,
            ca_file=self.ca_file or saved.ca_file,
        )

    def check_secrecy(self, url: str) -> None:
        """Refuse to show a secret to a whole network. Raises ConfigError."""
        place = urlsplit(url)
        if place.scheme == "https" or self.insecure or is_loopback(place.hostname or ""):
            return
        raise ConfigError(
            f"{url} has no TLS: everybody on the way could read the token or password. Use"
            " https://…, or say --insecure if the network is yours alone"
        )


HERE = Place()


@contextmanager
def connected(place: Place) -> Iterator[AdminClient]:
    """A client of the server, for the length of a block."""
    client = AdminClient(place.target())
    try:
        yield client
    finally:
        client.close()


def clean_url(text: str, origin: str) -> str:
    """A URL of a server: scheme, host and port, nothing else. Raises ConfigError."""
    given = text if "://" in text else f"http://{text}"
    try:
        place = urlsplit(given)
        port = place.port
    except ValueError as error:
        raise ConfigError(f"{origin} {text!r}: {error}") from None
    if place.scheme not in ("http", "https") or not place.hostname:
        raise ConfigError(f"{origin} {text!r}: write it as https://host:8080")
    if place.username or place.password:
        raise ConfigError(
            f"{origin}: a URL holds no password, because others can read it: use `onelog login`,"
            f" or a token in {TOKEN_VARIABLE}"
        )
    if place.path.strip("/") or place.query:
        raise ConfigError(f"{origin} {text!r}: leave out what comes after host and port")
    host = f"[{place.hostname}]" if ":" in place.hostname else place.hostname
    return f"{place.scheme}://{host}" + (f":{port}" if port else "")


def local_target(data_dir: Path, admin: AdminListener) -> Target:
    """The server of a data directory of this machine."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    found = None if token else _by_pass(data_dir)
    if found is not None:
        return found
    if not admin.enabled:
        raise NotReachable(
            f"no server of {str(data_dir)!r} takes commands, and listeners.admin.enabled is false"
        )
    return target_at(admin.host, admin.port, admin.tls.cert_file)


def _by_pass(data_dir: Path) -> Target | None:
    """The server by its control socket; None when there is none that lets this user in."""
    if not (data_dir / "control.sock").exists():
        return None
    # Only these commands need it, and every other one starts faster without.
    from onelog.admin.contract import PassAnswer  # noqa: PLC0415
    from onelog.net.control import call  # noqa: PLC0415

    try:
        answer = msgspec.json.decode(call(data_dir, b'{"type":"api.pass"}'), type=PassAnswer)
        raise_error(answer.error, answer.message)
    except (OSError, Unavailable, Timeout, InvalidRequest, msgspec.MsgspecError):
        return None
    if not answer.url:
        raise NotReachable(
            f"the server of {str(data_dir)!r} has no admin API: listeners.admin.enabled is false"
        )
    place = urlsplit(answer.url)
    found = target_at(place.hostname or "", place.port or 0, answer.cert_file)
    return replace(found, token=answer.token, renew=lambda: _by_pass(data_dir) or found)
