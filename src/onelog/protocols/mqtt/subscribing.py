"""SUBSCRIBE and UNSUBSCRIBE: one answer per row, in order; then retained messages.

Rules: a row that is refused does not stop the others. A persistent session's subscriptions are kept
before they are answered. Retained messages follow the answer, as each row asks (3.3.1.3). Special
subscriptions get none, and begin to deliver after the answer. The client's earlier publishes are
completed first: a new subscription gets them only as retained messages, an old one gets them
itself. What lies on other nodes only is observed first (`observed`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from onelog.base.errors import InvalidName, LimitExceeded, NotAuthorized, OnelogError
from onelog.base.topics import check_filter
from onelog.broker import Action
from onelog.protocols.mqtt import system
from onelog.protocols.mqtt.errors import reason_for
from onelog.protocols.mqtt.keeping import keep_subscriptions
from onelog.protocols.mqtt.pacing import count_subscriptions, take_subscription
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.packets import (
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.replay import parse_start
from onelog.protocols.mqtt.special import SubscribeAddress, parse_address
from onelog.protocols.mqtt.subscribed import Subscribed

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection

_GRANTED: Final = (
    ReasonCode.SUCCESS,
    ReasonCode.GRANTED_QOS_1,
    ReasonCode.GRANTED_QOS_2,
)


class Subscribing:
    """The rows of one SUBSCRIBE: which are granted, and the work before and after the answer."""

    def __init__(self, connection: Connection, identifier: int) -> None:
        assert connection.session is not None
        self._connection = connection
        self._session = connection.session
        self._identifier = identifier
        self._opening: list[tuple[int, Subscribed]] = []
        self._retained: list[Subscribed] = []
        self.reasons: list[ReasonCode] = []
        self.error: OnelogError | None = None
        """The error of the first refused row."""

    def add(self, row: Subscription) -> None:
        """Grant or refuse one row."""
        try:
            self.reasons.append(self._add(row))
        except OnelogError as error:
            self.error = self.error or error
            self.reasons.append(reason_for(error, PacketType.SUBACK))

    def _add(self, row: Subscription) -> ReasonCode:
        session, limits = self._session, self._connection.hub.limits
        hub = self._connection.hub
        address = self._allowed(row.filter)
        hub.clients.observed.check(address.filter)
        known = address.key in session.subscriptions or address.key in session.specials
        count = len(session.subscriptions) + len(session.specials) + len(self._opening)
        if not known and count >= limits.subscriptions_per_client:
            raise LimitExceeded(
                f"a session has at most {limits.subscriptions_per_client} subscriptions"
            )
        wanted = Subscribed.of(row, self._identifier)
        wanted.filter = address.key
        if address.kind == "replay":
            parse_start(address.argument)  # so that it is refused before the answer
        if not known:
            take_subscription(self._connection)
        if address.kind in ("share", "replay"):
            self._opening.append((len(self.reasons), wanted))
            return _GRANTED[row.qos]
        if address.kind == "exclusive":
            self._claim(address.filter)
            wanted.exclusive = True
        elif known and session.subscriptions[wanted.filter].exclusive:
            hub.clients.exclusive.release(wanted.filter, session.client_id)
        session.subscribe(wanted)
        if wanted.filter.startswith(system.PREFIX):
            hub.system.watch(session)
        # Retain handling: 0 always, 1 only when new, 2 never (MQTT5 3.3.1-9 to -11).
        if row.retain_handling == 0 or (row.retain_handling == 1 and not known):
            self._retained.append(wanted)
            if not wanted.filter.startswith(system.PREFIX):
                hub.retained.greet(session, wanted.filter)
        return _GRANTED[row.qos]

    def _claim(self, text: str) -> None:
        try:
            self._connection.hub.clients.exclusive.claim(text, self._session.client_id)
        except OnelogError:
            count_subscriptions(self._connection)
            raise

    async def bring(self, rows: Iterable[Subscription]) -> None:
        """Before rows are added: have copies of what they read of other nodes' partitions."""
        await self._connection.hub.clients.observed.bring(self._filters(rows))

    def lacks(self, rows: Iterable[Subscription]) -> bool:
        """Whether `bring` has something to do."""
        return bool(self._connection.hub.clients.observed.missing(self._filters(rows)))

    def _filters(self, rows: Iterable[Subscription]) -> Iterator[str]:
        for row in rows:
            with contextlib.suppress(OnelogError):  # the row is refused when it is added
                yield self._allowed(row.filter).filter

    def _allowed(self, text: str) -> SubscribeAddress:
        """What a client may subscribe to. Raises OnelogError."""
        connection = self._connection
        address = connection.hub.rewriter.address(
            parse_address(text), self._session.client_id, connection.principal.name
        )
        self._check(address.filter)
        return address

    def _check(self, text: str) -> None:
        connection, limits = self._connection, self._connection.hub.limits
        check_filter(text)
        if text.count("/") >= limits.topic_levels or len(text.encode()) > limits.topic_bytes:
            raise InvalidName(f"the filter {text[:60]!r} is too long or too deep")
        authorizer, principal = connection.hub.broker.authorizer, connection.principal
        if not authorizer.allows(principal, Action.SUBSCRIBE, text):
            raise NotAuthorized(f"{principal.name} may not subscribe to {text}")

    @property
    def has_to_wait(self) -> bool:
        """Whether a special subscription has to be opened before the answer."""
        return bool(self._opening)

    async def open(self) -> None:
        """Open the special subscriptions."""
        session, hub = self._session, self._connection.hub
        for number, wanted in self._opening:
            known = session.specials.pop(wanted.filter, None)
            if known is not None:
                known.end()
            try:
                special = await hub.open_special(session, wanted, self._connection.principal)
                if session.connection is None:  # it was parked meanwhile, without this one
                    special.end()
                else:
                    session.specials[wanted.filter] = special
            except OnelogError as error:
                self.error = self.error or error
                self.reasons[number] = reason_for(error, PacketType.SUBACK)

    def begin(self) -> None:
        """The SUBACK was sent: send retained messages, let special subscriptions deliver."""
        hub = self._connection.hub
        for wanted in self._retained:
            greeting = self._session.greetings.get(wanted.filter)
            if wanted.filter.startswith(system.PREFIX):
                hub.system.send(self._connection, wanted)
            elif greeting is not None:
                greeting.go_on()
        for _number, wanted in self._opening:
            special = self._session.specials.get(wanted.filter)
            if special is not None and self._session.connection is not None:
                special.begin()


def on_subscribe(connection: Connection, packet: Subscribe) -> None:
    """Add subscriptions."""
    rows = _rows(connection, packet)
    if connection.is_publishing or rows.lacks(packet.subscriptions):
        connection.start(_subscribe_later(connection, packet))
        return
    _add_rows(connection, packet, rows)
    if rows.has_to_wait or connection.keeps:
        connection.start(_open_rows(connection, packet, rows))
    else:
        _answer_rows(connection, packet, rows)


async def _subscribe_later(connection: Connection, packet: Subscribe) -> None:
    if connection.is_publishing:
        await connection.wait_published()
    if connection.session is None:
        return
    rows = _rows(connection, packet)
    await rows.bring(packet.subscriptions)
    if connection.session is not None:
        _add_rows(connection, packet, rows)
        await _open_rows(connection, packet, rows)


def _rows(connection: Connection, packet: Subscribe) -> Subscribing:
    return Subscribing(connection, next(iter(packet.properties.subscription_ids), 0))


def _add_rows(connection: Connection, packet: Subscribe, rows: Subscribing) -> None:
    for row in packet.subscriptions:
        rows.add(row)
    connection.tag_publishes()


async def _open_rows(connection: Connection, packet: Subscribe, rows: Subscribing) -> None:
    if rows.has_to_wait:
        await rows.open()
        count_subscriptions(connection)
        connection.tag_publishes()
    await keep_subscriptions(connection)
    _answer_rows(connection, packet, rows)


def _answer_rows(connection: Connection, packet: Subscribe, rows: Subscribing) -> None:
    connection.send_explained(Suback(packet.packet_id, tuple(rows.reasons)), rows.error)
    rows.begin()


def on_unsubscribe(connection: Connection, packet: Unsubscribe) -> None:
    """Remove subscriptions."""
    if connection.is_publishing or connection.keeps:
        connection.start(_unsubscribe_later(connection, packet))
    else:
        connection.send(_unsubscribe_all(connection, packet))


async def _unsubscribe_later(connection: Connection, packet: Unsubscribe) -> None:
    if connection.is_publishing:
        await connection.wait_published()
    if connection.session is not None:
        answer = _unsubscribe_all(connection, packet)
        await keep_subscriptions(connection)
        connection.send(answer)


def _unsubscribe_all(connection: Connection, packet: Unsubscribe) -> Unsuback:
    reasons = tuple(
        ReasonCode.SUCCESS if _unsubscribe(connection, text) else ReasonCode.NO_SUBSCRIPTION_EXISTED
        for text in packet.filters
    )
    connection.tag_publishes()
    count_subscriptions(connection)
    return Unsuback(packet.packet_id, reasons)


def _unsubscribe(connection: Connection, text: str) -> bool:
    session = connection.session
    assert session is not None
    address = connection.hub.rewriter.address(
        parse_address(text), session.client_id, connection.principal.name
    )
    special = session.specials.pop(address.key, None)
    if special is not None:
        special.end()
        return True
    known = session.subscriptions.get(address.key)
    if known is None or known.exclusive != (address.kind == "exclusive"):
        return False
    return session.unsubscribe(address.key)
