"""Topics that move to another home (DESIGN §3): nothing lost, nothing twice, order kept."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import Conflict, PartitionStopped, StorageError
from onelog.base.limits import MOVES_PER_STREAM_MAX
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    Message,
    Notice,
    OffsetCursor,
    QueueCursor,
    SessionCursor,
    StreamConfig,
)
from onelog.record.batch import Marker
from tests.support.brokers import (
    end,
    history,
    home_of,
    read_all,
    read_session,
    running,
    say,
    transaction,
)

DurableCursor = OffsetCursor | SessionCursor | QueueCursor
KINDS = ("offset", "session", "queue")
FILTERS = (["a/b"], ["a/#"], ["#"], ["a/b", "c"])


async def open_kind(broker: Broker, kind: str, filters: list[str]) -> DurableCursor:
    if kind == "offset":
        return await broker.cursors.open_offset("c", filters, principal=LOCAL)
    if kind == "session":
        return await broker.cursors.open_session(
            "c", filters, start=EARLIEST, window=1000, principal=LOCAL
        )
    return await broker.cursors.open_queue("c", filters, start=EARLIEST, principal=LOCAL)


def values(cursor: DurableCursor, topic: str = "a/b") -> list[str]:
    """What is new of a topic, settled."""
    if isinstance(cursor, OffsetCursor):
        records = read_all(cursor, 3)
        cursor.commit_read()
    elif isinstance(cursor, SessionCursor):
        records = read_session(cursor)
    else:
        records = []
        while cursor.reading.is_behind():
            for delivery in cursor.acquire("me", 3):
                cursor.ack(delivery.token)
                records.append(delivery.record)
    return [(row.value or b"").decode() for row in records if row.topic == topic]


def numbers(start: int, stop: int) -> list[str]:
    return [str(number) for number in range(start, stop)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("away", ["open", "closed", "restart"])
async def test_a_topic_that_a_new_stream_captures_is_read_in_order(
    tmp_path: Path, kind: str, filters: list[str], away: str
) -> None:
    """I5, I2: the cursor is open, closed, or the broker is restarted while the topic moves."""
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        await say(broker, "a/b", *numbers(0, 5))
        cursor = await open_kind(broker, kind, filters)
        seen = values(cursor)
        await say(broker, "a/b", *numbers(5, 25))
        await say(broker, "a/c", *numbers(0, 50))
        if away != "open":
            await broker.cursors.close_cursor(cursor)
        clock.advance(1)
        await broker.streams.create(StreamConfig(name="moved", captures=("a/b",), partitions=2))
        await say(broker, "a/b", *numbers(25, 40))
        if away == "open":
            seen += values(cursor)
            await say(broker, "a/b", *numbers(40, 45))
            assert seen + values(cursor) == numbers(0, 45)
            return
        if away == "closed":
            cursor = await open_kind(broker, kind, filters)
            await say(broker, "a/b", *numbers(40, 45))
            assert seen + values(cursor) == numbers(0, 45)
            return
    async with running(tmp_path, clock=clock) as broker:
        await say(broker, "a/b", *numbers(40, 45))
        cursor = await open_kind(broker, kind, filters)
        assert seen + values(cursor) == numbers(0, 45)


@pytest.mark.parametrize("filters", FILTERS)
async def test_a_new_cursor_reads_a_moved_topic_in_order(
    tmp_path: Path, filters: list[str]
) -> None:
    """I2, I5."""
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        await say(broker, "a/b", *numbers(0, 30))
        clock.advance(1)
        await broker.streams.create(StreamConfig(name="moved", captures=("a/+",), partitions=2))
        await say(broker, "a/b", *numbers(30, 60))
        want = [f"a/b={number}" for number in numbers(0, 60)]
        assert await history(broker, *filters) == want
    async with running(tmp_path, clock=clock) as broker:
        assert await history(broker, *filters) == want


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filters", FILTERS)
async def test_a_topic_that_moves_there_and_back_is_read_in_order(
    tmp_path: Path, kind: str, filters: list[str]
) -> None:
    """I5: an existing stream comes to capture it, then lets it go again."""
    async with running(tmp_path) as broker:
        other = StreamConfig(name="other", captures=("x", "y/#"))
        await broker.streams.create(other)
        cursor = await open_kind(broker, kind, filters)
        await say(broker, "y/1", *numbers(0, 7))
        await say(broker, "a/b", *numbers(0, 10))
        await broker.streams.alter(msgspec.structs.replace(other, captures=("x", "y/#", "a/b")))
        await say(broker, "a/b", *numbers(10, 20))
        await broker.streams.alter(other)
        await say(broker, "a/b", *numbers(20, 30))
        assert values(cursor) == numbers(0, 30)
        assert await history(broker, "a/b") == [f"a/b={number}" for number in numbers(0, 30)]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("restarts", [(2,), (1, 2), (0, 1, 2, 3)])
async def test_moves_there_and_back_are_read_in_order_over_restarts(
    tmp_path: Path, filters: list[str], restarts: tuple[int, ...]
) -> None:
    """I5: what came before what is kept with the streams; their age would tell it wrong."""
    other = StreamConfig(name="other", captures=("x", "y/#"))
    steps = [other, msgspec.structs.replace(other, captures=("x", "a/b")), other]
    written = 0
    for number in range(4):
        if number == 0 or number - 1 in restarts:
            opened = running(tmp_path)
            broker = await opened.__aenter__()
        if number == 0:
            await broker.streams.create(other)
        else:
            await broker.streams.alter(steps[number - 1])
        await say(broker, "a/b", *numbers(written, written + 10))
        written += 10
        assert await history(broker, *filters) == [f"a/b={row}" for row in range(written)]
        if number in restarts:
            await opened.__aexit__(None, None, None)
    if 3 in restarts:
        async with running(tmp_path) as broker:
            assert await history(broker, *filters) == [f"a/b={row}" for row in range(written)]
    else:
        await opened.__aexit__(None, None, None)


@pytest.mark.parametrize("filters", FILTERS)
async def test_a_move_whose_offsets_were_not_kept_is_read_in_order_after_the_restart(
    tmp_path: Path, filters: list[str]
) -> None:
    """I5, I9: the store failed, or the process ended, right after the change took effect."""
    other = StreamConfig(name="other", captures=("x",))
    async with running(tmp_path) as broker:
        await broker.streams.create(other)
        await say(broker, "a/b", *numbers(0, 10))
        await say(broker, "x", *numbers(0, 10))
        real, calls = broker.streams._save, 0

        async def only_once(*rows: object, **options: object) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                await say(broker, "a/b", *numbers(10, 20))  # after the plan, before its effect
                await real(*rows, **options)  # type: ignore[arg-type]
            else:
                raise StorageError("the disk is full")

        broker.streams._save = only_once  # type: ignore[method-assign,assignment]
        with pytest.raises(StorageError):
            await broker.streams.alter(msgspec.structs.replace(other, captures=("x", "a/b")))
        await say(broker, "a/b", *numbers(20, 30))
        assert [row for row in await history(broker, *filters) if row[0] == "a"] == [
            f"a/b={row}" for row in range(30)
        ]
    async with running(tmp_path) as broker:
        await say(broker, "a/b", *numbers(30, 40))
        found = [row for row in await history(broker, *filters) if row[0] == "a"]
        assert found == [f"a/b={row}" for row in range(40)]
        moves = broker.streams.get("other").record.moves
        assert [move.is_exact for move in moves] == [True]


async def test_a_topic_that_is_written_first_while_its_stream_is_made_is_read_in_order(
    tmp_path: Path,
) -> None:
    """I5: nobody could know of it when the change was written down."""
    async with running(tmp_path) as broker:
        real, calls = broker.streams._save, 0

        async def late(*rows: object, **options: object) -> None:
            nonlocal calls
            calls += 1
            await real(*rows, **options)  # type: ignore[arg-type]
            if calls == 1:
                await say(broker, "a/b", "0", "1")

        broker.streams._save = late  # type: ignore[method-assign,assignment]
        await broker.streams.create(StreamConfig(name="moved", captures=("a/b",)))
        await say(broker, "a/b", "2")
        assert calls == 3
        assert await history(broker, "#") == ["a/b=0", "a/b=1", "a/b=2"]
    async with running(tmp_path) as broker:
        assert await history(broker, "#") == ["a/b=0", "a/b=1", "a/b=2"]
        assert await history(broker, "a/b") == ["a/b=0", "a/b=1", "a/b=2"]


async def test_a_stream_for_a_topic_that_nobody_wrote_before_keeps_no_move(tmp_path: Path) -> None:
    """A Kafka topic costs what it did: one write to the store, and readers wait for nothing."""
    async with running(tmp_path) as broker:
        await say(broker, "a/b", *numbers(0, 10))
        await broker.streams.create(StreamConfig(name="orders", captures=("orders",)))
        assert broker.streams.get("orders").record.moves == ()
        assert broker.streams.get("orders").record.fixed_topic == "orders"


async def test_moves_that_nobody_waits_for_any_more_are_forgotten_and_their_number_is_bounded(
    tmp_path: Path,
) -> None:
    """I8."""
    other = StreamConfig(name="other", captures=("x",))
    both = msgspec.structs.replace(other, captures=("x", "a/b"))
    async with running(tmp_path) as broker:
        await broker.streams.create(other)
        for number in range(MOVES_PER_STREAM_MAX):
            await say(broker, "a/b", str(number))
            await broker.streams.alter(both)
            await broker.streams.alter(other)
        with pytest.raises(Conflict, match="100 times"):
            await broker.streams.alter(both)
        assert await history(broker, "a/b") == [f"a/b={row}" for row in range(MOVES_PER_STREAM_MAX)]
        stream, partition = home_of(broker, "a/b")
        await broker.delete_records(stream.name, partition.id, int(partition.end_offset))
        await say(broker, "a/b", "kept")
        await broker.streams.alter(both)
        assert len(broker.streams.get("other").record.moves) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filters", FILTERS)
async def test_two_moves_in_a_row_are_read_in_order(
    tmp_path: Path, kind: str, filters: list[str]
) -> None:
    """I5: nothing was read between the two."""
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        cursor = await open_kind(broker, kind, filters)
        await say(broker, "a/b", *numbers(0, 10))
        clock.advance(1)
        await broker.streams.create(StreamConfig(name="one", captures=("a/#",), partitions=3))
        await say(broker, "a/b", *numbers(10, 20))
        clock.advance(1)
        await broker.streams.create(StreamConfig(name="two", captures=("a/b",)))
        await say(broker, "a/b", *numbers(20, 30))
        assert values(cursor) == numbers(0, 30)
        await broker.streams.delete("two")
        await say(broker, "a/b", "home again")
        assert values(cursor) == ["home again"]


@pytest.mark.parametrize("filters", [["a/b"], ["#"]])
async def test_what_moved_waits_for_a_transaction_in_the_old_home(
    tmp_path: Path, filters: list[str]
) -> None:
    """I5: records of an open transaction come before those in the new home."""
    async with running(tmp_path) as broker:
        cursor = await broker.cursors.open_offset("c", filters, principal=LOCAL)
        old = await transaction(broker, "a/b", (3, 0, 0), "first")
        await broker.streams.create(StreamConfig(name="moved", captures=("a/b",)))
        await say(broker, "a/b", "second")
        assert values(cursor) == []
        end(old, 3, Marker.COMMIT)
        assert values(cursor) == ["first", "second"]


async def test_a_stopped_old_home_does_not_hold_back_the_new_one(tmp_path: Path) -> None:
    """I9."""
    async with running(tmp_path) as broker:
        await say(broker, "a/b", "unreachable")
        _stream, old = home_of(broker, "a/b")
        cursor = await broker.cursors.open_offset("c", ["#"], principal=LOCAL)
        await broker.streams.create(StreamConfig(name="moved", captures=("a/b",)))
        await say(broker, "a/b", "here")
        old.stop(PartitionStopped("it broke"))
        assert values(cursor) == ["here"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filters", FILTERS)
async def test_topics_of_a_stream_whose_partitions_grew_are_read_in_order(
    tmp_path: Path, kind: str, filters: list[str]
) -> None:
    """I5: topics change partition when there are more of them."""
    small = StreamConfig(name="s", captures=("a/#", "c"), partitions=2)
    async with running(tmp_path) as broker:
        await broker.streams.create(small)
        cursor = await open_kind(broker, kind, filters)
        await say(broker, "a/b", *numbers(0, 20))
        await say(broker, "a/x", *numbers(0, 30))
        await broker.streams.alter(msgspec.structs.replace(small, partitions=7))
        await say(broker, "a/b", *numbers(20, 40))
        await broker.streams.alter(msgspec.structs.replace(small, partitions=12))
        await say(broker, "a/b", *numbers(40, 60))
        assert values(cursor) == numbers(0, 60)
        assert await history(broker, "a/b") == [f"a/b={number}" for number in numbers(0, 60)]


async def test_a_stream_of_one_topic_keeps_it_for_old_records_when_it_captures_more(
    tmp_path: Path,
) -> None:
    """DESIGN §3; its old records carry no topic."""
    one = StreamConfig(name="one", captures=("a/b",), partitions=2)
    more = msgspec.structs.replace(one, captures=("a/b", "a/c"))
    async with running(tmp_path) as broker:
        await broker.streams.create(one)
        cursor = await broker.cursors.open_offset("c", ["a/+"], principal=LOCAL)
        await say(broker, "a/b", *numbers(0, 5))
        await broker.streams.alter(more)
        await say(broker, "a/c", *numbers(0, 100))
        await say(broker, "a/b", *numbers(5, 10))
        everything = read_all(cursor, 3)
        assert [row.value for row in everything if row.topic == "a/b"] == [
            b"%d" % number for number in range(10)
        ]
        assert sum(row.topic == "a/c" for row in everything) == 100
        assert len(everything) == 110
    async with running(tmp_path) as broker:
        assert await history(broker, "a/b") == [f"a/b={number}" for number in range(10)]
        assert await history(broker, "a/c") == [f"a/c={number}" for number in range(100)]


async def test_what_is_staged_when_a_stream_is_created_goes_first(tmp_path: Path) -> None:
    """I5: published before the change, written by it, read before what follows."""
    async with running(tmp_path) as broker:
        cursor = await broker.cursors.open_offset("c", ["#"], principal=LOCAL)
        done: list[object] = []
        real = broker.streams._apply

        def staged_in_the_last_moment(*facts: object) -> None:
            broker.publisher.publish([Message("a/b", b"0")], Notice(done.append), principal=LOCAL)
            real(*facts)  # type: ignore[arg-type]

        broker.streams._apply = staged_in_the_last_moment  # type: ignore[method-assign,assignment]
        await broker.streams.create(StreamConfig(name="moved", captures=("a/b",)))
        await say(broker, "a/b", "1")
        assert len(done) == 1
        assert [row.stream for row in read_all(cursor)] == ["main", "moved"]
