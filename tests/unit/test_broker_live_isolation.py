"""A listener of the live feed that raises: it gets what follows, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onelog.broker import (
    LOCAL,
    Broker,
    Durability,
    LiveSource,
    Message,
    Record,
    StreamConfig,
    live_sources,
)
from onelog.broker import live as module
from onelog.broker.live import LISTENER, READING, TOO_MANY, Live
from onelog.kernel import decode_batch, scan_batches
from onelog.record.batch import Marker, build_batch
from tests.logs import append_batches
from tests.support.brokers import end, home_of, put_batch, running, say, transaction

Check = Callable[[str, bytes], None]


class Picky:
    """Takes plain batches (or leaves all to the log), and raises where it is told to."""

    def __init__(self, broker: Broker, check: Check, *, takes: bool = True) -> None:
        self.check = check
        self.takes = takes
        self.seen: list[tuple[str, bytes]] = []
        self.held: set[int] = set()
        self.live = broker.new_live("test")
        self.live.start(self)

    def _take(self, source: LiveSource, offset: int, value: bytes | None) -> None:
        self.check(source.stream.name, value or b"")
        self.seen.append((source.stream.name, value or b""))
        source.position = offset + 1

    def deliver(self, source: LiveSource, data: bytes | bytearray) -> int:
        for info in scan_batches(data):
            if not self.takes or info.attributes:
                return source.position
            slices = decode_batch(data, info.position, None, False)
            for index in range(len(slices)):
                self._take(source, slices.offset(index), slices.value(index))
            source.position = info.last_offset + 1
        return source.position

    def deliver_records(self, source: LiveSource, records: list[Record]) -> None:
        for record in records:
            self._take(source, record.offset, record.value)

    def release(self, numbers: set[int]) -> set[int]:
        return numbers & self.held


def poison(*values: bytes) -> Check:
    def check(_stream: str, value: bytes) -> None:
        if value in values:
            raise ValueError(f"cannot take {value!r}")

    return check


def nothing(_stream: str, _value: bytes) -> None:
    """Raise nothing."""


@pytest.mark.parametrize("takes", [True, False])
async def test_a_listener_that_raises_at_a_record_gets_the_next_one_and_nobody_else_notices(
    tmp_path: Path, *, takes: bool
) -> None:
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("a",)))
        picky = Picky(broker, poison(b"2"), takes=takes)
        calm = Picky(broker, nothing)
        messages = [Message("a", b"%d" % number) for number in range(5)]
        published = await broker.publish_many(messages, principal=LOCAL)
        assert [row.offset for row in published] == [0, 1, 2, 3, 4], "the answer is unharmed"
        await say(broker, "a", "5")
        every = [("s", b"%d" % number) for number in range(6)]
        assert calm.seen == every
        assert picky.seen == [row for row in every if row[1] != b"2"]
        assert broker.troubles.count(LISTENER) == 1
        (row,) = broker.troubles.rows()
        assert (row.kind, row.place) == (LISTENER, "test s/0")
        assert row.facts == {"offset": 2, "topic": "a"}


@pytest.mark.parametrize("codec", [1, 4])
async def test_of_a_compressed_batch_only_the_record_that_raises_is_left_out(
    tmp_path: Path, codec: int
) -> None:
    """A1: up to 1,000 records behind it were lost, because the position had moved first."""
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("a",)))
        picky = Picky(broker, poison(b"0", b"1500", b"2999"))
        rows = [(None, b"k", b"%d" % number, (), 0) for number in range(3000)]
        data = bytearray(build_batch(rows, codec=codec))
        await put_batch(broker, broker.streams.get("s"), 0, data)
        await say(broker, "a", "last")
        left = {b"0", b"1500", b"2999"}
        expected = [value for _t, _k, value, _h, _time in rows if value not in left]
        assert [value for _stream, value in picky.seen] == [*expected, b"last"]
        assert broker.troubles.count(LISTENER) == 3


async def test_of_a_transaction_only_the_record_that_raises_is_left_out(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        picky = Picky(broker, poison(b"bad"))
        partition = await transaction(broker, "a/b", (3, 0, 0), "one", "bad", "two")
        assert picky.seen == []
        end(partition, 3, Marker.COMMIT)
        await say(broker, "a/b", "after")
        assert [value for _stream, value in picky.seen] == [b"one", b"two", b"after"]


async def test_a_listener_that_raises_once_over_a_batch_loses_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("a",)))
        failures = [ValueError("once")]

        def check(_stream: str, value: bytes) -> None:
            if value == b"1" and failures:
                raise failures.pop()

        picky = Picky(broker, check)
        await broker.publish_many(
            [Message("a", b"%d" % number) for number in range(4)], principal=LOCAL
        )
        assert [value for _stream, value in picky.seen] == [b"0", b"1", b"2", b"3"]
        assert broker.troubles.count(LISTENER) == 1


async def test_a_gap_in_what_is_fed_is_read_from_the_log(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("a",)))
        picky = Picky(broker, nothing)
        (source,) = [row for row in picky.live.sources() if row.stream.name == "s"]
        source.partition.unfollow(source)
        await say(broker, "a", "unheard")
        source.partition.follow(source)
        await say(broker, "a", "heard")
        assert [value for _stream, value in picky.seen] == [b"unheard", b"heard"]


async def test_a_transaction_that_was_open_at_the_start_comes_when_it_is_committed(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        partition = await transaction(broker, "a/b", (3, 0, 0), "open")
        picky = Picky(broker, nothing)
        await say(broker, "a/b", "plain")
        assert picky.seen == [], "order: it comes first"
        end(partition, 3, Marker.COMMIT)
        assert [value for _stream, value in picky.seen] == [b"open", b"plain"]


async def test_what_becomes_visible_while_a_listener_is_called_comes_after_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        config = StreamConfig(name="s", captures=("a",), durability=Durability.OS)
        await broker.streams.create(config)
        stream, partition = home_of(broker, "a")

        def check(_stream: str, value: bytes) -> None:
            if value == b"first":
                data = bytearray(build_batch([(None, b"a", b"nested", (), 0)]))
                append_batches(partition, data)

        picky = Picky(broker, check)
        assert stream.name == "s"
        await broker.publish_many(
            [Message("a", b"first"), Message("a", b"second")], principal=LOCAL
        )
        assert [value for _stream, value in picky.seen] == [b"first", b"second", b"nested"]


async def test_a_batch_that_cannot_be_read_is_told_of_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("a",)))
        picky = Picky(broker, nothing, takes=False)
        read = module.read_records

        def broken(
            wanted: object, source: object, position: int, *args: object, upto: int
        ) -> object:
            if position <= 1 < upto:
                raise MemoryError("no room")
            return read(wanted, source, position, *args, upto=upto)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "read_records", broken)
        for value in ("0", "1", "2"):
            await say(broker, "a", value)
        assert [value for _stream, value in picky.seen] == [b"0", b"2"]
        assert broker.troubles.count(READING) == 1


# -- numbers


async def test_numbers_of_deleted_streams_are_given_again_once_nobody_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B: every partition of a process's life had a number of its own."""
    monkeypatch.setattr(live_sources, "GONE_MAX", 4)
    async with running(tmp_path) as broker:
        picky = Picky(broker, nothing)
        first = len(picky.live.keys)
        held: int | None = None
        for number in range(40):
            name = f"s{number}"
            await broker.streams.create(StreamConfig(name=name, captures=(name,)))
            await say(broker, name, "x")
            assert picky.seen[-1] == (name, b"x")
            source = picky.live.find((broker.streams.get(name).record.id, 0))
            assert source is not None
            if held is None:
                held = source.number
                picky.held.add(held)
                kept = source
            else:
                assert source.number != held, "somebody holds places in it"
            await broker.streams.delete(name)
        assert held is not None
        assert picky.live.source(held) is kept
        assert len(picky.live.keys) <= first + 6


async def test_more_partitions_than_numbers_are_told_of_and_the_others_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        picky = Picky(broker, nothing)
        monkeypatch.setattr(live_sources, "NUMBERS_MAX", len(picky.live.keys) + 1)
        for name in ("one", "two"):
            await broker.streams.create(StreamConfig(name=name, captures=(name,)))
        await say(broker, "one", "1")
        await say(broker, "two", "2")
        assert picky.seen == [("one", b"1")]
        assert [row.kind for row in broker.troubles.standing()] == [TOO_MANY]
        await broker.streams.delete("one")
        assert broker.troubles.standing() == []
        await say(broker, "two", "3")
        assert picky.seen[-1] == ("two", b"3")


async def test_a_feed_that_is_stopped_can_be_started_by_another(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        one = Picky(broker, nothing)
        await say(broker, "a", "1")
        one.live.stop()
        await say(broker, "a", "2")
        two = Picky(broker, nothing)
        two.live.stop()
        assert isinstance(one.live, Live)
        one.live.start(two)
        await say(broker, "a", "3")
        assert [value for _stream, value in one.seen] == [b"1"]
        assert [value for _stream, value in two.seen] == [b"3"]
        assert not broker.streams.get("main").partitions[0].visible.feeds[1:]
