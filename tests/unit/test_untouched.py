"""A change of streams leaves alone what is remembered of topics that it does not concern."""

from __future__ import annotations

from pathlib import Path

from onelog.broker import EARLIEST, LOCAL, Message, StreamConfig
from onelog.log.touched import TopicCache
from tests.support.brokers import read_all, running, say, spoken


def own(name: str, *captures: str) -> StreamConfig:
    return StreamConfig(name=name, captures=captures, engine="memory")


async def test_homes_of_topics_that_a_new_stream_does_not_capture_are_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        publisher = broker.publisher
        kept = {name: publisher._home(name, None) for name in ("a/1", "b/1", "$x/e/k")}
        await broker.streams.create(own("s", "b/#"))
        await broker.streams.create(own("t", "c"))
        for name in ("a/1", "$x/e/k"):
            assert publisher._homes[name] is kept[name]
        assert "b/1" not in publisher._homes
        assert publisher._home("b/1", None)[0].name == "s"
        await broker.streams.delete("s")
        assert publisher._homes["a/1"] is kept["a/1"]
        assert publisher._home("b/1", None)[0].name == "main"


async def test_a_stage_is_the_same_after_changes_that_it_is_no_part_of(tmp_path: Path) -> None:
    """Two of one partition could write its records in another order than they came in."""
    async with running(tmp_path) as broker:
        route = broker.publisher.route("a/1", LOCAL)
        assert route is not None
        await broker.streams.create(own("b", "b/#"))
        await broker.streams.create(own("own", "o"))
        stage_of_own = broker.publisher.route("o", LOCAL)
        assert broker.publisher.route("a/1", LOCAL) == route
        await broker.streams.alter(own("b", "c/#"))  # main gains b/#
        assert broker.publisher.route("a/1", LOCAL) == route
        await broker.streams.alter(own("own", "o", "p"))  # records carry their topic from now on
        wider = broker.publisher.route("o", LOCAL)
        assert wider is not None
        assert stage_of_own is not None
        assert wider[0] is not stage_of_own[0]
        await broker.streams.delete("own")
        assert wider[0].owner.partition not in broker.publisher._stages
        assert broker.publisher.route("a/1", LOCAL) == route


async def test_sources_that_a_change_does_not_touch_are_kept_and_their_waits_sleep_on(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        woken: list[str] = []
        readings = {}
        for text in ("a/1", "a/#", "b/1", "b/+/x", "#"):
            reading = readings[text] = broker.cursors.reading([text], [])
            reading.when_readable(lambda _error, text=text: woken.append(text))
        before = {text: reading.sources for text, reading in readings.items()}
        await broker.streams.create(own("s", "b/#"))
        touched = {"b/1", "b/+/x", "#"}
        assert set(woken) == touched
        for text, reading in readings.items():
            assert (reading.sources is before[text]) == (text not in touched)
            holds = {source.stream.name for source in reading.sources.sources}
            assert holds == ({"main", "s"} if text in touched else {"main"})


async def test_a_reader_of_a_touched_filter_follows_its_topic_and_others_read_on(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        cursors = {
            text: await broker.cursors.open_offset(text, [text], start=EARLIEST, principal=LOCAL)
            for text in ("a/+", "b/1", "#")
        }
        await say(broker, "a/1", "1")
        await say(broker, "b/1", "2")
        await broker.streams.create(own("s", "b/#"))
        await say(broker, "b/1", "3")
        await broker.streams.alter(own("s", "c/#"))
        await say(broker, "b/1", "4")
        await say(broker, "a/2", "5")
        assert spoken(read_all(cursors["a/+"])) == ["a/1=1", "a/2=5"]
        assert spoken(read_all(cursors["b/1"])) == ["b/1=2", "b/1=3", "b/1=4"]
        assert len(read_all(cursors["#"])) == 5
        await broker.streams.delete("s")
        await say(broker, "b/1", "6")
        assert spoken(read_all(cursors["b/1"])) == ["b/1=6"]


async def test_the_streams_of_the_broker_itself_touch_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.publish(Message("a", b"x"), principal=LOCAL)
        home = broker.publisher._homes["a"]
        everything = broker.cursors.sources(["#"])
        await broker.open_kept("~mine")
        assert broker.streams.changed == {"~mine"}
        assert broker.publisher._homes["a"] is home
        assert broker.cursors.sources(["#"]) is everything


def test_a_cache_of_topics_is_bounded() -> None:
    cache: TopicCache[int] = TopicCache(10)
    for number in range(35):
        cache.keep(f"t/{number}", number)
        assert len(cache.known) <= 10
        assert cache.known[f"t/{number}"] == number
        assert sum(map(len, cache._groups.values())) == len(cache.known)
