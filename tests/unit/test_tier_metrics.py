"""What a scrape says of tiers: history goes to a store, is read again there, and is deleted."""

from __future__ import annotations

from pathlib import Path

from onelog.admin.samples import StreamSamples, broker_samples
from onelog.base.clock import ManualClock
from onelog.broker import Broker
from tests.support.brokers import history, running
from tests.support.tiered_brokers import fill, go_cold, part, plant, with_store

RECORDS = 30
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "storage.md"


async def scraped(broker: Broker, clock: ManualClock) -> dict[str, float]:
    """What is said of the tier of the stream `plant`, and of all tiers together."""
    found = {sample.name: sample.value for sample in broker_samples(broker)}
    async for sample in StreamSamples(broker.streams.streams, now_ms=clock.now_ms)():
        if sample.labels == (("stream", "plant"),):
            found[sample.name] = sample.value
    return {name: value for name, value in found.items() if name.startswith("onelog_tier_")}


async def test_a_scrape_follows_history_into_the_store_and_back(tmp_path):
    clock = ManualClock()
    async with running(tmp_path / "data", with_store(tmp_path / "store"), clock) as broker:
        await broker.streams.create(plant())
        await fill(broker, RECORDS)
        await broker.in_thread(part(broker).log.roll)
        clock.advance(7.0)
        size_bytes = part(broker).size_bytes
        before = await scraped(broker, clock)
        assert before["onelog_tier_lag_bytes"] == size_bytes
        assert before["onelog_tier_lag_seconds"] >= 7
        assert before["onelog_tier_cold_bytes"] == before["onelog_tier_bytes_total"] == 0
        assert before["onelog_tier_last_success_seconds"] == 0

        await go_cold(broker)
        moved = await scraped(broker, clock)
        status = part(broker).tier_status()
        assert status is not None
        assert moved["onelog_tier_lag_bytes"] == moved["onelog_tier_lag_seconds"] == 0
        assert moved["onelog_tier_cold_bytes"] == moved["onelog_tier_bytes_total"] == size_bytes
        assert moved["onelog_tier_pieces_total"] == status.rows > 1
        assert moved["onelog_tier_last_success_seconds"] == clock.now_ms() // 1000
        assert moved["onelog_tier_errors_total"] == 0
        assert moved["onelog_tier_cold_hits_total"] == moved["onelog_tier_cold_misses_total"] == 0

        assert len(await history(broker, "plant/#")) == RECORDS
        first = await scraped(broker, clock)
        assert first["onelog_tier_cold_misses_total"] > 0
        assert len(await history(broker, "plant/#")) == RECORDS
        again = await scraped(broker, clock)
        assert again["onelog_tier_cold_misses_total"] == first["onelog_tier_cold_misses_total"]
        assert again["onelog_tier_cold_hits_total"] > first["onelog_tier_cold_hits_total"]

        await broker.streams.delete("plant")
        await broker.maintenance.tier_once()
        assert (await scraped(broker, clock))["onelog_tier_objects_deleted_total"] >= status.rows


async def test_the_guide_names_every_metric_of_tiers(tmp_path):
    clock = ManualClock()
    async with running(tmp_path / "data", with_store(tmp_path / "store"), clock) as broker:
        await broker.streams.create(plant())
        guide = GUIDE.read_text()
        names = await scraped(broker, clock)
        assert len(names) == 10
        assert [name for name in names if f"`{name}`" not in guide] == []
