"""A view against a naive model: any batches, any filter, any offset, any bounds (V1 to V7)."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.base.topics import is_exact
from onelog.kernel import TopicFilter
from onelog.protocols.kafka.views import looking
from onelog.protocols.kafka.views.cache import FindingCache
from onelog.protocols.kafka.views.news import News
from onelog.protocols.kafka.views.partition import ViewPartition
from onelog.protocols.kafka.views.places import ShownPartition
from tests.property.test_reader import FILTERS, World, steps, syncer
from tests.support.kafka_views import drain

__all__ = ["syncer"]  # the fixture


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    script=steps,
    more=steps,
    text=st.sampled_from(FILTERS),
    start=st.integers(0, 20),
    max_bytes=st.sampled_from((1, 100, 300, 1 << 20)),
    scan_bytes=st.sampled_from((1, 1 << 20)),
    run_bytes=st.sampled_from((1, 200, 1 << 18)),
    near=st.sampled_from((0, 3, 1000)),
    span=st.sampled_from((0, 64)),
    by_record=st.booleans(),
)
def test_a_view_shows_what_the_model_shows(
    syncer, script, more, text, start, max_bytes, scan_bytes, run_bytes, near, span, by_record
):
    for topic_index in (False, True):
        world = World(syncer, topic_index)
        place = ShownPartition(world.source.stream, world.partition)
        cache, news = FindingCache(max_bytes=2000), News(world.partition.troubles)
        view = ViewPartition(None, 0, place, TopicFilter(text.encode()), cache, news)
        with (
            patch.object(looking, "RUN_BYTES", run_bytes),
            patch.object(looking, "NEAR_OFFSETS", near),
            patch.object(looking, "INDEX_SPAN", span),
        ):
            for part in (script, more):  # the second time with what the first left in the cache
                for step in part:
                    world.apply(step)
                first = min(start, int(world.partition.last_stable_offset))
                shown = drain(
                    view, first, max_bytes=max_bytes, scan_bytes=scan_bytes, by_record=by_record
                )
                wanted = world.visible(text, first)
                assert [(row.offset, row.topic.decode()) for row in shown] == wanted
                assert all(row.value == str(row.offset).encode() for row in shown)
                every = world.visible(text, 0)
                assert view.ends().high_watermark <= world.partition.last_stable_offset
                if every:
                    assert view.ends().high_watermark > every[-1][0]
                if is_exact(text) and topic_index and every and not world.aborted:
                    held = [row.offset for row in world.records if row.topic == text]
                    stable = int(world.partition.last_stable_offset)
                    assert view.ends().high_watermark == max(at for at in held if at < stable) + 1
