"""Tiering: what goes to the store, when local bytes leave, and a store that fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from onelog.base.clock import ManualClock
from onelog.base.errors import ColdUnavailable, ConfigError, InvalidRequest
from onelog.base.ids import Offset, PartitionId
from onelog.broker import Broker, ColdFormat, Durability, Retention, TierConfig, TierLimits
from onelog.kernel import scan_batches
from onelog.log import tiering
from onelog.objects.manifest import VERSION, Manifest
from onelog.record.batch import Marker
from onelog.storage.engine import PartitionKey
from onelog.storage.tiered.restoring import StoredPartition, stored_partitions
from tests.support.brokers import history, running, transaction
from tests.support.tiered_brokers import (
    COLD,
    KEPT,
    fill,
    go_cold,
    part,
    payload,
    plant,
    with_store,
)


async def values(broker: Broker, *filters: str) -> list[bytes]:
    """Everything that a cursor from the beginning reads."""
    spoken = await history(broker, *(filters or ("plant/#",)))
    return [text.partition("=")[2].encode() for text in spoken]


async def test_sealed_segments_go_to_the_store_and_their_bytes_leave_the_disk(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant())
        await fill(broker, 60)
        before = part(broker).size_bytes
        await go_cold(broker)
        status = part(broker).tier_status()
        assert status is not None and status.rows > 1
        assert status.cold_end_offset == part(broker).end_offset == 60
        assert part(broker).local_start_offset == 60
        assert part(broker).start_offset == 0
        assert status.cold_bytes == part(broker).size_bytes == before
        assert {row.place for row in part(broker).segments()[:-1]} == {"cold"}
        assert part(broker).tier_lag().bytes == 0


async def test_the_active_segment_and_open_transactions_stay_here(tmp_path: Path) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant())
        await fill(broker, 30)
        await broker.maintenance.tier_once()
        status = part(broker).tier_status()
        assert status is not None
        assert 0 < status.cold_end_offset < 30
        assert status.cold_end_offset == part(broker).segments()[-1].base_offset


async def test_copies_stay_here_as_long_as_the_local_window_wants_them(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path / "data", with_store(tmp_path / "store"), clock) as broker:
        await broker.streams.create(plant(KEPT))
        await fill(broker, 30)
        await go_cold(broker)
        assert part(broker).local_start_offset == 0
        assert {row.place for row in part(broker).segments()[:-1]} == {"both"}
        config = broker.streams.get("plant").config
        await broker.streams.alter(replace(config, tier=replace(KEPT, local_age_ms=60_000)))
        await broker.maintenance.tier_once()
        assert part(broker).local_start_offset == 0
        clock.advance(61)
        await broker.maintenance.tier_once()
        assert part(broker).local_start_offset == 30
        assert part(broker).start_offset == 0


async def test_local_bytes_stay_if_a_hook_could_not_save_what_it_must(tmp_path: Path) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant())
        asked: list[int] = []
        is_ready = False

        async def hook(_partition: object, upto: Offset) -> None:
            asked.append(int(upto))
            if not is_ready:
                raise RuntimeError("not yet")

        broker.maintenance.tiering.before_cold.append(hook)
        await fill(broker, 20)
        await go_cold(broker)
        assert asked[-1] == 20
        assert part(broker).local_start_offset == 0
        is_ready = True
        await broker.maintenance.tier_once()
        assert part(broker).local_start_offset == 20


async def test_total_retention_takes_from_the_store_and_its_objects_go(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with running(tmp_path / "data", with_store(store)) as broker:
        await broker.streams.create(plant())
        await fill(broker, 60)
        await go_cold(broker)
        pieces = len(list(store.glob("t/**/*.p")))
        config = broker.streams.get("plant").config
        size = part(broker).size_bytes
        keep = Retention(age_ms=-1, bytes=size // 2)
        await broker.streams.alter(replace(config, retention=keep))
        await broker.maintenance.retain_once()
        start = part(broker).start_offset
        assert 0 < start < 60
        assert size // 2 <= part(broker).size_bytes < size
        await broker.maintenance.tier_once()
        await broker.maintenance.tier_once()
        assert len(list(store.glob("t/**/*.p"))) < pieces
        status = part(broker).tier_status()
        assert status is not None and status.doomed == 0


async def test_a_restart_asks_the_store_nothing_and_reads_from_it_afterwards(
    tmp_path: Path,
) -> None:
    settings = with_store(tmp_path / "store")
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant())
        await fill(broker, 40)
        await go_cold(broker)
    async with running(tmp_path / "data", settings) as broker:
        assert broker.objects.store is not None
        assert broker.objects.store.counts.get == broker.objects.store.counts.list == 0
        assert (part(broker).start_offset, part(broker).end_offset) == (0, 40)
        await fill(broker, 10, first=40)
        assert await values(broker) == [payload(number) for number in range(50)]


async def test_a_store_that_is_away_is_asked_again_later_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with running(tmp_path / "data", with_store(tmp_path / "store"), clock) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        store = broker.objects.store
        assert store is not None
        asked = 0

        def away(*_: object) -> None:
            nonlocal asked
            asked += 1
            raise ColdUnavailable("the store is away")

        put = store.put
        monkeypatch.setattr(store, "put", away)
        for _ in range(5):
            await go_cold(broker)
        assert asked == 1  # the clock stands: it is not asked again before its time
        assert broker.maintenance.tiering.pause_s(30.0) <= 0.2
        assert part(broker).local_start_offset == 0
        for _ in range(12):
            clock.advance(30)
            await broker.maintenance.tier_once()
        assert 12 <= asked <= 13
        assert [row.kind for row in broker.troubles.standing()] == [tiering.STORE]
        clock.advance(900)
        await broker.maintenance.tier_once()
        assert tiering.LAG in [row.kind for row in broker.troubles.standing()]
        monkeypatch.setattr(store, "put", put)
        clock.advance(60)
        await broker.maintenance.tier_once()
        assert part(broker).local_start_offset == 20
        assert broker.troubles.standing() == []


async def test_a_store_that_refuses_us_is_an_alarm_at_once_and_asked_each_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with running(tmp_path / "data", with_store(tmp_path / "store"), clock) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        store, asked = broker.objects.store, 0
        assert store is not None

        def refuse(*_: object) -> None:
            nonlocal asked
            asked += 1
            raise ColdUnavailable("no key", "refused")

        monkeypatch.setattr(store, "put", refuse)
        await go_cold(broker)
        assert [row.kind for row in broker.troubles.standing()] == [tiering.STORE]
        clock.advance(29)
        await broker.maintenance.tier_once()
        assert asked == 1
        clock.advance(32)
        await broker.maintenance.tier_once()
        assert asked == 2


async def test_another_writer_in_the_store_halts_the_tier_and_not_the_partition(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    async with running(tmp_path / "data", with_store(store)) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        await go_cold(broker)
    shutil.copytree(tmp_path / "data", tmp_path / "twin")
    async with (
        running(tmp_path / "data", with_store(store)) as broker,
        running(tmp_path / "twin", with_store(store)) as twin,
    ):
        await fill(broker, 20, first=20)
        await go_cold(broker)
        await fill(twin, 20, first=100)
        await go_cold(twin)
        assert [row.kind for row in twin.troubles.standing()] == [tiering.HALTED]
        status = part(twin).tier_status()
        assert status is not None and status.halted
        assert part(twin).stopped is None
        await fill(twin, 1, first=120)
        whole = [*range(20), *range(100, 121)]
        assert await values(twin) == [payload(number) for number in whole]
        assert twin.tiers.rows("plant", -1, 10)[0].state == status.halted


async def test_a_halted_tier_keeps_the_bytes_that_are_on_this_disk(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with running(tmp_path / "data", with_store(store)) as broker:
        await broker.streams.create(plant(KEPT))
        await fill(broker, 20)
        await go_cold(broker)
        shutil.rmtree(store)
        store.mkdir()
    async with running(tmp_path / "data", with_store(store)) as broker:
        await fill(broker, 20, first=20)
        await go_cold(broker)
        status = part(broker).tier_status()
        assert status is not None and "no manifest" in status.halted
        config = broker.streams.get("plant").config
        await broker.streams.alter(replace(config, tier=COLD))
        await broker.maintenance.tier_once()
        assert part(broker).local_start_offset == 0, "the only copy left the disk"
        assert await values(broker) == [payload(number) for number in range(40)]


async def test_uploads_keep_the_pace(tmp_path: Path) -> None:
    settings = replace(
        with_store(tmp_path / "store"), tier_limits=TierLimits(upload_bytes_per_s=100_000)
    )
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant())
        await fill(broker, 40)
        loop = asyncio.get_running_loop()
        begin, size = loop.time(), part(broker).size_bytes
        # The broker's clock stands, so that each piece waits for what all before it took.
        await go_cold(broker)
        assert loop.time() - begin >= 0.9 * (size - 5000) / 100_000
        assert part(broker).local_start_offset == 40


async def test_a_tier_that_is_off_copies_nothing_and_what_it_copied_is_read(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        await go_cold(broker)
        config = broker.streams.get("plant").config
        await broker.streams.alter(replace(config, tier=TierConfig()))
        await fill(broker, 20, first=20)
        await go_cold(broker)
        status = part(broker).tier_status()
        assert status is not None and status.cold_end_offset == 20
        assert part(broker).local_start_offset == 20
        assert await values(broker) == [payload(number) for number in range(40)]
        assert broker.tiers.rows("plant", -1, 10)[0].state == "off"
        await broker.streams.alter(replace(config, retention=Retention(bytes=0)))
        await broker.maintenance.retain_once()
        status = part(broker).tier_status()
        assert status is not None and status.rows == 0


async def test_taking_the_format_away_deletes_the_copies_if_the_stream_says_so(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant(replace(COLD, delete_when_off=True)))
        await fill(broker, 20)
        await go_cold(broker)
        await fill(broker, 3, first=20)
        config = broker.streams.get("plant").config
        await broker.streams.alter(
            replace(config, tier=replace(config.tier, format=ColdFormat.NONE))
        )
        await broker.maintenance.tier_once()
        assert part(broker).start_offset == 20
        assert await values(broker) == [payload(number) for number in range(20, 23)]
        await broker.maintenance.tier_once()
        assert list((tmp_path / "store").glob("t/**/*.p")) == []


async def ended(broker: Broker, name: str = "plant") -> None:
    running_task = broker.tiers._running.get(name)
    if running_task is not None:
        await asyncio.wait_for(running_task, 30)


async def test_history_comes_back_and_nothing_stays_in_the_store(tmp_path: Path) -> None:
    settings = with_store(tmp_path / "store")
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant(partitions=2))
        for number in range(60):
            await fill(broker, 1, topic=f"plant/{number % 7}", first=number)
        await go_cold(broker)
        whole = await values(broker)
        task = await broker.tiers.bring_back("plant")
        assert task.left > 1
        assert "bring-back running" in broker.tiers.rows("plant", -1, 10)[0].state
        await ended(broker)
        assert (task.state, task.left) == ("done", 0)
        assert not broker.streams.get("plant").config.tier.is_on
        for number in range(2):
            assert part(broker, number=number).local_start_offset == 0
            assert {row.place for row in part(broker, number=number).segments()} == {"local"}
        await broker.maintenance.tier_once()
        assert list((tmp_path / "store").glob("t/**/*.p")) == []
        assert sorted(await values(broker)) == sorted(whole)
    async with running(tmp_path / "data", settings) as broker:
        assert sorted(await values(broker)) == sorted(whole)


async def test_deleting_history_leaves_what_is_on_the_disk(tmp_path: Path) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        await go_cold(broker)
        await fill(broker, 5, first=20)
        task = await broker.tiers.delete_cold("plant")
        await ended(broker)
        assert task.state == "done"
        assert (part(broker).start_offset, part(broker).end_offset) == (20, 25)
        with pytest.raises(InvalidRequest, match="has nothing in the object store"):
            await broker.tiers.bring_back("main")


async def test_a_deleted_stream_leaves_no_object(tmp_path: Path) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        await go_cold(broker)
        await broker.streams.delete("plant")
        await broker.maintenance.tier_once()
        assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


async def test_a_piece_says_the_stream_and_the_state_as_of_its_end(tmp_path: Path) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        await go_cold(broker)
        rows = part(broker).log.cold_rows(Offset(0), Offset(20))
        assert rows[0].base == 0 and rows[-1].end == 20
        data = part(broker).read(Offset(0), 1 << 20)
        assert scan_batches(data)[0].base_offset == 0
        record = broker.streams.get("plant").record
        assert broker.objects.store is not None
        (found,) = await asyncio.to_thread(lambda: list(stored_partitions(broker.objects.store)))
        assert msgspec.json.decode(found.stream, type=type(record)) == record


async def test_streams_of_a_bucket_are_restored_into_an_empty_broker(tmp_path: Path) -> None:
    settings = with_store(tmp_path / "store")
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant(partitions=2))
        config = broker.streams.get("main").config
        await broker.streams.alter(replace(config, tier=COLD, durability=Durability.FSYNC))
        for number in range(40):
            await fill(broker, 1, topic=f"plant/{number % 5}", first=number)
        await fill(broker, 10, topic="other/t")
        await go_cold(broker)
        await go_cold(broker, "main")
        await fill(broker, 1, topic="plant/1", first=1000)  # on the lost disk only
        id_before = broker.streams.get("plant").record.id
    async with running(tmp_path / "anew", settings) as broker:
        (main, found) = await broker.objects.restore((), dry_run=True, take_over=True)
        assert (main.stream, main.outcome) == ("main", "found")
        assert (found.stream, found.outcome, found.offsets) == ("plant", "found", 40)
        assert broker.streams.find("plant") is None
        rows = await broker.objects.restore((), dry_run=False, take_over=True)
        assert {row.outcome for row in rows} == {"restored"}
        assert broker.streams.get("plant").record.id == id_before
        assert broker.streams.get("plant").config == plant(partitions=2)
        assert sorted(await values(broker)) == [payload(number) for number in range(40)]
        assert len(await values(broker, "other/#")) == 10
        assert {row.outcome for row in await broker.objects.restore((), dry_run=False)} == {
            "exists"
        }
        await fill(broker, 10, topic="plant/1", first=2000)
        await go_cold(broker)
    async with running(tmp_path / "anew", settings) as broker:
        assert len(await values(broker)) == 50


async def test_a_stream_that_another_broker_wrote_lately_is_restored_only_by_a_take_over(
    tmp_path: Path,
) -> None:
    settings = with_store(tmp_path / "store")
    async with running(tmp_path / "data", settings) as owner:
        await owner.streams.create(plant())
        await fill(owner, 20)
        await go_cold(owner)
        async with running(tmp_path / "other", settings) as broker:
            for is_looking in (True, False):
                (row,) = await broker.objects.restore((), dry_run=is_looking)
                assert row.outcome == "owned"
                assert "stop it" in row.why and "--take-over" in row.why
            assert broker.streams.find("plant") is None
        await fill(owner, 20, first=20)
        await go_cold(owner)
        status = part(owner).tier_status()
        assert status is not None and not status.halted, "the restore halted its owner"
        assert owner.troubles.standing() == []
    async with running(tmp_path / "other", settings) as broker:
        (row,) = await broker.objects.restore((), dry_run=False, take_over=True)
        assert row.outcome == "restored"
        assert await values(broker) == [payload(number) for number in range(40)]


async def test_a_stream_that_nobody_wrote_for_a_day_is_restored_as_it_is(tmp_path: Path) -> None:
    settings = with_store(tmp_path / "store")
    async with running(tmp_path / "data", settings) as owner:
        await owner.streams.create(plant())
        await fill(owner, 20)
        await go_cold(owner)
    long_ago = time.time() - 25 * 3600
    for path in (tmp_path / "store").glob("m/**/*"):
        os.utime(path, (long_ago, long_ago))
    async with running(tmp_path / "other", settings) as broker:
        (row,) = await broker.objects.restore((), dry_run=False)
        assert row.outcome == "restored"


async def test_a_stream_that_was_deleted_here_is_not_restored(tmp_path: Path) -> None:
    settings = replace(with_store(tmp_path / "store"), tier_limits=TierLimits(grace_ms=3_600_000))
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        await go_cold(broker)
        await broker.streams.delete("plant")
        await broker.maintenance.tier_once()
        assert list((tmp_path / "store").glob("t/**/*.p")), "its objects wait for their grace"
        for is_looking in (True, False):
            assert await broker.objects.restore((), dry_run=is_looking) == []
        assert broker.streams.find("plant") is None


async def test_a_transaction_that_was_open_where_the_bucket_ends_is_aborted(
    tmp_path: Path,
) -> None:
    settings = with_store(tmp_path / "store")
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant())
        await fill(broker, 3)
        await transaction(broker, "plant/t", (7, 0, 0), "a", "b")
        await broker.in_thread(part(broker).log.roll)
        await transaction(broker, "plant/t", (7, 0, 2), "c")
        part(broker).append_marker(Marker.COMMIT, 7, 0)
        await part(broker).wait_visible(Offset(part(broker).end_offset - 1))
        await broker.maintenance.tier_once()
        status = part(broker).tier_status()
        assert status is not None and status.cold_end_offset == 5
    async with running(tmp_path / "anew", settings) as broker:
        await broker.objects.restore(("plant",), dry_run=False, take_over=True)
        assert part(broker).open_transactions() == {}
        await fill(broker, 1, first=9)
        assert await values(broker) == [payload(0), payload(1), payload(2), payload(9)]


async def test_aborted_records_in_the_store_are_hidden_and_the_list_of_them_stays_small(
    tmp_path: Path,
) -> None:
    settings = with_store(tmp_path / "store")
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant())
        for number in range(20):
            await transaction(broker, "plant/t", (7, 0, number), f"{number} {'x' * 500}")
            marker = Marker.ABORT if number % 2 else Marker.COMMIT
            part(broker).append_marker(marker, 7, 0)
            await part(broker).wait_visible(Offset(part(broker).end_offset - 1))
        whole = await values(broker)
        assert [value[:2].strip() for value in whole] == [b"%d" % n for n in range(0, 20, 2)]
        await go_cold(broker)
        assert part(broker).producers.aborted_between(0, 100) == []
        assert await values(broker) == whole
    async with running(tmp_path / "data", settings) as broker:
        assert await values(broker) == whole


async def test_history_in_a_store_that_is_not_named_any_more_stops_the_start(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        await go_cold(broker)
    with pytest.raises(ConfigError, match=r"store\.url is empty, but .* has history"):
        async with running(tmp_path / "data"):
            pass


async def test_a_stop_does_not_wait_for_a_store_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering, "_STOP_S", 0.2)
    hangs, goes_on = threading.Event(), threading.Event()
    settings = with_store(tmp_path / "store")
    loop = asyncio.get_running_loop()
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        store = broker.objects.store
        assert store is not None

        def put(*_: object) -> None:
            hangs.set()
            goes_on.wait(20)
            raise ColdUnavailable("too late")

        monkeypatch.setattr(store, "put", put)
        moving = asyncio.create_task(go_cold(broker))
        await asyncio.to_thread(hangs.wait, 20)
        begin = loop.time()
    assert loop.time() - begin < 10
    goes_on.set()
    await asyncio.wait([moving], timeout=20)
    async with running(tmp_path / "data", settings) as broker:
        await go_cold(broker)
        assert part(broker).local_start_offset == 20


async def test_a_stream_without_a_disk_is_left_to_its_chain_by_a_restore_and_never_brought_back(
    tmp_path: Path,
) -> None:
    formats = (ColdFormat.LOG, ColdFormat.DELTA)
    settings = with_store(tmp_path / "store", tier_formats=formats)
    table = plant(TierConfig(format=ColdFormat.DELTA), engine="object")
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(table)
        with pytest.raises(InvalidRequest, match="no disk to bring its history back to"):
            await broker.tiers.bring_back("plant")
        assert broker.streams.get("plant").config.tier.is_on
        record = broker.streams.get("plant").record
        manifest = Manifest(VERSION, 1, bytes(16), 0, msgspec.json.encode(record), 0, 0, ())
        key = PartitionKey(record.id, PartitionId(0))
    async with running(tmp_path / "other", settings) as broker:
        restoring = broker.objects.restoring
        assert restoring is not None
        restoring._listed = lambda: iter([StoredPartition(key, manifest, 0)])
        for is_looking in (True, False):
            rows = await broker.objects.restore((), dry_run=is_looking, take_over=True)
            assert [(row.stream, row.outcome) for row in rows] == [("plant", "owned")]
            assert "chain of the engine object" in rows[0].why
        assert broker.streams.find("plant") is None
