"""The threads that wait for the disk: syncs and chores in their own, every answer isolated."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from onelog.base.clock import ManualClock
from onelog.base.ids import Offset
from onelog.log.compaction import compact, scope_of
from onelog.log.config import Compaction
from onelog.log.partition import Durability
from onelog.log.pool import ANSWER
from onelog.log.syncer import Syncer
from onelog.observe import Troubles
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine
from tests.logs import KEY, GatedLog, make_partition, memory_log, put, row


async def test_who_raises_over_an_answer_is_a_trouble_and_the_others_are_told() -> None:
    troubles = Troubles(ManualClock())
    syncer = Syncer(1, troubles)
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: unseen.append(context))

    def refuse(_result: object, _error: BaseException | None) -> None:
        raise ValueError("not taken")

    syncer.start(lambda: None, refuse)
    assert await syncer.run(lambda: 7) == 7
    assert troubles.count(ANSWER) == 1
    (row,) = troubles.rows()
    assert "refuse" in row.place
    assert "not taken" in row.error
    assert not unseen
    await syncer.close()


async def test_a_compaction_that_hangs_delays_no_sync(tmp_path: Path) -> None:
    clock, syncer = ManualClock(), Syncer(1)
    log = SegmentEngine(tmp_path, clock).open(KEY, LogSettings(segment_bytes=1, topic_index=False))
    partition = make_partition(log, syncer, clock, Durability.FSYNC)
    for number in range(3):
        last = put(partition, row(b"k", b"%d" % number))
        await partition.wait_visible(last.base_offset)
    hangs, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def pace() -> None:
        loop.call_soon_threadsafe(hangs.set)
        assert goes_on.wait(10)

    scope, config = scope_of(partition), Compaction()
    chore = asyncio.create_task(
        syncer.chores.run(
            lambda: compact(
                log, scope, now_ms=clock.now_ms(), config=config, segment_bytes=1 << 20, pace=pace
            )
        )
    )
    await hangs.wait()
    last = put(partition, row(b"k", b"new"))
    await asyncio.wait_for(partition.wait_visible(last.base_offset), 10)
    assert not chore.done()
    goes_on.set()
    assert (await chore).records_dropped == 1
    await partition.close()
    await syncer.close()


async def test_a_sync_that_hangs_keeps_no_chore_from_running() -> None:
    clock, syncer = ManualClock(), Syncer(1)
    gated = GatedLog(memory_log(clock))
    partition = make_partition(gated, syncer, clock, Durability.FSYNC)  # type: ignore[arg-type]
    put(partition, row(b"k", b"v"))
    assert await asyncio.to_thread(gated.entered.acquire, timeout=10)
    assert await asyncio.wait_for(syncer.chores.run(lambda: 7), 10) == 7
    assert partition.high_watermark == 0, "the sync still hangs"
    gated.gate.release()
    await partition.wait_visible(Offset(0))
    await partition.close()
    await syncer.close()
