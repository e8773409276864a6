"""Cursor state in `~cursors`: durable when answered, recovered, compacted, pinning retention.

All of it holds with one partition and with several.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import CursorNotFound, StorageFull
from onelog.base.ids import Offset
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    Committed,
    CursorKind,
    Message,
    QueueCursor,
    QueueSettings,
    Retention,
    SessionCursor,
    StreamConfig,
)
from onelog.cursors import checkpoint
from onelog.kernel import BatchInfo, scan_batches
from onelog.log.internal import kept_batches
from onelog.log.partition import Partition
from tests.support.brokers import FAST, batches_of, home_of, read_all, running, say


class Serve(Protocol):
    """`running` with a number of internal partitions."""

    def __call__(
        self, path: Path, settings: BrokerSettings = FAST, clock: ManualClock | None = None
    ) -> AbstractAsyncContextManager[Broker]: ...


@pytest.fixture(params=[1, 4])
def serve(request: pytest.FixtureRequest) -> Serve:
    """A broker for the length of a block."""

    def start(
        path: Path, settings: BrokerSettings = FAST, clock: ManualClock | None = None
    ) -> AbstractAsyncContextManager[Broker]:
        chosen = msgspec.structs.replace(settings, internal_partitions=request.param)
        return running(path, chosen, clock)

    return start


def states(broker: Broker) -> tuple[Partition, ...]:
    """Where cursor states are."""
    return tuple(broker.streams.get("~cursors").local)


def states_of(broker: Broker, name: str) -> Partition:
    """Where the state of one cursor is."""
    home = broker.streams.placement.home(broker.streams.get("~cursors"), name.encode())
    return states(broker)[home.id]


def ends(broker: Broker) -> list[int]:
    """The end of each partition."""
    return [int(partition.end_offset) for partition in states(broker)]


def count_batches(broker: Broker) -> list[int]:
    """The batches of each partition."""
    return list(map(batches_of, states(broker)))


def one_more(broker: Broker, before: list[int], names: Iterable[str]) -> list[int]:
    """As before, and one in each partition that any of these cursors has its state in."""
    homes = {states_of(broker, name).id for name in names}
    return [count + (number in homes) for number, count in enumerate(before)]


async def saved_batches(broker: Broker) -> list[BatchInfo]:
    """Save every cursor; the batches of that."""
    before = ends(broker)
    await broker.cursors.save(*broker.cursors.open_cursors())
    return [
        info
        for partition, first in zip(states(broker), before, strict=True)
        for info in scan_batches(partition.read(Offset(first), 1 << 30))
    ]


async def open_each(broker: Broker) -> None:
    """One durable cursor of each kind."""
    await broker.cursors.open_offset("offset", ["#"], principal=LOCAL)
    await broker.cursors.open_session("session", ["t"], start=EARLIEST, principal=LOCAL)
    await broker.cursors.open_queue("queue", ["t/#"], start=EARLIEST, principal=LOCAL)
    await broker.cursors.open_table("table", ["#"], principal=LOCAL)


async def test_several_cursors_are_saved_in_one_batch_per_partition(
    tmp_path: Path, serve: Serve
) -> None:
    async with serve(tmp_path) as broker:
        await open_each(broker)
        before = count_batches(broker)
        await broker.cursors.save(*broker.cursors.open_cursors())
        assert count_batches(broker) == one_more(broker, before, broker.cursors.names())


async def test_marked_cursors_are_saved_together_after_the_interval(
    tmp_path: Path, serve: Serve
) -> None:
    """One timer, however many changes; it writes nothing when nothing changed."""
    settings = msgspec.structs.replace(FAST, checkpoint_interval_s=0.001)
    async with serve(tmp_path, settings) as broker:
        await say(broker, "t", *map(str, range(10)))
        queues = [
            await broker.cursors.open_queue(f"q{number}", ["t"], start=EARLIEST, principal=LOCAL)
            for number in range(5)
        ]
        before, batches = ends(broker), count_batches(broker)
        for queue in queues:
            for delivery in queue.acquire("c", 10):
                queue.ack(delivery.token)
        for name in [queue.name for queue in queues]:
            home = states_of(broker, name)
            await asyncio.wait_for(home.wait_visible(Offset(before[home.id])), 5)
        assert sum(ends(broker)) == sum(before) + 5
        assert count_batches(broker) == one_more(broker, batches, [row.name for row in queues])
        assert not broker.cursors._checkpoints._marked


async def test_many_cursors_are_saved_in_batches_of_bounded_size(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: and the parts of a large table are not forced into one batch."""
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 2_000)
    monkeypatch.setattr(checkpoint, "PIECE_BYTES_MAX", 4_000)
    async with serve(tmp_path) as broker:
        for number in range(50):
            await broker.cursors.open_session(f"s{number}", ["#"], principal=LOCAL)
        await broker.publish_many(
            [Message(f"t/{number}", b"x") for number in range(2_000)], principal=LOCAL
        )
        table = await broker.cursors.open_table("table", ["#"], principal=LOCAL)
        infos = await saved_batches(broker)
        assert len(infos) > 3
        assert max(info.size_bytes for info in infos) < 12_000
        rows = len(table)
    async with serve(tmp_path) as broker:
        assert len(broker.cursors.names()) == 51
        again = await broker.cursors.open_table("table", ["#"], principal=LOCAL)
        assert len(again) == rows == 2_000


async def test_a_checkpoint_of_many_cursors_is_a_small_part_of_what_they_know(
    tmp_path: Path, serve: Serve
) -> None:
    """I1: sessions with full windows go on as they were, from a tenth of the bytes."""
    async with serve(tmp_path) as broker:
        await say(broker, "t", *map(str, range(100)))
        names = [f"session/{number}" for number in range(20)]
        for name in names:
            session = await broker.cursors.open_session(
                name, ["#"], start=EARLIEST, window=100, principal=LOCAL
            )
            assert len(session.fetch(100)) == 100
        known = sum(len(cursor.state().body) for cursor in broker.cursors.open_cursors())
        infos = await saved_batches(broker)
        assert known > 20_000
        assert sum(info.size_bytes for info in infos) < known / 10
    async with serve(tmp_path) as broker:
        for name in names:
            session = await broker.cursors.open_session(name, ["#"], window=100, principal=LOCAL)
            assert [row.packet_id for row in session.redeliver()] == list(range(1, 101))


async def test_what_save_answered_survives_a_crash(tmp_path: Path, serve: Serve) -> None:
    """I4: the data directory as it lies while the broker runs, opened by another one."""
    crashed = tmp_path / "crashed"
    settings = BrokerSettings(checkpoint_interval_s=3600.0)
    async with serve(tmp_path / "live", settings) as broker:
        await say(broker, "t", *map(str, range(10)))
        await open_each(broker)
        queue = await broker.cursors.open_queue("work", ["t"], start=EARLIEST, principal=LOCAL)
        session = broker.cursors.find("session")
        offset = broker.cursors.find("offset")
        held = queue.acquire("c", 6)
        for delivery in (held[0], held[1], held[4]):
            queue.ack(delivery.token)
        session.fetch(5)  # type: ignore[union-attr]
        session.acknowledge(2)  # type: ignore[union-attr]
        session.receive(3)  # type: ignore[union-attr]
        row = Committed(home_of(broker, "t")[0].record.id, home_of(broker, "t")[1].id, 7, 1, "m")
        offset.commit(row)  # type: ignore[union-attr]
        await broker.cursors.save(*broker.cursors.open_cursors())
        queue.ack(held[2].token)  # not saved any more
        shutil.copytree(tmp_path / "live", crashed)
    async with serve(crashed, settings) as broker:
        queue = await broker.cursors.open_queue("work", ["t"], principal=LOCAL)
        assert [(int(d.record.offset), d.count) for d in queue.acquire("c", 99)] == [
            (2, 2),
            (3, 2),
            (5, 2),
            (6, 1),
            (7, 1),
            (8, 1),
            (9, 1),
        ]
        session = await broker.cursors.open_session("session", ["t"], principal=LOCAL)
        again = session.redeliver()
        assert [(d.packet_id, d.record is None) for d in again] == [
            (1, False),
            (3, True),
            (4, False),
            (5, False),
        ]
        assert [d.record.offset for d in session.fetch() if d.record] == [5, 6, 7, 8, 9]
        offset = await broker.cursors.open_offset("offset", ["#"], principal=LOCAL)
        assert row in offset.committed()
        assert [record.offset for record in read_all(offset)] == [7, 8, 9]
        table = await broker.cursors.open_table("table", ["#"], principal=LOCAL)
        latest = table.get("t")
        assert latest is not None
        assert latest.value == b"9"


async def test_a_broker_that_restarts_knows_every_cursor_it_had(
    tmp_path: Path, serve: Serve
) -> None:
    async with serve(tmp_path) as broker:
        await say(broker, "t", "1")
        await open_each(broker)
        await broker.cursors.open_queue(
            "settings",
            ["t"],
            settings=QueueSettings(deliveries_max=3, dead_letter_topic="dlq"),
            principal=LOCAL,
        )
        kinds = {name: broker.cursors.kept(name) for name in broker.cursors.names()}
    async with serve(tmp_path) as broker:
        assert broker.cursors.names() == ["offset", "queue", "session", "settings", "table"]
        for name, before in kinds.items():
            after = broker.cursors.kept(name)
            assert after is not None
            assert before is not None
            assert (after.kind, after.filters) == (before.kind, before.filters)
        queue = await broker.cursors.open_queue("settings", ["t"], principal=LOCAL)
        assert queue.settings.deliveries_max == 3
        assert queue.dead_letter is not None


async def test_a_forgotten_cursor_stays_forgotten(tmp_path: Path, serve: Serve) -> None:
    async with serve(tmp_path) as broker:
        await say(broker, "t", "1", "2")
        await open_each(broker)
        for name in ("offset", "session", "queue", "table"):
            await broker.cursors.delete(name)
        with pytest.raises(CursorNotFound):
            await broker.cursors.delete("queue")
        assert broker.cursors.names() == []
        assert not broker.cursors._checkpoints._parts
    async with serve(tmp_path) as broker:
        assert broker.cursors.names() == []
        queue = await broker.cursors.open_queue("queue", ["t"], start=EARLIEST, principal=LOCAL)
        assert len(queue.acquire("c", 9)) == 2


async def test_a_late_answer_does_not_bring_a_deleted_cursor_back(
    tmp_path: Path, serve: Serve
) -> None:
    settings = msgspec.structs.replace(FAST, checkpoint_interval_s=0.001)
    async with serve(tmp_path, settings) as broker:
        await say(broker, "t", "1")
        queue = await broker.cursors.open_queue("q", ["t"], start=EARLIEST, principal=LOCAL)
        (delivery,) = queue.acquire("c")
        await broker.cursors.delete("q")
        queue.ack(delivery.token)
        other = await broker.cursors.open_offset("other", ["t"], principal=LOCAL)
        other.commit_read()
        home = states_of(broker, "other")
        await asyncio.wait_for(home.wait_visible(home.end_offset), 5)  # a save came after it
        assert broker.cursors.names() == ["other"]


async def test_a_late_answer_does_not_overwrite_the_next_cursor_of_that_name(
    tmp_path: Path, serve: Serve
) -> None:
    async with serve(tmp_path) as broker:
        await say(broker, "t", *map(str, range(4)))
        old = await broker.cursors.open_queue("q", ["t"], start=EARLIEST, principal=LOCAL)
        stale = old.acquire("c", 4)
        await broker.cursors.close_cursor(old)
        new = await broker.cursors.open_queue("q", ["t"], principal=LOCAL)
        for delivery in new.acquire("c", 4):
            new.ack(delivery.token)
        old.release(stale[0].token, count=False)
        old.ack(stale[1].token)
    async with serve(tmp_path) as broker:
        queue = await broker.cursors.open_queue("q", ["t"], principal=LOCAL)
        assert queue.acquire("c", 9) == []


async def test_the_compacted_stream_keeps_the_latest_states(tmp_path: Path, serve: Serve) -> None:
    async with serve(tmp_path) as broker:
        await broker.publish_many(
            [Message(f"t/{number % 40}", b"x") for number in range(400)], principal=LOCAL
        )
        await open_each(broker)
        await broker.cursors.open_queue("gone", ["t/#"], principal=LOCAL)
        queue = broker.cursors.find("queue")
        for _ in range(30):
            for delivery in queue.acquire("c", 10):  # type: ignore[union-attr]
                queue.ack(delivery.token)  # type: ignore[union-attr]
            await broker.cursors.save(*broker.cursors.open_cursors())
        await broker.cursors.delete("gone")
        before = sum(row.log.size_bytes for row in states(broker))
        for partition in states(broker):
            await asyncio.to_thread(partition.log.roll)
        await broker.maintenance.run_once()
        assert sum(row.log.size_bytes for row in states(broker)) < before / 2
        assert broker.maintenance.counters.errors == 0
        positions = queue.positions()  # type: ignore[union-attr]
    async with serve(tmp_path) as broker:
        assert broker.cursors.names() == ["offset", "queue", "session", "table"]
        again = await broker.cursors.open_queue("queue", ["t/#"], principal=LOCAL)
        assert again.positions() == positions
        table = await broker.cursors.open_table("table", ["#"], principal=LOCAL)
        assert len(table) == 40


async def test_pins_are_the_lowest_offsets_that_queues_and_sessions_still_need(
    tmp_path: Path, serve: Serve
) -> None:
    clock = ManualClock()
    async with serve(tmp_path, clock=clock) as broker:
        stream, partition = home_of(broker, "t")
        key = (stream.record.id, partition.id)

        def pin() -> int | None:
            clock.advance(10)
            return broker.cursors.pins.lowest().get(key)

        await say(broker, "t", *map(str, range(10)))
        await broker.cursors.open_offset(
            "offset", ["t"], principal=LOCAL
        )  # commits hold nothing back
        await broker.cursors.open_queue(
            "fleeting", ["t"], start=EARLIEST, durable=False, principal=LOCAL
        )
        assert pin() is None
        queue = await broker.cursors.open_queue("q", ["t"], start=EARLIEST, principal=LOCAL)
        session = await broker.cursors.open_session("s", ["t"], start=EARLIEST, principal=LOCAL)
        assert pin() == 0
        held = queue.acquire("c", 10)
        session.fetch(4)
        for delivery in held[:6]:
            queue.ack(delivery.token)
        assert pin() == 0
        for packet_id in (1, 2):
            session.acknowledge(packet_id)
        assert pin() == 2
        for packet_id in (3, 4):
            session.acknowledge(packet_id)
        assert pin() == 4
        await broker.cursors.close_cursor(session)  # away, but it will come back
        for delivery in held[6:]:
            queue.ack(delivery.token)
        assert pin() == 4
        await broker.cursors.delete("s")
        assert pin() == 10


async def test_a_cursor_among_other_topics_does_not_pin_what_it_has_passed(
    tmp_path: Path, serve: Serve
) -> None:
    """It has nothing to settle, so nothing of it is saved; its position counts all the same."""
    clock = ManualClock()
    async with serve(tmp_path, clock=clock) as broker:
        stream, partition = home_of(broker, "noise")
        same = next(
            f"quiet/{number}"
            for number in range(100)
            if stream.partition_of(f"quiet/{number}".encode()) is partition
        )
        queue = await broker.cursors.open_queue("q", [same], principal=LOCAL)
        await say(broker, "noise", *map(str, range(50)))
        assert queue.acquire("c") == []
        assert broker.cursors.pins.lowest()[stream.record.id, partition.id] == 50


async def fill(broker: Broker, count: int) -> Partition:
    """Segments of a few records each, all old enough to go."""
    await broker.streams.create(
        StreamConfig(
            name="s",
            captures=("s/#",),
            segment_bytes=4096,
            retention=Retention(age_ms=1_000, pin_bytes_max=20_000),
        )
    )
    for number in range(count):
        await broker.publish(Message("s/1", b"%04d" % number + b"." * 1_000), principal=LOCAL)
    return broker.streams.get("s").partitions[0]


async def test_retention_honours_the_pins_and_then_the_quota(tmp_path: Path, serve: Serve) -> None:
    """I3, DESIGN §7: records leave when nobody needs them; a lagging queue has a quota."""
    clock = ManualClock()
    async with serve(tmp_path, clock=clock) as broker:
        queue = await broker.cursors.open_queue("q", ["s/#"], principal=LOCAL)
        partition = await fill(broker, 12)
        held = queue.acquire("c", 12)
        assert len(held) == 12
        clock.advance(3600)
        await broker.maintenance.run_once()
        assert partition.start_offset == 0
        assert broker.maintenance.pinned_bytes["s", 0] > 0
        for delivery in held[:6]:
            queue.ack(delivery.token)
        clock.advance(10)
        await broker.maintenance.run_once()
        assert 0 < partition.start_offset <= 6
        for number in range(60):
            await broker.publish(Message("s/1", b"%04d" % number + b"." * 1_000), principal=LOCAL)
        clock.advance(3600)
        await broker.maintenance.run_once()
        assert partition.start_offset > 6
        assert broker.maintenance.over_quota == {("s", 0)}
        assert broker.maintenance.counters.alarms == 1
        queue.release_consumer("c")
        first = queue.acquire("c", 1)[0]
        assert first.record.offset >= partition.start_offset


@pytest.mark.parametrize("kind", ["session", "queue"])
async def test_a_cursor_that_is_away_pins_a_stream_that_is_made_meanwhile(
    tmp_path: Path, serve: Serve, kind: str
) -> None:
    """It reads such a stream from its start, so retention must not take what it will want."""
    clock = ManualClock()

    async def opened(broker: Broker) -> SessionCursor | QueueCursor:
        desk = broker.cursors
        opening = desk.open_session if kind == "session" else desk.open_queue
        return await opening("away", ["s/#"], principal=LOCAL)

    async with serve(tmp_path, clock=clock) as broker:
        await broker.cursors.close_cursor(await opened(broker))
        partition = await fill(broker, 12)
        clock.advance(3600)
        await broker.maintenance.run_once()
        assert partition.start_offset == 0
    async with serve(tmp_path, clock=clock) as broker:
        partition = broker.streams.get("s").partitions[0]
        await broker.maintenance.run_once()
        assert partition.start_offset == 0
        cursor = await opened(broker)
        offsets: list[int] = []
        async with asyncio.timeout(10):
            while len(offsets) < 12:
                if isinstance(cursor, SessionCursor):
                    for sent in cursor.fetch(20):
                        offsets.append(int(sent.record.offset))
                        cursor.acknowledge(sent.packet_id)
                else:
                    for held in cursor.acquire("c", 20):
                        offsets.append(int(held.record.offset))
                        cursor.ack(held.token)
                await asyncio.sleep(0)  # what is cold comes meanwhile
        assert offsets == list(range(12))
        await broker.cursors.close_cursor(cursor)  # its state knows the stream now
        clock.advance(3600)
        await broker.maintenance.run_once()
        assert partition.start_offset > 0


async def test_an_open_queue_that_nobody_asks_pins_a_stream_that_is_made_meanwhile(
    tmp_path: Path, serve: Serve
) -> None:
    clock = ManualClock()
    async with serve(tmp_path, clock=clock) as broker:
        queue = await broker.cursors.open_queue("q", ["s/#"], principal=LOCAL)
        partition = await fill(broker, 12)
        clock.advance(3600)
        await broker.maintenance.run_once()
        assert partition.start_offset == 0
        assert len(queue.acquire("c", 20)) == 12


async def test_a_failed_save_is_reported_and_made_up_for(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: a full disk costs no state, only time."""
    settings = msgspec.structs.replace(FAST, checkpoint_interval_s=0.001)
    async with serve(tmp_path, settings) as broker:
        await say(broker, "t", "1")
        queue = await broker.cursors.open_queue("q", ["t"], start=EARLIEST, principal=LOCAL)
        failed = asyncio.Event()
        broker.cursors._checkpoints.on_error = lambda _error: failed.set()
        real, target = Partition.append_built, states_of(broker, "q")

        def full(self: Partition, *args: object, **more: object) -> object:
            if self is target:
                raise StorageFull("no room")
            return real(self, *args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Partition, "append_built", full)
        end = target.end_offset
        (delivery,) = queue.acquire("c")
        queue.ack(delivery.token)
        await asyncio.wait_for(failed.wait(), 5)
        assert target.end_offset == end
        monkeypatch.undo()
        await asyncio.wait_for(target.wait_visible(end), 5)
    async with serve(tmp_path) as broker:
        again = await broker.cursors.open_queue("q", ["t"], principal=LOCAL)
        assert again.acquire("c") == []


async def test_a_checkpoint_that_cannot_be_written_does_not_keep_the_broker_from_closing(
    tmp_path: Path, serve: Serve
) -> None:
    """The partitions are closed cleanly all the same."""
    broker_path = tmp_path
    async with serve(broker_path) as broker:
        await say(broker, "t", "1")
        queue = await broker.cursors.open_queue("q", ["t"], start=EARLIEST, principal=LOCAL)
        queue.acquire("c")
        states_of(broker, "q").stop(StorageFull("it broke"))
        with pytest.raises(StorageFull):
            await broker.close()
        assert all(row.stopped for row in broker.streams.get("main").partitions)
        broker.close = _nothing  # type: ignore[method-assign]
    async with serve(broker_path) as broker:
        assert broker.cursors.kept("q") is not None
        assert CursorKind.QUEUE is broker.cursors.kept("q").kind  # type: ignore[union-attr]


async def _nothing() -> None:
    return None


async def test_a_checkpoint_under_way_writes_no_old_state_behind_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cursor was closed and opened again while the cursors before it were saved: what it settled
    since then came again after a crash."""
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 0)
    async with running(tmp_path, FAST) as broker:
        await say(broker, "t", *map(str, range(4)))
        store = broker.cursors._checkpoints
        first = await broker.cursors.open_session("s", ["u"], principal=LOCAL)
        old = await broker.cursors.open_queue("q", ["t"], start=EARLIEST, principal=LOCAL)
        store.mark(first)
        store.mark(old)
        saving = asyncio.ensure_future(store._save_all_marked())
        sleep, go_on = asyncio.sleep, asyncio.Event()

        async def others_have_a_turn(delay: float, result: None = None) -> None:
            if asyncio.current_task() is saving:
                await go_on.wait()
            else:
                await sleep(delay, result)

        monkeypatch.setattr(asyncio, "sleep", others_have_a_turn)
        await sleep(0)
        await broker.cursors.close_cursor(old)
        new = await broker.cursors.open_queue("q", ["t"], principal=LOCAL)
        for delivery in new.acquire("c", 4):
            new.ack(delivery.token)
        await broker.cursors.save(new)
        assert not saving.done()
        go_on.set()
        await saving
        rows = [
            slices.value(index)
            async for _info, slices in kept_batches(states(broker)[0])
            for index in range(len(slices))
            if slices.key(index) == b"q"
        ]
        assert rows[-1] == msgspec.msgpack.encode(new.state())
