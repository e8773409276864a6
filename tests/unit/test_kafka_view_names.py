"""Views by name: which names are views, which are given, and what a name's id belongs to."""

from __future__ import annotations

import pytest

from onelog.base.errors import AlreadyExists, Conflict, InvalidName, InvalidRequest, NotFound
from onelog.broker import LOCAL, Message
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.topics import StreamTopic
from onelog.protocols.kafka.views.topic import View
from tests.support.kafka_hub import desk


@pytest.fixture
async def here(tmp_path):
    async with desk(tmp_path) as made:
        yield made


async def test_a_name_that_decodes_to_a_filter_is_a_view(here):
    view = here.hub.topics.get("sensors._x2B_.telemetry")
    assert isinstance(view, View)
    assert (view.address, view.stream) == ("sensors/+/telemetry", None)
    assert view.partition_count == len(here.broker.streams.get("main").partitions)
    assert here.hub.topics.get("sensors._x23_").address == "sensors/#"


async def test_a_name_that_decodes_to_a_topic_is_a_view_once_it_has_a_record(here):
    assert here.hub.topics.find("sensors.d1") is None
    await here.broker.publish(Message("sensors/d1", b"x"), principal=LOCAL)
    view = here.hub.topics.get("sensors.d1")
    assert (view.address, view.partition_count) == ("sensors/d1", 1)
    assert here.hub.topics.find("sensors.d2") is None


async def test_a_topic_with_a_stream_of_its_own_is_no_view(here):
    assert isinstance(here.hub.topics.get("t"), StreamTopic)


async def test_a_name_that_is_not_canonical_is_refused(here):
    for name in ("a._x61_", "..", "a/b", "a b"):
        with pytest.raises(KafkaError) as refused:
            here.hub.topics.get(name)
        assert refused.value.code is ErrorCode.invalid_topic_exception


async def test_another_filter_is_another_topic(here):
    """V8."""
    views, find = here.hub.views, here.hub.topics.get
    ids = {find(name).id for name in ("a._x2B_", "a._x23_", "b._x2B_")}
    assert len(ids) == 3
    first = (await views.create("named", "a/+")).id
    assert first not in ids
    assert here.hub.topics.by_id(first) is find("named")
    await views.delete("named")
    assert here.hub.topics.by_id(first) is None
    here.hub.clock.advance(1)
    second = (await views.create("named", "a/#")).id
    assert second != first
    await views.delete("named")
    here.hub.clock.advance(1)
    assert (await views.create("named", "a/#")).id not in (first, second)


async def test_a_named_view_is_listed_and_one_without_a_name_is_not(here):
    await here.hub.views.create("telemetry", "sensors/+/telemetry")
    here.hub.topics.get("sensors._x2B_.telemetry")
    assert [topic.name for topic in here.hub.topics.listed()] == ["t", "telemetry"]
    view = here.hub.topics.get("telemetry")
    assert view.address == "sensors/+/telemetry"


async def test_names_that_are_taken_are_refused(here):
    create = here.hub.views.create
    await create("taken", "a/+")
    for name, text, error in (
        ("taken", "b/+", AlreadyExists),
        ("t", "b/+", AlreadyExists),
        ("main", "b/+", AlreadyExists),
        ("a._x2B_", "b/+", InvalidName),
        ("a b", "b/+", InvalidName),
        ("plain", "b/+/#/c", InvalidName),
        ("a.b", "a/b", InvalidRequest),
    ):
        with pytest.raises(error):
            await create(name, text)
    with pytest.raises(NotFound):
        await here.hub.views.delete("nobody")
    with pytest.raises(NotFound):
        await here.hub.views.delete("b._x2B_")
    assert [view.name for view in here.broker.views.all()] == ["taken"]


async def test_the_number_of_names_is_bounded(here, monkeypatch):
    monkeypatch.setattr("onelog.broker.views.VIEWS_MAX", 2)
    await here.hub.views.create("one", "a/+")
    await here.hub.views.create("two", "a/+")
    with pytest.raises(Conflict, match="2 named views"):
        await here.hub.views.create("three", "a/+")


async def test_what_is_remembered_of_views_is_bounded(here, monkeypatch):
    """I8: a peer may ask for any number of filters."""
    monkeypatch.setattr("onelog.protocols.kafka.views.registry.VIEWS_MAX", 10)
    ids = [here.hub.topics.get(f"a{number}._x2B_").id for number in range(100)]
    assert len(here.hub.views._views) == len(here.hub.views._ids) == 10
    assert here.hub.topics.by_id(ids[0]) is None
    assert here.hub.topics.by_id(ids[-1]) is not None
    assert here.hub.topics.get("a0._x2B_").id == ids[0]


async def test_names_are_there_after_a_restart(tmp_path):
    async with desk(tmp_path) as here:
        made = await here.hub.views.create("telemetry", "sensors/+/telemetry")
        await here.broker.publish(Message("sensors/d1/telemetry", b"x"), principal=LOCAL)
        before = made.id
        await here.broker.streams.delete("t")
    async with desk(tmp_path) as here:
        view = here.hub.topics.get("telemetry")
        assert (view.id, view.address) == (before, "sensors/+/telemetry")


async def test_a_new_stream_appears_in_a_view_that_is_known_already(here):
    view = here.hub.topics.get("_x2B_")
    before = view.partition_count
    old = [view.partition(number) for number in range(before)]
    await here.make("another")
    view = here.hub.topics.get("_x2B_")
    assert view.partition_count == before + 2
    assert [view.partition(number) for number in range(before)] == old


async def test_a_stream_that_is_made_for_the_name_of_a_view_comes_first(here):
    await here.hub.views.create("telemetry", "sensors/+/telemetry")
    await here.make("telemetry")
    assert isinstance(here.hub.topics.get("telemetry"), StreamTopic)
    assert [topic.name for topic in here.hub.topics.listed()] == ["t", "telemetry"]
    await here.broker.streams.delete("telemetry")
    assert isinstance(here.hub.topics.get("telemetry"), View)
