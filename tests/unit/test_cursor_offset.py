"""The offset and tail cursors: commits that last, seeks, lag, bounded reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onelog.base.errors import InvalidRequest
from onelog.broker import LATEST, LOCAL, Committed, Message
from onelog.cursors import cursor as cursor_module
from onelog.kernel import scan_batches
from tests.support.brokers import home_of, read_all, running, say


async def test_a_cursor_reads_on_from_what_it_committed_not_from_what_it_read(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await say(broker, "t", *map(str, range(10)))
        stream, partition = home_of(broker, "t")
        cursor = await broker.cursors.open_offset("c", ["t"], principal=LOCAL)
        cursor.fetch(7)
        row = Committed(stream.record.id, partition.id, 4, leader_epoch=3, metadata="note")
        cursor.commit(row)
        assert cursor.pending() == 3
        assert cursor.lag() == 3
    async with running(tmp_path) as broker:
        cursor = await broker.cursors.open_offset("c", ["t"], principal=LOCAL)
        assert cursor.committed() == [row]
        assert [int(record.value or b"") for record in read_all(cursor)] == list(range(4, 10))


async def test_a_saved_commit_is_never_read_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await say(broker, "t", "1", "2", "3")
        cursor = await broker.cursors.open_offset("c", ["#"], principal=LOCAL)
        for _ in range(3):
            cursor.fetch(1)
            cursor.commit_read()
            await broker.cursors.save(cursor)
            kept = broker.cursors.kept("c")
            assert kept is not None
            assert {(p.stream_id, p.partition, p.offset) for p in kept.positions} == {
                (row.stream_id, row.partition, row.offset) for row in cursor.committed()
            }
        with pytest.raises(InvalidRequest):
            cursor.commit(Committed("main", 0, -1))


async def test_seek_moves_the_read_position_only(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await say(broker, "t", *map(str, range(5)))
        stream, partition = home_of(broker, "t")
        cursor = await broker.cursors.open_offset("c", ["t"], principal=LOCAL)
        read_all(cursor)
        cursor.commit_read()
        committed = cursor.committed()
        cursor.seek(stream.record.id, partition.id, 3)
        assert [record.value for record in read_all(cursor)] == [b"3", b"4"]
        assert cursor.committed() == committed
        with pytest.raises(InvalidRequest):
            cursor.seek("nothing", 0, 0)


async def test_a_tail_begins_at_the_end_and_gives_up_what_is_too_far_behind(
    tmp_path: Path,
) -> None:
    """I8: lag_max."""
    async with running(tmp_path) as broker:
        await say(broker, "t", "before")
        slow = broker.cursors.open_tail(["t"], lag_max=5, principal=LOCAL)
        patient = broker.cursors.open_tail(["t"], start=LATEST, principal=LOCAL)
        await say(broker, "t", *map(str, range(20)))
        assert [int(record.value or b"") for record in read_all(slow)] == [15, 16, 17, 18, 19]
        assert slow.skipped == 15
        assert len(read_all(patient)) == 20
        assert patient.skipped == 0


async def test_a_filter_without_a_match_gives_the_loop_back_and_gets_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: one read looks at a bounded part of the log."""
    monkeypatch.setattr(cursor_module.Reading.read, "__defaults__", (10_000, 0))
    async with running(tmp_path) as broker:
        for _ in range(20):
            await broker.publish_many(
                [Message("noise", b"x" * 500) for _ in range(20)], principal=LOCAL
            )
        partition = home_of(broker, "noise")[1]
        assert len(partition.read(partition.start_offset, 1 << 30)) > 200_000
        looked_at: list[int] = []
        real = partition.read_now

        def counted(*args: object, **more: object) -> memoryview:
            data = real(*args, **more)  # type: ignore[arg-type]
            looked_at.append(len(data))
            return data

        monkeypatch.setattr(partition, "read_now", counted)
        cursor = await broker.cursors.open_offset("c", ["nothing/+"], principal=LOCAL)
        assert cursor.fetch() == []
        largest = max(info.size_bytes for info in scan_batches(real(0, 1 << 30)))
        assert sum(looked_at) <= 10_000 + largest
        match = next(
            topic
            for topic in (f"nothing/{number}" for number in range(100))
            if home_of(broker, topic)[1] is partition
        )
        await say(broker, match, "at last")
        turns = 0

        async def other_work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        work = asyncio.ensure_future(other_work())
        assert [record.topic for record in await cursor.next(1, 10)] == [match]
        work.cancel()
        assert turns >= 10
        assert not cursor.reading.is_behind()
        assert cursor.lag() == 0


async def test_asking_for_nothing_answers_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await say(broker, "t", "1")
        cursor = await broker.cursors.open_offset("c", ["t"], principal=LOCAL)
        assert await asyncio.wait_for(cursor.next(0), 5) == []
