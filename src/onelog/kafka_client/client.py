"""The client itself: each request as a call, tried again while the broker is away.

Rules:
- A call returns what was asked or raises an OnelogError that names the topic or the server.
- A connection that breaks is made anew and the request is sent again, until `Access.timeout_s`
  has passed without success. The caller must accept that a request took effect twice; for writes
  the broker's sequence numbers see to it.
- What is posted is sent once: its answer is read later, in order, before anything else is asked.
- Not for several threads at once: a task has a client of its own.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, TypeVar

from onelog.base.errors import NotAuthorized, OnelogError, ProtocolViolation, Unavailable
from onelog.kafka_client import codes, messages
from onelog.kafka_client.access import Access
from onelog.kafka_client.apis import Api
from onelog.kafka_client.cold import ColdPage, ColdPart, cold_request, read_cold
from onelog.kafka_client.link import Link, open_link
from onelog.kafka_client.messages import (
    Fetched,
    Metadata,
    Named,
    Part,
    Produced,
    Producer,
    StreamTopics,
    Topic,
)
from onelog.kafka_client.wire import Reader
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row

PAUSE_S: Final = 0.05
"""How long to wait before the second try; doubled each time, up to the next."""
PAUSE_MAX_S: Final = 1.0
STORAGE_S: Final = 30.0
"""How long to try again at most when the broker cannot read or write a partition: nobody knows
whether its store comes back soon, or somebody has to repair something."""

T = TypeVar("T")


class Client:
    """A client of a broker's Kafka listener."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._link: Link | None = None
        self._ahead: bytes | None = None
        """A fetch that was sent and not read yet."""
        self._posted = 0
        """Produces that were sent and not read yet."""
        self._lacks_cold = False
        """Whether the broker does not know the cold request."""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; the next call connects again."""
        if self._link is not None:
            self._link.close()
        self._link = self._ahead = None
        self._posted = 0

    # -- requests

    def connect(self) -> None:
        """Connect and log in now, in one try; else the first call does it. Raises Unavailable."""
        if self._link is None:
            self._link = open_link(self.access)

    def fileno(self) -> int:
        """Of the connection, which is made if there is none; for those who wait for several."""
        self.connect()
        assert self._link is not None
        return self._link.fileno()

    def has_more(self) -> bool:
        """Whether bytes have come that nobody sees by waiting for the socket: those inside TLS."""
        return self._link is not None and self._link.has_more()

    def has_come(self) -> bool:
        """Whether an answer, or its beginning, is there to be read."""
        return self.has_more() or bool(select.select([self], (), (), 0)[0])

    def call(
        self,
        api: int,
        body: bytes,
        read: Callable[[Reader], T],
        *,
        version: int | None = None,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> T:
        """Send a request and read its answer with `read`.

        Whatever raises a retriable error, `read` too, is tried again, for so long as `access`
        says, or `timeout_s`.
        """

        def work(link: Link) -> T:
            self._drop_ahead(link)
            return read(link.ask(api, body, version=version, wait_s=wait_s))

        return self._try(work, timeout_s)

    def _drop_ahead(self, link: Link) -> None:
        if self._ahead is not None:
            self._ahead = None
            link.answer()

    def _try(self, work: Callable[[Link], T], timeout_s: float | None = None) -> T:
        assert not self._posted, "the answers to what was posted come first"
        ends = time.monotonic() + (self.access.timeout_s if timeout_s is None else timeout_s)
        pause_s, storage_ends = PAUSE_S, 0.0
        while True:
            try:
                if self._link is None:
                    self._link = open_link(self.access)
                return work(self._link)
            except OnelogError as error:
                if self._link is not None and self._link.broken:
                    self.close()
                if isinstance(error, codes.StorageAway):
                    storage_ends = storage_ends or time.monotonic() + STORAGE_S
                    ends = min(ends, storage_ends)
                if not error.retriable or time.monotonic() + pause_s > ends:
                    raise
            # A broker that is away cannot wake us.
            threading.Event().wait(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def refusal(self, code: int, what: str, right: str, said: str | None = None) -> OnelogError:
        """The error of a code. If the broker does not say so itself, it names who lacks which
        right: most answers of Kafka have no room for words."""
        if not said and codes.meaning(code).kind is NotAuthorized:
            said = f"{self.access.who} may not do this: it needs the right {right}"
        return codes.refusal(code, what, said)

    # -- topics and offsets

    def topics(
        self,
        names: Iterable[str] | None = None,
        *,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> list[Topic]:
        """What the broker says of topics; of all that it lists when none are named."""
        return self.metadata(names, create=create, timeout_s=timeout_s).topics

    def metadata(
        self,
        names: Iterable[str] | None = None,
        *,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> Metadata:
        """The same, with the nodes."""
        body = messages.metadata_request(names, create=create)

        def read(reader: Reader) -> Metadata:
            found = messages.read_metadata(reader)
            for row in found.topics:
                if codes.meaning(row.code).passes:
                    raise codes.refusal(row.code, f"topic {row.name}")
            return found

        return self.call(Api.METADATA, body, read, timeout_s=timeout_s)

    def offsets(self, asked: Mapping[Part, int]) -> dict[Part, int]:
        """Per partition its offset at a time in ms, EARLIEST or LATEST; -1: nothing so late."""
        if not asked:
            return {}

        def read(reader: Reader) -> dict[Part, int]:
            found = messages.read_list_offsets(reader)
            for part in asked:
                code, _offset = messages.only(found, part)
                if code:
                    what = f"the offsets of {part[0]}-{part[1]}"
                    raise self.refusal(code, what, codes.topic_right("describe", part[0]))
            return {part: found[part][1] for part in asked}

        return self.call(Api.LIST_OFFSETS, messages.list_offsets_request(asked), read)

    def commit(self, group: str, offsets: Mapping[Part, int]) -> None:
        """Remember offsets under a group's name, where everybody sees its lag."""

        def read(reader: Reader) -> None:
            _check(messages.read_commit(reader), f"group {group}: the offset of")

        self.call(Api.OFFSET_COMMIT, messages.commit_request(group, offsets), read)

    def committed(self, group: str, parts: Iterable[Part]) -> dict[Part, int]:
        """The offsets of a group; partitions that it has none of are left out."""

        def read(reader: Reader) -> dict[Part, int]:
            code, found = messages.read_committed(reader)
            if code:
                raise codes.refusal(code, f"the offsets of group {group}")
            return {part: offset for part, offset in found.items() if offset >= 0}

        return self.call(Api.OFFSET_FETCH, messages.committed_request(group, parts), read)

    # -- reading

    def names(self, topic: str) -> list[Named]:
        """Which topic the records of each partition of a view have that do not carry it."""

        def read(reader: Reader) -> list[Named]:
            code, said, rows = messages.read_names(reader)
            if code:
                raise codes.refusal(code, f"the topics of {topic}", said)
            return rows

        return self.call(Api.NAMES, messages.names_request(topic), read)

    def stream_topics(self, stream: str) -> list[StreamTopics]:
        """Topics and partitions that show the records of a stream, each record once."""

        def read(reader: Reader) -> list[StreamTopics]:
            code, said, rows = messages.read_stream(reader)
            if code:
                what, right = f"the stream {stream}", codes.topic_right("subscribe", stream)
                raise self.refusal(code, what, right, said)
            return rows

        return self.call(Api.NAMES, messages.stream_request(stream), read)

    def cold(self, topic: str, partition: int, start: int, end: int) -> ColdPart | None:
        """The objects that hold records of a partition in [start, end); None: the broker has no
        store, or does not know the request."""
        rows: list[Row] = []
        aborted: dict[AbortedSpan, None] = {}
        at, lease = start, ""
        while True:
            page = self._cold_page(topic, partition, cold_request(topic, partition, at, end, lease))
            if page is None or page.store is None:
                return None
            rows += page.rows
            aborted.update(dict.fromkeys(page.aborted))
            if page.next is None:
                break
            if page.next <= at:
                raise ProtocolViolation(f"the broker tells the rows of {topic} in circles")
            at, lease = page.next, page.lease
        return ColdPart(
            rows=tuple(rows),
            end=rows[-1].end if rows else start,
            store=page.store,
            filter=page.filter,
            named=Named(*page.named),
            lease=page.lease,
            lease_ms=page.lease_ms,
            aborted=tuple(aborted),
            table=page.table,
        )

    def _cold_page(self, topic: str, partition: int, body: bytes) -> ColdPage | None:
        if self._lacks_cold:
            return None
        try:
            page = self.call(Api.COLD, body, read_cold, timeout_s=0.0)
        except Unavailable:
            self.topics([topic])  # a broker that is only away is waited for here
            try:
                page = self.call(Api.COLD, body, read_cold, timeout_s=0.0)
            except Unavailable:
                self._lacks_cold = True
                return None
        if page.error:
            what = f"the objects of {topic}-{partition}"
            right = codes.topic_right("subscribe", topic)
            raise self.refusal(page.error, what, right, page.message)
        return page

    def fetch(self, request: bytes, wait_s: float = 0.0) -> list[Fetched]:
        """The answer to a request that `messages.fetch_request` made.

        A partition that cannot be read just now is asked again while no other one has records;
        beside others that have, it counts as one whose records come later (`Fetched.is_coming`).
        """

        def work(link: Link) -> list[Fetched]:
            if self._ahead == request:
                self._ahead = None
                return _readable(messages.read_fetch(link.answer(wait_s)))
            self._drop_ahead(link)
            return _readable(messages.read_fetch(link.ask(Api.FETCH, request, wait_s=wait_s)))

        return self._try(work)

    def fetch_ahead(self, request: bytes) -> None:
        """Ask for what `fetch` is going to be called with, so that it comes meanwhile."""
        if self._link is not None and self._ahead is None:
            try:
                self._link.send(Api.FETCH, request)
            except OnelogError:
                self.close()  # `fetch` connects again and asks itself
            else:
                self._ahead = request

    def is_ahead(self, request: bytes) -> bool:
        """Whether this fetch is under way: asked ahead, not read, and its connection not lost."""
        return self._ahead == request

    # -- writing

    def init_producer(self, transactional_id: str | None, timeout_ms: int) -> Producer:
        """A producer id; ends what an earlier holder of the transactional id left open."""

        def read(reader: Reader) -> Producer:
            code, producer = messages.read_init_producer(reader)
            if code:
                what = f"transactional id {transactional_id}"
                right = f"consume on cursor:transaction/{transactional_id}"
                raise self.refusal(code, what, right)
            return producer

        body = messages.init_producer_request(transactional_id, timeout_ms)
        return self.call(Api.INIT_PRODUCER_ID, body, read)

    def add_partitions(
        self, transactional_id: str, producer: Producer, parts: Iterable[Part]
    ) -> None:
        """Take partitions into a transaction, before it writes to them. Raises NoTransactions."""

        def read(reader: Reader) -> None:
            found = messages.read_add_partitions(reader)
            barred = [part for part, code in found.items() if code == codes.POLICY_VIOLATION]
            if barred:
                raise codes.NoTransactions(barred)
            for (topic, number), code in found.items():
                if code:
                    what = f"transaction {transactional_id}: {topic}-{number}"
                    raise self.refusal(code, what, codes.topic_right("publish", topic))

        body = messages.add_partitions_request(transactional_id, producer, parts)
        self.call(Api.ADD_PARTITIONS_TO_TXN, body, read)

    def produce(
        self, batches: Mapping[Part, bytes | memoryview], transactional_id: str | None = None
    ) -> dict[Part, Produced]:
        """Append a batch to each partition; returns when they are durable or refused."""

        def read(reader: Reader) -> dict[Part, Produced]:
            found = messages.read_produce(reader)
            for part in batches:
                code, _offset, said = messages.only(found, part)
                if codes.meaning(code).passes:
                    raise codes.refusal(code, f"{part[0]}-{part[1]}", said)
            return found

        return self.call(Api.PRODUCE, messages.produce_request(batches, transactional_id), read)

    def post(self, batches: Mapping[Part, bytes | memoryview]) -> None:
        """Send what `produce` would and do not wait: `posted` reads the answer."""

        def work(link: Link) -> None:
            self._drop_ahead(link)
            link.send(Api.PRODUCE, messages.produce_request(batches, None))

        self.connect()
        self._once(work)
        self._posted += 1

    def posted(self) -> dict[Part, Produced]:
        """The answer to the oldest post that has none: durable or refused."""
        assert self._posted, "nothing was posted"
        found = self._once(lambda link: messages.read_produce(link.answer()))
        self._posted -= 1
        return found

    def _once(self, work: Callable[[Link], T]) -> T:
        assert self._link is not None
        try:
            return work(self._link)
        except OnelogError:
            self.close()  # whatever else was posted: nobody knows how it fared
            raise

    def end(self, transactional_id: str, producer: Producer, *, commit: bool) -> None:
        """Commit or abort a transaction."""

        def read(reader: Reader) -> None:
            code = messages.read_end(reader)
            if code:
                raise codes.refusal(code, f"transaction {transactional_id}")

        self.call(
            Api.END_TXN, messages.end_request(transactional_id, producer, commit=commit), read
        )


def _readable(found: list[Fetched]) -> list[Fetched]:
    """The rows of a fetch. Raises a retriable error when none has records, and one cannot be read
    just now."""
    failed = [at for at, row in enumerate(found) if codes.meaning(row.code).passes]
    if failed and not any(len(row.records) for row in found):
        row = found[failed[0]]
        raise codes.refusal(row.code, f"{row.topic}-{row.partition}")
    for at in failed:
        found[at] = found[at]._replace(code=codes.NONE, log_start=-1)
    return found


def _check(found: Mapping[Part, int], what: str) -> None:
    for (topic, partition), code in found.items():
        if code:
            raise codes.refusal(code, f"{what} {topic}-{partition}")
