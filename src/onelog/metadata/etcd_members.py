"""The members of etcd that a node talks to: which one is asked, and what an answer means.

Rules:
- One member is asked until it fails; then the next. A member that failed is left alone for a
  while, unless all did.
- A read goes to every member before it raises Unavailable. A change goes to another member only if
  the one before surely did not get it, or refused it before it did anything. Otherwise its outcome
  is unknown.
- Every request has a deadline, and says that it wants a member with a leader: a member that was cut
  off refuses at once.
- Each new connection first asks what runs there: a version that loses committed writes is refused,
  and so is a member of another etcd.
- A revision never falls. An etcd that shows a lower one was restored from an old copy: nothing that
  it says counts (I9).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

import msgspec

from onelog.base.errors import (
    Closed,
    ConfigError,
    InvalidRequest,
    OnelogError,
    OutcomeUnknown,
    Unavailable,
)
from onelog.metadata.etcd_http import Endpoint, HttpAnswer, HttpConnection, HttpFailed, connect
from onelog.metadata.etcd_wire import (
    Header,
    LoginAnswer,
    Refusal,
    StatusAnswer,
    WrongBytes,
    decode,
    error_of,
    is_stale_login,
    may_ask_another,
)
from onelog.observe.troubles import Troubles

AWAY: Final = "etcd-away"
"""Standing: no member of etcd answers."""
OLDER: Final = "etcd-older"
"""Standing: etcd shows an older revision than before."""
BROKEN: Final = "etcd-watch"
"""Incidents: a watch ended with an error that nobody expected."""
REFUSED: Final = "etcd-refused"
"""Standing: a member of etcd has a version that is not used, or belongs to another etcd."""

CONNECTIONS_MAX: Final = 16
"""Connections to one member, beside those of watches."""
CONNECT_S: Final = 2.0
"""How long a connection may take to come up."""
REST_MIN_S: Final = 0.5
REST_MAX_S: Final = 8.0
"""How long a member that failed is left alone: the double each time."""

_OK: Final = 200
_STATUS: Final = "/v3/maintenance/status"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class EtcdAnswer(Protocol):
    """What every answer has."""

    @property
    def header(self) -> Header:
        """Its header."""
        ...


A = TypeVar("A", bound=EtcdAnswer)


def version_problem(version: str) -> str | None:
    """Why a version of etcd is not used; None: it is."""
    found = _VERSION.match(version)
    if found is None:
        return f"its version {version!r} cannot be read"
    number = tuple(map(int, found.groups()))
    if number < (3, 4, 22) or (3, 5, 0) <= number <= (3, 5, 5):
        return (
            f"its version {version} can lose writes that it confirmed: take 3.4.22 or newer of"
            " 3.4, 3.5.6 or newer"
        )
    return None


class EtcdMember:
    """One endpoint, its connections, and how it did."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.idle: list[HttpConnection] = []
        self.places = asyncio.Semaphore(CONNECTIONS_MAX)
        self.streams: set[HttpConnection] = set()
        self.rests_until = 0.0
        self.rest_s = REST_MIN_S
        self.version = ""
        """What it said last; empty: it never answered."""

    def cut(self) -> None:
        """End every connection to it."""
        for connection in (*self.idle, *self.streams):
            connection.close()
        self.idle.clear()


class EtcdMembers:
    """All of them, for one store."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        troubles: Troubles,
        *,
        deadline_s: float,
        tls: Callable[[], ssl.SSLContext] | None = None,
        login: tuple[str, str] | None = None,
    ) -> None:
        self.all = tuple(map(EtcdMember, endpoints))
        assert self.all, "the configuration was checked"
        self.cluster_id = 0
        """The id of the etcd that answered first; 0: none did."""
        self.revision = 0
        """The highest revision that an answer showed."""
        self.deadline_s = deadline_s
        self._troubles = troubles
        self._tls = tls
        self._login = login
        self._token = ""
        self._logging_in = asyncio.Lock()
        self._first = 0
        self._connections: set[HttpConnection] = set()
        """Those whose sockets are open."""
        self._is_closed = False
        self._place = ", ".join(str(member.endpoint) for member in self.all)

    @property
    def place(self) -> str:
        """All endpoints, for messages."""
        return self._place

    async def close(self) -> None:
        """End every connection; their sockets are closed when it returns."""
        self._is_closed = True
        for connection in tuple(self._connections):
            connection.close()
        lost = [connection.lost for connection in self._connections]
        if lost:
            await asyncio.wait(lost, timeout=CONNECT_S)

    def watch_failed(self, prefix: str, error: Exception) -> None:
        """A watch ended with an error that nobody expected."""
        self._troubles.note(BROKEN, prefix, error)

    # -- asking

    async def ask(
        self,
        path: str,
        request: object,
        kind: type[A],
        *,
        changes: bool = False,
        is_ordered: bool = False,
        only: EtcdMember | None = None,
        deadline_s: float | None = None,
    ) -> A:
        """The answer to a request. Raises Unavailable, OutcomeUnknown (if it `changes`), and what
        a refusal means.

        `is_ordered`: its revision cannot be older than what was seen before it.
        """
        body = msgspec.json.encode(request)
        floor = self.revision if is_ordered else 0
        end = self._now() + (self.deadline_s if deadline_s is None else deadline_s)
        members = self._in_order() if only is None else [only]
        failure: OnelogError = Unavailable(f"no member of etcd answers ({self._place})")
        for tried, member in enumerate(members):
            left_s = end - self._now()
            if left_s <= 0:
                break
            share_s = left_s if changes else left_s / (len(members) - tried)
            try:
                found = await self._answer(member, path, body, kind, share_s, changes=changes)
            except OutcomeUnknown as error:
                if changes:
                    raise
                failure = Unavailable(str(error))
            except AnswerTooLarge:
                raise
            except Unavailable as error:
                failure = error
            else:
                self._check_revision(member, found.header.revision, floor, changes=changes)
                self._first = self.all.index(member) if only is None else self._first
                self._troubles.clear(AWAY, self._place)
                return found
        if only is None:
            self._troubles.stand(AWAY, self._place, failure, blocks=False)
        raise failure

    async def _answer(
        self,
        member: EtcdMember,
        path: str,
        body: bytes,
        kind: type[A],
        timeout_s: float,
        *,
        changes: bool,
    ) -> A:
        """The answer of one member. Raises Unavailable (nothing was done), OutcomeUnknown."""
        end = self._now() + timeout_s
        for is_last in (False, True):
            try:
                answer = await self._exchange(member, path, body, end)
                if answer.status == _OK:
                    found = decode(kind, answer.body)
                    member.rest_s = REST_MIN_S
                    return found
                refusal = decode(Refusal, answer.body)
            except HttpFailed as failure:
                if failure.too_large and not changes:
                    raise AnswerTooLarge(str(failure)) from None
                self._rest(member, cut=failure.sent)
                if failure.is_cut and not changes and not is_last:
                    continue  # it was restarted, perhaps, and a new connection comes up
                if failure.sent:
                    raise OutcomeUnknown(_unknown(str(failure))) from None
                raise Unavailable(str(failure)) from None
            except WrongBytes as wrong:
                self._rest(member, cut=True)
                raise OutcomeUnknown(_unknown(f"{member.endpoint}: {wrong}")) from None
            if is_stale_login(refusal) and self._login is not None and not is_last:
                self._token = ""
                continue
            error = error_of(refusal, member.endpoint)
            if may_ask_another(refusal) or (isinstance(error, OutcomeUnknown) and not changes):
                self._rest(member, cut=False)
            raise error
        raise AssertionError("the last attempt returns or raises")

    async def _exchange(self, member: EtcdMember, path: str, body: bytes, end: float) -> HttpAnswer:
        """One request on a connection of its own. Raises HttpFailed."""
        sent = False
        try:
            async with asyncio.timeout_at(end), member.places:
                headers = await self.headers(member)
                connection = member.idle.pop() if member.idle else await self.connect(member)
                sent = True
                answer = await connection.ask("POST", path, headers, body)
                if not connection.is_closed and not self._is_closed:
                    member.idle.append(connection)
                return answer
        except TimeoutError:
            raise HttpFailed(f"{member.endpoint} did not answer in time", sent=sent) from None

    async def connect(self, member: EtcdMember) -> HttpConnection:
        """A new connection to a member that may be used. Raises HttpFailed."""
        if self._is_closed:
            raise Closed("the metadata store was closed")

        def ended(connection: HttpConnection) -> None:
            member.streams.discard(connection)
            if connection in member.idle:
                member.idle.remove(connection)

        tls = self._tls() if self._tls is not None and member.endpoint.is_tls else None
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await connect(member.endpoint, tls, ended)
                self._connections.add(connection)
                connection.lost.add_done_callback(lambda _: self._connections.discard(connection))
                try:
                    status = await connection.ask("POST", _STATUS, self._bare_headers(), b"{}")
                    self._check_member(member, status)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except TimeoutError:
            raise HttpFailed(f"{member.endpoint} does not answer", sent=False) from None
        except MemberRefused:
            raise
        except HttpFailed as failure:
            raise HttpFailed(str(failure), sent=False) from None

    def _check_member(self, member: EtcdMember, answer: HttpAnswer) -> None:
        try:
            if answer.status != _OK:
                refusal = decode(Refusal, answer.body)
                raise HttpFailed(str(error_of(refusal, member.endpoint)), sent=False)
            status = decode(StatusAnswer, answer.body)
        except WrongBytes as wrong:
            raise HttpFailed(f"{member.endpoint}: {wrong}", sent=False) from None
        problem = version_problem(status.version)
        if self.cluster_id and status.header.cluster_id != self.cluster_id:
            problem = "it belongs to another etcd than the members that answered before"
        if problem is not None:
            text = f"the etcd at {member.endpoint} is not used: {problem}"
            self._troubles.stand(REFUSED, str(member.endpoint), text, blocks=False)
            raise MemberRefused(text, sent=False)
        self._troubles.clear(REFUSED, str(member.endpoint))
        self.cluster_id = status.header.cluster_id
        member.version = status.version

    async def check_all(self) -> None:
        """Look at every member once. Raises ConfigError when one of them may not be used, and
        Unavailable when none answers."""
        failures = await asyncio.gather(*map(self._look, self.all))
        for failure in failures:
            if isinstance(failure, MemberRefused):
                raise ConfigError(f"cluster.etcd.endpoints: {failure}")
        told = [str(failure) for failure in failures if failure is not None]
        if len(told) == len(self.all):
            raise Unavailable("; ".join(told))
        if self._login is not None:
            try:
                await self.headers(self.in_turn())
            except HttpFailed as failure:
                raise Unavailable(str(failure)) from None

    async def _look(self, member: EtcdMember) -> HttpFailed | None:
        try:
            member.idle.append(await self.connect(member))
        except HttpFailed as failure:
            self._rest(member, cut=False)
            return failure
        return None

    # -- which one

    def in_turn(self) -> EtcdMember:
        """The member to ask now."""
        return self._in_order()[0]

    def _in_order(self) -> list[EtcdMember]:
        now = self._now()
        turned = (*self.all[self._first :], *self.all[: self._first])
        return sorted(turned, key=lambda member: member.rests_until > now)

    def _rest(self, member: EtcdMember, *, cut: bool) -> None:
        """Leave a member alone for a while. `cut`: also its other connections are no good."""
        member.rests_until = self._now() + member.rest_s
        member.rest_s = min(member.rest_s * 2, REST_MAX_S)
        if cut:
            member.cut()

    def failed(self, member: EtcdMember) -> None:
        """A watch found out that a member is no good."""
        self._rest(member, cut=False)

    # -- logins

    def _bare_headers(self) -> str:
        token = f"Authorization: {self._token}\r\n" if self._token else ""
        return f"Content-Type: application/json\r\nGrpc-Metadata-hasleader: true\r\n{token}"

    async def headers(self, member: EtcdMember) -> str:
        """The headers of a request; they carry a login, if there is one. Raises HttpFailed."""
        if self._login is not None and not self._token:
            async with self._logging_in:
                if not self._token:
                    self._token = await self._log_in(member, *self._login)
        return self._bare_headers()

    async def _log_in(self, member: EtcdMember, user: str, password: str) -> str:
        body = msgspec.json.encode({"name": user, "password": password})
        connection = member.idle.pop() if member.idle else await self.connect(member)
        try:
            async with asyncio.timeout(CONNECT_S):
                path = "/v3/auth/authenticate"
                answer = await connection.ask("POST", path, self._bare_headers(), body)
            if answer.status != _OK:
                refusal = decode(Refusal, answer.body)
                error = error_of(refusal, member.endpoint)
                if isinstance(error, InvalidRequest):
                    raise ConfigError(
                        f"cluster.etcd.user, cluster.etcd.password_file: {refusal.message}"
                    )
                raise HttpFailed(str(error), sent=False)
            token = decode(LoginAnswer, answer.body).token
        except TimeoutError:
            raise HttpFailed(f"{member.endpoint} did not answer a login", sent=False) from None
        except WrongBytes as wrong:
            raise HttpFailed(f"{member.endpoint}: {wrong}", sent=False) from None
        if not connection.is_closed:
            member.idle.append(connection)
        if not token or not token.isascii() or not token.isprintable():
            raise HttpFailed(f"{member.endpoint} gave no token for a login", sent=False)
        return token

    def token_ended(self) -> None:
        """etcd says to a watch that it does not know its login any more."""
        self._token = ""

    # -- revisions

    def _check_revision(
        self, member: EtcdMember, revision: int, floor: int, *, changes: bool
    ) -> None:
        if revision >= floor:
            self.revision = max(self.revision, revision)
            if floor:
                self._troubles.clear(OLDER, self._place)
            return
        text = (
            f"etcd at {member.endpoint} is at revision {revision}, and was at {floor} before: it"
            " was restored from an older copy, or lost writes that it confirmed. Nothing that it"
            " says counts for this node: restore it to a newer copy"
        )
        self._troubles.stand(OLDER, self._place, text, blocks=True)
        raise OutcomeUnknown(text) if changes else Unavailable(text)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class AnswerTooLarge(Unavailable):
    """The answer to a read has more bytes than any may have: ask for less at once."""


class MemberRefused(HttpFailed):
    """A member that must not be used, although it answers."""


def _unknown(why: str) -> str:
    return f"{why}; whether the change was made is not known"
