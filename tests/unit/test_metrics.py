"""A scrape: its text is Prometheus's format, and its series are bounded whatever there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from onelog.admin import samples
from onelog.admin.samples import REST, StreamSamples
from onelog.base.clock import ManualClock
from onelog.base.limits import METRIC_STREAMS_MAX
from onelog.broker import StreamConfig
from onelog.observe import Registry, Sample, Troubles


async def scraped(registry: Registry) -> str:
    return b"".join([part async for part in registry.render()]).decode()


def series(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (row.name, tuple(sorted(row.labels.items()))): row.value
        for family in text_string_to_metric_families(text)
        for row in family.samples
    }


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(labels=st.lists(NAMES, unique=True, max_size=20), value=st.floats(allow_nan=False))
def test_prometheus_reads_every_label_and_value_as_it_was(labels, value):
    registry = Registry(Troubles(ManualClock()))
    registry.register(
        "x", lambda: [Sample("onelog_x", "An x.", "gauge", value, (("s", row),)) for row in labels]
    )
    found = series(asyncio.run(scraped(registry)))
    for row in labels:
        assert found["onelog_x", (("s", row),)] == value


async def test_a_name_of_bytes_that_are_no_text_does_not_blind_the_scrape():
    registry = Registry(Troubles(ManualClock()))
    registry.register("x", lambda: [Sample("onelog_x", "An x.", "gauge", 1, (("s", "\udce4"),))])
    assert 'onelog_x{s="?"} 1.0' in await scraped(registry)


async def test_a_metric_of_two_sources_is_one_family_and_a_help_has_one_line():
    registry = Registry(Troubles(ManualClock()))
    for name in ("a", "b"):
        one = Sample("onelog_x_total", "Two\nlines \\.", "counter", 1, (("s", name),))
        registry.register(name, lambda one=one: [one])
    text = await scraped(registry)
    assert "# HELP onelog_x_total Two\\nlines \\\\.\n# TYPE onelog_x_total counter\n" in text
    assert text.index('s="a"') < text.index('s="b"') < text.index("onelog_metrics_source")


async def test_other_work_has_its_turn_while_a_source_of_many_samples_is_read():
    registry, turns = Registry(Troubles(ManualClock())), 0

    async def source() -> AsyncIterator[Sample]:
        for number in range(1_000):
            yield Sample("onelog_x", "An x.", "gauge", turns, (("n", str(number)),))
            await asyncio.sleep(0)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    registry.register("x", source)
    task = asyncio.create_task(other())
    await scraped(registry)
    task.cancel()
    assert turns > 900


class FakePartition:
    """A partition without a tier."""

    def tier_status(self) -> None:
        return None


class FakeStream:
    """A stream as large as its name says."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.record_count = 2
        self.config = StreamConfig(name=name)
        self.partitions = (FakePartition(),) * 3


async def shown(source: StreamSamples) -> dict[str, dict[str, float]]:
    """The metrics by stream."""
    found: dict[str, dict[str, float]] = {}
    async for sample in source():
        for _label, name in sample.labels:
            found.setdefault(name, {})[sample.name.removeprefix("onelog_stream_")] = sample.value
    return found


async def test_streams_beyond_the_bound_are_one_row_and_the_sums_are_right():
    streams = [FakeStream(f"s{number}", number) for number in range(METRIC_STREAMS_MAX * 3)]
    rows = await shown(StreamSamples(lambda: streams))
    assert len(rows) == METRIC_STREAMS_MAX + 1
    largest = {row.name for row in streams[-METRIC_STREAMS_MAX:]}
    assert set(rows) == largest | {REST}
    for name, each in (("size_bytes", None), ("records", 2), ("partitions", 3)):
        total = sum(row[name] for row in rows.values())
        assert total == (
            sum(s.size_bytes for s in streams) if each is None else each * len(streams)
        )


async def test_a_stream_keeps_its_lines_until_it_is_gone(monkeypatch):
    monkeypatch.setattr(samples, "METRIC_STREAMS_MAX", 2)
    streams = [FakeStream("a", 5), FakeStream("b", 4), FakeStream("c", 3)]
    source = StreamSamples(lambda: streams)
    assert set(await shown(source)) == {"a", "b", REST}
    streams[2].size_bytes = 100
    assert set(await shown(source)) == {"a", "b", REST}
    del streams[0]
    assert set(await shown(source)) == {"b", "c"}
    streams.clear()
    assert await shown(source) == {}


async def test_scrapes_at_the_same_time_show_the_same_streams(monkeypatch):
    monkeypatch.setattr(samples, "METRIC_STREAMS_MAX", 50)
    streams = [FakeStream(f"s{number}", number) for number in range(1_000)]
    source = StreamSamples(lambda: streams)
    first, second = await asyncio.gather(shown(source), shown(source))
    assert set(first) == set(second)
    assert len(first) == 51
