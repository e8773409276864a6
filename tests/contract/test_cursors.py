"""What every kind of cursor keeps: one write, all the history, no change of the log, order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import Closed, CorruptBatch, PartitionStopped
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    Message,
    OffsetCursor,
    QueueCursor,
    Record,
    SessionCursor,
    Start,
    StreamConfig,
    TableCursor,
    TailCursor,
)
from onelog.record.batch import Marker
from tests.support.brokers import (
    client_batch,
    end,
    home_of,
    put_batch,
    read_all,
    read_session,
    running,
    say,
    spoken,
    topic_rows,
    transaction,
)

AnyCursor = TailCursor | OffsetCursor | SessionCursor | QueueCursor
KINDS = ("tail", "offset", "session", "queue")
FILTERS = ("site/a/t", "site/+/t", "site/#")
Opened = Callable[[Start], "asyncio.Future[AnyCursor]"]


async def open_kind(broker: Broker, kind: str, text: str, start: Start = EARLIEST) -> AnyCursor:
    desk = broker.cursors
    if kind == "tail":
        return desk.open_tail([text], start=start, principal=LOCAL)
    if kind == "offset":
        return await desk.open_offset(f"o {text}", [text], start=start, principal=LOCAL)
    if kind == "session":
        return await desk.open_session(
            f"s {text}", [text], start=start, window=1000, principal=LOCAL
        )
    return await desk.open_queue(f"q {text}", [text], start=start, principal=LOCAL)


def take(cursor: AnyCursor) -> list[Record]:
    """Everything that the cursor sees now, settled."""
    if isinstance(cursor, SessionCursor):
        return read_session(cursor)
    if isinstance(cursor, QueueCursor):
        found = []
        while True:
            more = cursor.acquire("c", 100)
            for delivery in more:
                cursor.ack(delivery.token)
                found.append(delivery.record)
            if not more and not cursor.reading.is_behind():
                return found
    return read_all(cursor)


def snapshot(broker: Broker) -> dict[str, list[bytes]]:
    """The bytes of every partition that belongs to users."""
    return {
        stream.name: [
            bytes(partition.read(partition.start_offset, 1 << 30))
            for partition in stream.partitions
        ]
        for stream in broker.streams.streams()
        if not stream.config.internal
    }


async def test_bytes_written_do_not_depend_on_how_many_cursors_exist(tmp_path: Path) -> None:
    """I1."""
    sizes = []
    for cursors in (0, 20):
        async with running(tmp_path / str(cursors)) as broker:
            for number in range(cursors):
                await broker.cursors.open_offset(f"o{number}", ["#"], principal=LOCAL)
                await broker.cursors.open_session(f"s{number}", ["site/+/t"], principal=LOCAL)
                await broker.cursors.open_queue(f"q{number}", ["site/a/t"], principal=LOCAL)
                await broker.cursors.open_table(f"t{number}", ["site/#"], principal=LOCAL)
                broker.cursors.open_tail(["#"], principal=LOCAL)
            for number in range(50):
                await say(broker, f"site/{'ab'[number % 2]}/t", str(number))
            for cursor in broker.cursors.open_cursors():
                if not isinstance(cursor, TableCursor):
                    assert isinstance(cursor, AnyCursor)
                    assert take(cursor)
            sizes.append(
                (
                    broker.streams.get("main").size_bytes,
                    sum(row.records_appended for row in broker.streams.get("main").partitions),
                )
            )
            assert (broker.streams.get("~cursors").size_bytes > 0) == (cursors > 0)
    assert sizes[0] == sizes[1]
    assert sizes[0][1] == 50


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", FILTERS)
async def test_a_cursor_opened_later_reads_the_history(
    tmp_path: Path, kind: str, text: str
) -> None:
    """I2: compressed by every codec, in committed transactions; nothing of aborted ones."""
    topic = "site/a/t"
    async with running(tmp_path) as broker:
        stream, partition = home_of(broker, topic)
        await say(broker, topic, "plain")
        await say(broker, "other/x", "no match")
        for codec in range(5):
            batch = client_batch(topic_rows(topic, f"c{codec}", f"d{codec}"), codec=codec)
            await put_batch(broker, stream, partition.id, batch)
        await transaction(broker, topic, (7, 0, 0), "aborted")
        await transaction(broker, topic, (8, 0, 0), "committed")
        end(partition, 7, Marker.ABORT)
        end(partition, 8, Marker.COMMIT)
        await say(broker, topic, "last")
        wanted = ["plain", *(f"{x}{codec}" for codec in range(5) for x in "cd")]
        wanted = [f"{topic}={value}" for value in [*wanted, "committed", "last"]]
        cursor = await open_kind(broker, kind, text)
        assert spoken(take(cursor)) == wanted
        assert take(cursor) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["site/a/t", "#"])
async def test_a_cursor_starts_at_a_time_or_an_offset(tmp_path: Path, kind: str, text: str) -> None:
    """I2."""
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        times = []
        for number in range(6):
            times.append(clock.now_ms())
            await say(broker, "site/a/t", str(number))
            clock.advance(10)
        by_time = await open_kind(broker, kind, text, Start("time", times[3] - 1))
        assert [record.value for record in take(by_time)] == [b"3", b"4", b"5"]
        await broker.cursors.close_cursor(by_time)
        if kind != "tail":
            await broker.cursors.delete(by_time.name)
        by_offset = await open_kind(broker, kind, text, Start("offset", 4))
        assert [record.value for record in take(by_offset)] == [b"4", b"5"]
        await say(broker, "site/a/t", "new")
        assert [record.value for record in take(by_offset)] == [b"new"]


async def test_a_table_opened_later_knows_the_history(tmp_path: Path) -> None:
    """I2."""
    async with running(tmp_path) as broker:
        await say(broker, "site/a/t", "1", "2")
        await say(broker, "site/b/t", "3")
        partition = await transaction(broker, "site/b/t", (5, 0, 0), "aborted")
        end(partition, 5, Marker.ABORT)
        table = await broker.cursors.open_table("table", ["site/#"], principal=LOCAL)
        assert sorted(spoken(table.find("#"))) == ["site/a/t=2", "site/b/t=3"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["site/a/t", "#"])
async def test_an_open_transaction_is_seen_when_it_commits_and_nobody_spins_until_then(
    tmp_path: Path, kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: committed data only; waiting is by wake-up."""
    async with running(tmp_path) as broker:
        cursor = await open_kind(broker, kind, text)
        partition = await transaction(broker, "site/a/t", (9, 0, 0), "decided")
        await say(broker, "site/a/t", "behind it")
        reads = []
        real = type(cursor.reading).read

        def counted(*args: object, **kwargs: object) -> object:
            reads.append(args)
            return real(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(type(cursor.reading), "read", counted)
        if isinstance(cursor, QueueCursor):
            waiting = asyncio.ensure_future(cursor.next("c", 10))
        else:
            waiting = asyncio.ensure_future(cursor.next(10))  # type: ignore[arg-type]
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert len(reads) <= 2
        await say(broker, "site/b/t", "elsewhere") if text != "#" else None
        end(partition, 9, Marker.COMMIT)
        found = await asyncio.wait_for(waiting, 5)
        records = [getattr(one, "record", one) for one in found]
        assert [record.value for record in records] == [b"decided", b"behind it"]
        assert len(reads) <= 6


async def test_settling_in_one_cursor_changes_no_other_and_not_the_log(tmp_path: Path) -> None:
    """I3."""
    async with running(tmp_path) as broker:
        await say(broker, "t", *map(str, range(10)))
        before = snapshot(broker)
        one = await broker.cursors.open_queue("one", ["t"], start=EARLIEST, principal=LOCAL)
        two = await broker.cursors.open_queue("two", ["t"], start=EARLIEST, principal=LOCAL)
        session = await broker.cursors.open_session(
            "session", ["t"], start=EARLIEST, principal=LOCAL
        )
        offset = await broker.cursors.open_offset("offset", ["t"], principal=LOCAL)
        other = await broker.cursors.open_offset("other", ["#"], principal=LOCAL)
        for number, delivery in enumerate(one.acquire("c", 10)):
            if number % 3 == 0:
                one.ack(delivery.token)
            elif number % 3 == 1:
                one.release(delivery.token)
            else:
                one.reject(delivery.token)
        for delivery in session.fetch():
            session.acknowledge(delivery.packet_id)
        offset.fetch()
        offset.commit_read()
        await broker.cursors.save(one, session, offset)
        await broker.cursors.delete("session")
        assert [row.record.value for row in two.acquire("c", 99)] == [b"%d" % n for n in range(10)]
        assert [row.value for row in other.fetch()] == [b"%d" % n for n in range(10)]
        again = await broker.cursors.open_session("session", ["t"], start=EARLIEST, principal=LOCAL)
        assert len(again.fetch()) == 10
        assert snapshot(broker) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_a_topic_is_read_in_the_order_it_was_written(tmp_path: Path, kind: str) -> None:
    """I5: by a wildcard cursor over many topics and partitions too."""
    async with running(tmp_path) as broker:
        cursor = await open_kind(broker, kind, "#")
        seen: dict[str, list[int]] = {}
        for turn in range(5):
            messages = [
                Message(f"t/{number % 7}", str(turn * 100 + number).encode())
                for number in range(50)
            ]
            await broker.publish_many(messages, principal=LOCAL)
            for record in take(cursor):
                seen.setdefault(record.topic, []).append(int(record.value or b""))
        assert sum(map(len, seen.values())) == 250
        assert all(values == sorted(values) for values in seen.values())


async def test_one_stopped_partition_of_many_does_not_silence_a_cursor(tmp_path: Path) -> None:
    """I9: it shows as stopped; the others are read, also by who waits already."""
    async with running(tmp_path) as broker:
        main = broker.streams.get("main")
        home = main.partition_of(b"t")
        victim = next(row for row in main.partitions if row is not home)
        cursor = broker.cursors.open_tail(["#"], principal=LOCAL)
        queue = await broker.cursors.open_queue("q", ["#"], principal=LOCAL)
        waiting = asyncio.ensure_future(cursor.next())
        working = asyncio.ensure_future(queue.next("c"))
        await asyncio.sleep(0)
        victim.stop_damaged(0, CorruptBatch("bits"))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert not working.done()
        await say(broker, "t", "alive")
        assert [row.value for row in await asyncio.wait_for(waiting, 5)] == [b"alive"]
        assert len(await asyncio.wait_for(working, 5)) == 1
        late = await broker.cursors.open_offset(
            "late", ["#"], start=Start("time", 0), principal=LOCAL
        )
        assert [row.value for row in read_all(late)] == [b"alive"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cursor_on_a_stopped_partition_gets_the_error(tmp_path: Path, kind: str) -> None:
    """I9: who waits, and who asks later; nobody hangs or spins."""

    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="one", captures=("t",), engine="memory"))
        cursor = await open_kind(broker, kind, "t")
        broker.streams.get("one").partitions[0].stop(PartitionStopped("it broke"))
        source = cursor.reading.sources.sources
        if len(source) > 1:  # main may hold older records of the topic
            for row in source:
                row.partition.stop(PartitionStopped("it broke"))
        with pytest.raises(PartitionStopped):
            take(cursor)
        with pytest.raises(PartitionStopped):
            if isinstance(cursor, QueueCursor):
                await asyncio.wait_for(cursor.next("c"), 5)
            else:
                await asyncio.wait_for(cursor.next(), 5)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_cursor_wakes_who_waits_on_it(tmp_path: Path, kind: str) -> None:

    async with running(tmp_path) as broker:
        cursor = await open_kind(broker, kind, "t")
        call = cursor.next("c") if isinstance(cursor, QueueCursor) else cursor.next()
        waiting = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        await broker.cursors.close_cursor(cursor)
        with pytest.raises(Closed):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(Closed):
            take(cursor)


@pytest.mark.parametrize("kind", KINDS)
async def test_waits_that_time_out_or_are_cancelled_leave_nothing_behind(
    tmp_path: Path, kind: str
) -> None:
    """I8."""
    async with running(tmp_path) as broker:
        cursor = await open_kind(broker, kind, "#")

        def call(timeout_s: float | None) -> asyncio.Future[object]:
            if isinstance(cursor, QueueCursor):
                return asyncio.ensure_future(cursor.next("c", 1, timeout_s))
            return asyncio.ensure_future(cursor.next(1, timeout_s))

        for _ in range(200):
            assert await call(0.0) == []
        for _ in range(200):
            waiting = call(None)
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        partitions = broker.streams.get("main").partitions
        assert sum(row.visible.waiting for row in partitions) == 0
        assert all(len(row.visible.stable_waiters.rows) <= 65 for row in partitions)
        assert not cursor.reading._waits
        assert not cursor.reading._registry._listeners
        if isinstance(cursor, QueueCursor):
            assert not cursor._listeners
        await say(broker, "t", "still works")
        assert len(await call(5.0)) == 1  # type: ignore[arg-type]


async def test_a_deleted_stream_takes_its_records_and_nothing_else(tmp_path: Path) -> None:
    """Records handed out, returned, in flight or in a table vanish; the cursors go on."""
    async with running(tmp_path) as broker:
        await broker.streams.create(StreamConfig(name="gone", captures=("a/#",)))
        await say(broker, "a/1", "x", "y", "z")
        await say(broker, "b/1", "stays")
        queue = await broker.cursors.open_queue("q", ["#"], start=EARLIEST, principal=LOCAL)
        session = await broker.cursors.open_session("s", ["#"], start=EARLIEST, principal=LOCAL)
        table = await broker.cursors.open_table("t", ["#"], principal=LOCAL)
        exact = await broker.cursors.open_offset("o", ["a/1"], principal=LOCAL)
        held = {row.record.value: row.token for row in queue.acquire("c", 10)}
        assert len(session.fetch()) == 4
        queue.release(held[b"x"])
        waiting = asyncio.ensure_future(exact.next(99))
        await waiting
        await broker.streams.delete("gone")
        queue.ack(held[b"y"])
        queue.release(held[b"z"])
        queue.release(held[b"stays"])
        assert [row.record.value for row in queue.acquire("c", 10)] == [b"stays"]
        assert [row.record.value for row in session.redeliver() if row.record] == [b"stays"]
        assert spoken(table.find("#")) == ["b/1=stays"]
        assert table.get("a/1") is None
        await broker.cursors.save(queue, session, table, exact)
        await say(broker, "a/1", "in main now")
        assert [row.value for row in await exact.next(9, 5)] == [b"in main now"]
        assert [row.record.value for row in queue.acquire("c", 10)] == [b"in main now"]
        assert spoken(table.find("a/#")) == ["a/1=in main now"]
        broker.cursors.pins.lowest()


async def test_callbacks_may_publish_and_acquire_inside_a_wake_up(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        queue = await broker.cursors.open_queue("q", ["work/#"], principal=LOCAL)
        seen: list[bytes | None] = []
        rounds = asyncio.Event()

        def work() -> None:
            for delivery in queue.acquire("c", 10):
                seen.append(delivery.record.value)
                queue.ack(delivery.token)
                if len(seen) < 20:
                    message = Message("work/next", str(len(seen)).encode())
                    broker.publisher.publish([message], None, principal=LOCAL)
            if len(seen) >= 20:
                rounds.set()
            else:
                queue.when_available(work)

        queue.when_available(work)
        await say(broker, "work/first", "0")
        await asyncio.wait_for(rounds.wait(), 5)
        assert seen == [str(number).encode() for number in range(20)]
