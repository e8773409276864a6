"""Asks a running server over its admin API.

Rules: the CLI shares only the admin contract with the server. Every request has a deadline. A
request that changes something is sent once: if its answer does not come, the error says that it is
not known whether it was done. An error of the API is raised as the error of ours that it names.
"""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from onelog.admin.contract import PAGE_MAX, ErrorAnswer, ServerInfo, StreamInfo, TroubleInfo
from onelog.base.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotAuthenticated,
    NotAuthorized,
    NotFound,
    OnelogError,
    QuotaExceeded,
    StorageFull,
    Timeout,
    Unavailable,
)
from onelog.cli.failures import NotReachable

API: Final = "/api/v1"
CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
"""How long an answer may take: surveys of topics and purges of queues take a while."""
PATIENT_S: Final = 24 * 3600.0
"""How long one may take where the server may work for hours."""
EVENT_S: Final = 90.0
"""The longest interval of events, and some more."""
TOKEN_VARIABLE: Final = "ONELOG_TOKEN"  # noqa: S105  its name
URL_VARIABLE: Final = "ONELOG_URL"

_ERRORS: Final[dict[int, type[OnelogError]]] = {
    400: InvalidRequest,
    401: NotAuthenticated,
    403: NotAuthorized,
    404: NotFound,
    405: InvalidRequest,
    409: Conflict,
    413: LimitExceeded,
    429: QuotaExceeded,
    503: Unavailable,
    504: Timeout,
    507: StorageFull,
}
T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Which server, and what to show it."""

    url: str
    token: str = ""
    session: str = ""
    """The cookie of a login, and the value that its changes have to carry."""
    csrf: str = ""
    ca_file: str = ""
    """Authorities for the server's certificate; empty: those of this machine."""
    cert_file: str = ""
    """Or the one certificate that it shows, whatever its name."""
    renew: Callable[[], Target] | None = None
    """The same with a fresh token, when the old one is over."""

    @property
    def headers(self) -> dict[str, str]:
        """What each request shows."""
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        if self.session:
            return {"Cookie": f"onelog_session={self.session}", "X-CSRF-Token": self.csrf}
        return {}


class AdminClient:
    """One connection to the admin API of a server, made when it is needed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._connection: http.client.HTTPConnection | None = None
        self.answer_s = ANSWER_S
        self.connect_s = CONNECT_S

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """The answer to a question."""
        return self.call("GET", path, query)

    def call(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """The answer to a request, as values; None when it has no body."""
        data, _headers = self.exchange(method, API + _with_query(path, query), body)
        try:
            return msgspec.json.decode(data) if data else None
        except msgspec.MsgspecError as error:
            raise self._strange(f"no JSON: {error}") from None

    def exchange(
        self, method: str, path: str, body: Any = None, also: int = 0
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """The answer's body and headers; also with the status `also`, which is an error else."""
        try:
            status, data, headers = self._send(method, path, body)
            if status == 401 and self.target.renew is not None:
                self.target = self.target.renew()
                status, data, headers = self._send(method, path, body)
        except OSError as error:  # also TimeoutError, ssl.SSLError
            self.close()
            raise self._unreachable(method, error) from error
        except http.client.HTTPException as error:
            self.close()
            raise self._strange(str(error) or type(error).__name__) from error
        if status >= 400 and status != also:
            raise self._refusal(status, data)
        return data, headers

    def pages(self, path: str, query: Mapping[str, Any], limit: int = PAGE_MAX) -> Iterator[Json]:
        """A list, page by page; only one page is held at a time."""
        cursor: str | None = ""
        while cursor is not None:
            asked = {**query, "limit": limit} | ({"cursor": cursor} if cursor else {})
            page = self.get(path, asked)
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise self._strange("no list")
            yield page
            cursor = page.get("next_cursor")

    def events(self, path: str, query: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Server-sent events, as they come, until the server ends them."""
        connection = self._open(EVENT_S)
        try:
            connection.request("GET", API + _with_query(path, query), headers=self.target.headers)
            response = connection.getresponse()
            if response.status != 200:
                raise self._refusal(response.status, response.read())
            name = ""
            for line in response:
                word, _, value = line.rstrip(b"\r\n").partition(b": ")
                if word == b"event":
                    name = value.decode()
                elif word == b"data":
                    yield name, msgspec.json.decode(value)
        except OSError as error:
            raise self._unreachable("GET", error) from error
        except (http.client.HTTPException, msgspec.MsgspecError) as error:
            raise self._strange(str(error)) from error
        finally:
            connection.close()

    # -- the connection

    def _send(self, method: str, path: str, body: Any) -> tuple[int, bytes, Any]:
        data = None if body is None else msgspec.json.encode(body)
        reused = self._connection is not None
        if self._connection is None:
            self._connection = self._open(self.answer_s)
        try:
            return self._once(self._connection, method, path, data)
        except (http.client.RemoteDisconnected, ConnectionError):
            # The server closes a connection that rested; a question may be asked twice.
            if not reused or method != "GET":
                raise
            self.close()
            self._connection = self._open(self.answer_s)
            return self._once(self._connection, method, path, data)

    def _once(
        self, connection: http.client.HTTPConnection, method: str, path: str, data: bytes | None
    ) -> tuple[int, bytes, Any]:
        headers = dict(self.target.headers)
        if data is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        answer = response.read()
        return response.status, answer, response.headers

    def _open(self, answer_s: float) -> http.client.HTTPConnection:
        place = urlsplit(self.target.url)
        host, port = place.hostname or "", place.port
        connection = http.client.HTTPConnection(host, port, timeout=self.connect_s)
        if place.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, port, timeout=self.connect_s, context=self._trust()
            )
        connection.connect()
        connection.sock.settimeout(answer_s)
        return connection

    def _trust(self) -> ssl.SSLContext:
        target = self.target
        try:
            context = ssl.create_default_context(cafile=target.cert_file or target.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificates in {target.cert_file or target.ca_file} cannot be used: {error}"
            ) from error
        if target.cert_file:
            context.check_hostname = False  # it is this file's certificate, whatever its name
        return context

    # -- what goes wrong

    def _unreachable(self, method: str, error: OSError) -> OnelogError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return NotReachable(
                f"the certificate of {self.target.url} is not trusted ({error.verify_message}):"
                " name its authority with --ca-file FILE"
            )
        if isinstance(error, TimeoutError) and method != "GET":
            return Timeout(
                f"{self.target.url} did not answer in time: it is not known whether it was done"
            )
        return NotReachable(
            f"no OneLog server answers at {self.target.url} ({error.strerror or error}); start one"
            " with `onelog serve`, or name another: --data DIR for one of this machine, --url URL"
        )

    def _strange(self, why: str) -> OnelogError:
        return NotReachable(
            f"{self.target.url} does not answer as an admin API of OneLog does ({why}):"
            " is the URL right? `onelog status` and the server's start show it"
        )

    def _refusal(self, status: int, data: bytes) -> OnelogError:
        try:
            error = msgspec.json.decode(data, type=ErrorAnswer).error
        except msgspec.MsgspecError:
            return self._strange(f"status {status}")
        kind = AlreadyExists if error.code == "already_exists" else _ERRORS.get(status, OnelogError)
        hint = ""
        if status == 401:
            hint = (
                f" (`onelog login --url {self.target.url}`, or a token in {TOKEN_VARIABLE}; where"
                " the server runs, its own system user needs neither)"
            )
        return kind(error.message + hint)


def path_of(template: str, names: Mapping[str, str]) -> str:
    """A path with its names filled in; a `/` in a name is written `%2F`."""
    found = template
    for name, value in names.items():
        found = found.replace("{" + name + "}", quote(value, safe="", errors="surrogatepass"))
    return found


def _with_query(path: str, query: Mapping[str, Any] | None) -> str:
    given = {name: _query_value(value) for name, value in (query or {}).items()}
    return f"{path}?{urlencode(given, errors='surrogatepass')}" if given else path


def _query_value(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


# -- the whole at a glance, for `status` and `doctor`


class HealthAnswer(msgspec.Struct, frozen=True):
    """The answer of `/health`."""

    status: str
    checks: dict[str, str]
    troubles: list[TroubleInfo]


class StreamPage(msgspec.Struct, frozen=True):
    """A page of streams."""

    items: list[StreamInfo]
    next_cursor: str | None


class Status(msgspec.Struct, frozen=True):
    """The facts that `onelog status` shows."""

    info: ServerInfo
    health: HealthAnswer
    streams: list[StreamInfo]
    more_streams: bool


def target_at(host: str, port: int, cert_file: str = "") -> Target:
    """A listener of this machine, as its configuration names it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  where it listens
    name = f"[{host}]" if ":" in host else host
    scheme = "https" if cert_file else "http"
    token = os.environ.get(TOKEN_VARIABLE, "")
    return Target(url=f"{scheme}://{name}:{port}", token=token, cert_file=cert_file)


def fetch_status(target: Target) -> Status:
    """Ask a server for its identity and state. Raises NotReachable, and what it refuses."""
    asker = AdminClient(target)
    asker.answer_s = CONNECT_S
    try:
        info = _read(asker, f"{API}/info", ServerInfo)
        health = _read(asker, "/health", HealthAnswer, also=503)
        page = StreamPage([], None)
        if health.checks.get("state", "ok") == "ok":
            page = _read(asker, f"{API}/streams", StreamPage)
    finally:
        asker.close()
    return Status(info, health, page.items, page.next_cursor is not None)


def _read(asker: AdminClient, path: str, kind: type[T], also: int = 0) -> T:
    data, _headers = asker.exchange("GET", path, also=also)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise asker._strange(str(error)) from None
