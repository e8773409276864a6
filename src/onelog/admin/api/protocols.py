"""Operations on what single protocols have: sessions, retained messages, wills, groups, queues."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from onelog.admin.api.cursor_moves import seek_value
from onelog.admin.api.cursor_sight import CursorSight, sees_queue
from onelog.admin.api.declaring import (
    NOTHING,
    OPERATOR,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import (
    Page,
    PageQuery,
    SearchQuery,
    choose,
    contains,
    encode_key,
    full_page,
)
from onelog.admin.api.peeking import MessageShown, Peek, shown
from onelog.admin.api.sight import Sight
from onelog.admin.api.streams import after_number
from onelog.base.errors import NotAuthorized, NotFound
from onelog.base.topics import check_filter
from onelog.broker import SessionRecord
from onelog.broker.showing import (
    BindingRow,
    ConsumerGroupRow,
    ExchangeRow,
    GroupDesk,
    QueueDesk,
    QueueRow,
    RetainingDesk,
    TransactionRow,
    WillRow,
)

_VALUE_BYTES = 4096


class SessionShown(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a client."""

    client_id: str
    protocol: str
    owner: str
    attached: bool
    """Whether a connection speaks for it now."""
    expiry_ms: int | None
    """How long it outlives its connection; null: for ever."""
    detached_ms: int | None
    cursors: list[str]


class RetainedQuery(PageQuery, frozen=True, kw_only=True):
    """Which retained messages."""

    filter: Annotated[str, Meta(min_length=1, max_length=4096, description="Topic or filter.")] = (
        "#"
    )


class GroupSeek(ApiInput, frozen=True, kw_only=True):
    """Where a group is to go on."""

    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    """As Kafka names it."""
    partition: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """null: every partition."""
    to: Literal["earliest", "latest", "time", "offset"]
    value: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    """The time in ms since the epoch, or the offset; null for earliest and latest."""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages were settled."""

    messages: int


class ProtocolOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """What is asked where."""
        return [*self._mqtt_table(), *self._kafka_table(), *self._amqp_table()]

    def _mqtt_table(self) -> list[AnyOperation]:
        return [
            ApiOperation(
                method="GET", path="/sessions", role=VIEWER, tag="sessions",
                summary="Sessions of clients, by client id.", query=SearchQuery,
                answer=Page[SessionShown], handler=self.sessions,
            ),
            ApiOperation(
                method="DELETE", path="/sessions/{client}", role=OPERATOR, tag="sessions",
                summary="End a session that has no connection now.", answer=NOTHING, status=204,
                handler=self.end_session,
            ),
            ApiOperation(
                method="GET", path="/mqtt/retained", role=VIEWER, tag="mqtt",
                summary="Retained messages of a filter.", query=RetainedQuery,
                answer=Page[MessageShown], handler=self.retained,
            ),
            ApiOperation(
                method="GET", path="/mqtt/wills", role=VIEWER, tag="mqtt",
                summary="Wills that are kept, by client id.", query=SearchQuery,
                answer=Page[WillRow], handler=self.wills,
            ),
        ]  # fmt: skip

    def _kafka_table(self) -> list[AnyOperation]:
        return [
            ApiOperation(
                method="GET", path="/kafka/groups", role=VIEWER, tag="kafka",
                summary="Consumer groups by name.", query=SearchQuery,
                answer=Page[ConsumerGroupRow], handler=self.groups,
            ),
            ApiOperation(
                method="GET", path="/kafka/groups/{group}", role=VIEWER, tag="kafka",
                summary="One consumer group.", answer=ConsumerGroupRow, handler=self.group,
            ),
            ApiOperation(
                method="POST", path="/kafka/groups/{group}/seek", role=OPERATOR, tag="kafka",
                summary="Let a group without members go on elsewhere.", body=GroupSeek,
                answer=ConsumerGroupRow, handler=self.seek_group,
            ),
            ApiOperation(
                method="DELETE", path="/kafka/groups/{group}", role=OPERATOR, tag="kafka",
                summary="Forget a group without members.", answer=NOTHING, status=204,
                handler=self.delete_group,
            ),
            ApiOperation(
                method="GET", path="/kafka/transactions", role=VIEWER, tag="kafka",
                summary="Transactional ids by name.", query=SearchQuery,
                answer=Page[TransactionRow], handler=self.transactions,
            ),
            ApiOperation(
                method="POST", path="/kafka/transactions/{transaction}/abort", role=OPERATOR,
                tag="kafka", summary="Abort an open transaction and fence its producer.",
                answer=TransactionRow, handler=self.abort_transaction,
            ),
        ]  # fmt: skip

    def _amqp_table(self) -> list[AnyOperation]:
        queue = "/amqp/queues/{vhost}/{queue}"
        return [
            ApiOperation(
                method="GET", path="/amqp/exchanges", role=VIEWER, tag="amqp",
                summary="Exchanges by virtual host and name.", query=SearchQuery,
                answer=Page[ExchangeRow], handler=self.exchanges,
            ),
            ApiOperation(
                method="GET", path="/amqp/queues", role=VIEWER, tag="amqp",
                summary="Queues by virtual host and name.", query=SearchQuery,
                answer=Page[QueueRow], handler=self.queues,
            ),
            ApiOperation(
                method="GET", path="/amqp/bindings", role=VIEWER, tag="amqp",
                summary="Bindings that somebody made.", query=SearchQuery,
                answer=Page[BindingRow], handler=self.bindings,
            ),
            ApiOperation(
                method="POST", path=queue + "/purge", role=OPERATOR, tag="amqp",
                summary="Settle all that waits in a queue; the log keeps the messages.",
                answer=Purged, handler=self.purge,
            ),
            ApiOperation(
                method="DELETE", path=queue, role=OPERATOR, tag="amqp",
                summary="Delete a queue with what waits in it.", answer=NOTHING, status=204,
                handler=self.delete_queue,
            ),
        ]  # fmt: skip

    # -- MQTT

    async def sessions(self, call: ApiCall[SearchQuery, None]) -> Page[SessionShown]:
        """A page of sessions."""
        query, sessions = call.query, self._desk.broker.sessions
        sessions.check_known()
        sight = self._desk.sight(call.caller)
        found = await choose(
            self._desk.share,
            sessions.all(),
            query,
            lambda row: row[0].client_id,
            kind=str,
            wanted=lambda row: (
                contains(query.search, row[0].client_id, row[0].owner)
                and _sees_session(sight, row[0])
            ),
        )
        rows = [
            SessionShown(
                client_id=record.client_id,
                protocol=record.protocol,
                owner=record.owner,
                attached=attached,
                expiry_ms=None if record.expiry_ms < 0 else record.expiry_ms,
                detached_ms=record.detached_at_ms,
                cursors=list(record.cursors),
            )
            for record, attached in found
        ]
        return full_page(query, rows, lambda row: row.client_id)

    async def end_session(self, call: ApiCall[NoQuery, None]) -> None:
        """End a session."""
        client, sessions = call.names["client"], self._desk.broker.sessions
        record = sessions.get(client)
        if record is not None and not _sees_session(self._desk.sight(call.caller), record):
            raise NotFound(f"there is no session {client!r}")
        await sessions.end(client)

    async def retained(self, call: ApiCall[RetainedQuery, None]) -> Page[MessageShown]:
        """A page of retained messages, in the order in which their topics came."""
        query, desk = call.query, cast("RetainingDesk", self._desk.desk("mqtt"))
        check_filter(query.filter)
        look = Peek(self._desk.broker, self._desk.share, call.caller, query.filter)
        after = after_number(query)
        items: list[MessageShown] = []
        for number in desk.retained(query.filter):
            if number <= after:
                continue
            record = await desk.retained_record(number)
            if record is not None and look.may_have(record):
                if len(items) == query.limit:
                    return Page(items=items, next_cursor=encode_key(after))
                items.append(shown(record, _VALUE_BYTES))
            after = number
            await self._desk.share.breathe()
        return Page(items=items, next_cursor=None)

    async def wills(self, call: ApiCall[SearchQuery, None]) -> Page[WillRow]:
        """A page of wills."""
        query, desk = call.query, cast("RetainingDesk", self._desk.desk("mqtt"))
        sight = self._desk.sight(call.caller)
        found = await choose(
            self._desk.share,
            desk.wills(),
            query,
            lambda row: row.client_id,
            kind=str,
            wanted=lambda row: (
                contains(query.search, row.client_id, row.topic, row.user)
                and sight.topic(row.topic)
            ),
        )
        return full_page(query, found, lambda row: row.client_id)

    # -- Kafka

    @property
    def _kafka(self) -> GroupDesk:
        return cast("GroupDesk", self._desk.desk("kafka"))

    async def groups(self, call: ApiCall[SearchQuery, None]) -> Page[ConsumerGroupRow]:
        """A page of groups."""
        query, desk = call.query, self._kafka
        seen = await CursorSight.open(self._desk, call.caller)
        names = await choose(
            self._desk.share,
            desk.group_names(),
            query,
            lambda name: name,
            kind=str,
            wanted=lambda name: contains(query.search, name) and seen.sight.cursor(f"group/{name}"),
        )
        known = set(desk.group_names())
        rows = []
        for name in names:
            if name in known:
                rows.append(_group_shown(seen, desk.group(name)))
            await self._desk.share.breathe()
        return full_page(query, rows, lambda row: row.name)

    async def group(self, call: ApiCall[NoQuery, Any]) -> ConsumerGroupRow:
        """One group."""
        seen = await CursorSight.open(self._desk, call.caller)
        return _group_shown(seen, self._kafka.group(self._group(call)))

    def _group(self, call: ApiCall[NoQuery, Any]) -> str:
        """The name of the group of a call. Raises NotFound when the caller sees none."""
        name = call.names["group"]
        if not self._desk.sight(call.caller).cursor(f"group/{name}"):
            raise NotFound(f"there is no group {name!r}; GET /api/v1/kafka/groups lists them")
        return name

    async def seek_group(self, call: ApiCall[NoQuery, GroupSeek]) -> ConsumerGroupRow:
        """Let a group go on elsewhere."""
        name, body = self._group(call), call.body
        value = seek_value(body.to, body.value)
        (await CursorSight.open(self._desk, call.caller)).need_kafka_topic(body.topic)
        await self._kafka.seek_group(name, body.topic, body.partition, body.to, value)
        return await self.group(call)

    async def delete_group(self, call: ApiCall[NoQuery, None]) -> None:
        """Forget a group."""
        await self._kafka.delete_group(self._group(call))

    async def transactions(self, call: ApiCall[SearchQuery, None]) -> Page[TransactionRow]:
        """A page of transactional ids."""
        query = call.query
        seen = await CursorSight.open(self._desk, call.caller)
        found = await choose(
            self._desk.share,
            self._kafka.transactions(),
            query,
            lambda row: row.id,
            kind=str,
            wanted=lambda row: (
                contains(query.search, row.id, row.state)
                and seen.sight.cursor(f"transaction/{row.id}")
            ),
        )
        rows = [_transaction_shown(seen, row) for row in found]
        return full_page(query, rows, lambda row: row.id)

    async def abort_transaction(self, call: ApiCall[NoQuery, None]) -> TransactionRow:
        """Abort an open transaction. What it wrote is lost to everybody: the caller has to see all
        of it."""
        name = call.names["transaction"]
        seen = await CursorSight.open(self._desk, call.caller)
        row = self._kafka.transaction(name) if seen.sight.cursor(f"transaction/{name}") else None
        if row is None:
            raise NotFound(f"there is no transactional id {name!r}")
        if _transaction_shown(seen, row) != row:
            raise NotAuthorized(
                f"the transaction of {name!r} writes to topics or groups on which"
                f" {call.caller.name} has no right, and so may not be aborted"
            )
        await self._kafka.abort_transaction(name)
        return self._kafka.transaction(name)

    # -- AMQP

    @property
    def _amqp(self) -> QueueDesk:
        return cast("QueueDesk", self._desk.desk("amqp"))

    async def exchanges(self, call: ApiCall[SearchQuery, None]) -> Page[ExchangeRow]:
        """A page of exchanges."""
        query, sight = call.query, self._desk.sight(call.caller)
        found = await choose(
            self._desk.share,
            self._amqp.exchanges(),
            query,
            lambda row: [row.vhost, row.name],
            kind=list[str],
            wanted=lambda row: (
                contains(query.search, row.name, row.vhost) and sight.topic(row.filter)
            ),
        )
        return full_page(query, found, lambda row: [row.vhost, row.name])

    async def queues(self, call: ApiCall[SearchQuery, None]) -> Page[QueueRow]:
        """A page of queues."""
        query, sight = call.query, self._desk.sight(call.caller)
        found = await choose(
            self._desk.share,
            self._amqp.queues(),
            query,
            lambda row: [row.vhost, row.name],
            kind=list[str],
            wanted=lambda row: (
                contains(query.search, row.name, row.vhost) and sees_queue(sight, row)
            ),
        )
        return full_page(query, found, lambda row: [row.vhost, row.name])

    async def bindings(self, call: ApiCall[SearchQuery, None]) -> Page[BindingRow]:
        """A page of bindings."""
        query, sight = call.query, self._desk.sight(call.caller)

        def key(row: BindingRow) -> list[str]:
            return [row.vhost, row.source, row.destination, row.destination_type, row.routing_key]

        found = await choose(
            self._desk.share,
            self._amqp.bindings(),
            query,
            key,
            kind=list[str],
            wanted=lambda row: (
                contains(query.search, row.source, row.destination, row.routing_key)
                and sight.topic(row.filter)
                and sight.topic(row.target)
            ),
        )
        return full_page(query, found, key)

    async def purge(self, call: ApiCall[NoQuery, None]) -> Purged:
        """Empty a queue."""
        return Purged(messages=self._amqp.purge(*await self._queue(call)))

    async def delete_queue(self, call: ApiCall[NoQuery, None]) -> None:
        """Delete a queue."""
        await self._amqp.delete_queue(*await self._queue(call))

    async def _queue(self, call: ApiCall[NoQuery, None]) -> tuple[str, str]:
        """The queue of a call. Raises NotFound when the caller sees none."""
        vhost, name, sight = call.names["vhost"], call.names["queue"], self._desk.sight(call.caller)
        if not sight.sees_all:
            for row in self._amqp.queues():
                if (row.vhost, row.name) == (vhost, name) and sees_queue(sight, row):
                    return vhost, name
                await self._desk.share.breathe()
            raise NotFound(f"there is no queue {name!r} in the virtual host {vhost!r}")
        return vhost, name


def _sees_session(sight: Sight, record: SessionRecord) -> bool:
    return sight.cursor(f"session/{record.client_id}") or sight.owns(record.owner)


def _group_shown(seen: CursorSight, row: ConsumerGroupRow) -> ConsumerGroupRow:
    """The part of a group that a caller sees."""
    positions = [place for place in row.positions if seen.sees_kafka_topic(place.topic)]
    return msgspec.structs.replace(row, positions=positions)


def _transaction_shown(seen: CursorSight, row: TransactionRow) -> TransactionRow:
    """The part of a transactional id that a caller sees."""
    if seen.sight.sees_all:
        return row
    places = [text for text in row.partitions if seen.sees_kafka_topic(text.rpartition("-")[0])]
    groups = [name for name in row.groups if seen.sight.cursor(f"group/{name}")]
    return msgspec.structs.replace(row, partitions=places, groups=groups)
