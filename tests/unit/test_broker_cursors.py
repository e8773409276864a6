"""Cursors through the door: names, kinds, dead letters, and what an idle one costs."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from pathlib import Path

import pytest

from onelog.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidName,
    InvalidRequest,
    OnelogError,
    PartitionStopped,
)
from onelog.broker import (
    EARLIEST,
    LOCAL,
    MAIN_CONFIG,
    Broker,
    BrokerSettings,
    Durability,
    Message,
    QueueSettings,
    StreamConfig,
)
from onelog.broker.dead_letters import DEAD_LETTER_HEADER
from onelog.record.headers import CONTENT_TYPE, EXPIRY, TOPIC, find_header
from tests.support.brokers import home_of, read_all, running, say

CURSOR_BYTES_MAX = 1024


async def test_a_name_is_open_once_and_belongs_to_one_kind_and_filter(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        desk = broker.cursors
        queue = await desk.open_queue("c", ["a/#", "b"], principal=LOCAL)
        with pytest.raises(AlreadyExists):
            await desk.open_queue("c", ["a/#", "b"], principal=LOCAL)
        await desk.close_cursor(queue)
        with pytest.raises(Conflict):
            await desk.open_offset("c", ["a/#", "b"], principal=LOCAL)
        with pytest.raises(Conflict):
            await desk.open_queue("c", ["a/#"], principal=LOCAL)
        again = await desk.open_queue("c", ["b", "a/#"], principal=LOCAL)
        await desk.close_cursor(queue)  # the old one: no effect
        assert desk.find("c") is again


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025])
async def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as broker:
        with pytest.raises(InvalidRequest):
            await broker.cursors.open_offset(name, ["t"], principal=LOCAL)
        with pytest.raises(InvalidRequest):
            await broker.cursors.open_offset("ok", [], principal=LOCAL)
        with pytest.raises(InvalidName):
            await broker.cursors.open_offset("ok", ["a/#/b"], principal=LOCAL)
        assert broker.cursors.names() == []


async def test_a_cursor_that_could_not_be_kept_is_not_open(tmp_path: Path) -> None:
    """I9."""
    async with running(tmp_path) as broker:
        partition = broker.streams.get("~cursors").partitions[0]
        broken = PartitionStopped("it broke")
        partition.refusal = broken
        with pytest.raises(PartitionStopped):
            await broker.cursors.open_queue("q", ["t"], principal=LOCAL)
        assert broker.cursors.names() == []
        partition.refusal = None
        await broker.cursors.open_queue("q", ["t"], principal=LOCAL)


async def test_an_open_that_is_cancelled_leaves_the_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:

        async def for_ever(*_cursors: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(broker.cursors._checkpoints, "save", for_ever)
        opening = asyncio.ensure_future(broker.cursors.open_queue("q", ["t"], principal=LOCAL))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        monkeypatch.undo()
        await broker.cursors.open_queue("q", ["t"], principal=LOCAL)


# -- dead letters

SETTINGS = QueueSettings(deliveries_max=1, dead_letter_topic="dead/q")


async def test_a_dead_letter_carries_the_record_and_why_it_was_given_up(tmp_path: Path) -> None:
    """I6: payload, key and headers; a new topic, and no expiry any more."""
    async with running(tmp_path) as broker:
        queue = await broker.cursors.open_queue("q", ["t"], settings=SETTINGS, principal=LOCAL)
        headers = ((b"h", b"1"), (b"h", None), (CONTENT_TYPE, b"x/y"), (EXPIRY, b"9" * 13))
        await broker.publish(Message("t", b"payload", b"key", headers), principal=LOCAL)
        await broker.publish(Message("t", None, keyless=True), principal=LOCAL)
        rejected, limited = queue.acquire("c", 2)
        queue.reject(rejected.token)
        queue.release(limited.token)
        letters = await broker.cursors.open_offset("letters", ["dead/q"], principal=LOCAL)
        found = []
        while len(found) < 2:
            found += await letters.next(10, 5)
        one, two = found
        assert (one.value, one.key) == (b"payload", b"key")
        ours = (DEAD_LETTER_HEADER, TOPIC)
        assert [pair for pair in one.headers if pair[0] not in ours] == [
            (b"h", b"1"),
            (b"h", None),
            (CONTENT_TYPE, b"x/y"),
        ]
        assert one.application_headers() == ((b"h", b"1"), (b"h", None))
        why = json.loads(find_header(one.headers, DEAD_LETTER_HEADER) or b"")
        assert (why["reason"], why["queue"], why["topic"]) == ("rejected", "q", "t")
        assert (why["count"], why["offset"]) == (1, 0)
        assert (two.value, two.key) == (None, None)
        why = json.loads(find_header(two.headers, DEAD_LETTER_HEADER) or b"")
        assert why["reason"] == "delivery_limit"
        assert queue.pending() == 0
        assert broker.cursors.dead_letters.written == 2


async def test_a_dead_letter_is_settled_only_when_it_is_durable_elsewhere(tmp_path: Path) -> None:
    """I4."""
    async with running(tmp_path) as broker:
        await broker.streams.create(
            StreamConfig(name="dead", captures=("dead/#",), durability=Durability.FSYNC)
        )
        dead = broker.streams.get("dead").partitions[0]
        dead.syncing = True  # as if a sync were under way: nothing becomes visible
        queue = await broker.cursors.open_queue("q", ["t"], settings=SETTINGS, principal=LOCAL)
        await say(broker, "t", "x")
        (delivery,) = queue.acquire("c")
        queue.release(delivery.token)
        for _ in range(20):
            await asyncio.sleep(0)
        assert dead.end_offset == 1
        assert queue.pending() == 1
        assert queue.positions()[0].offset == 0
        assert queue.acquire("c") == []
        dead.syncing = False
        dead.request_sync()
        await asyncio.wait_for(dead.wait_visible(dead.end_offset - 1), 5)  # type: ignore[arg-type]
        assert queue.pending() == 0
        assert queue.positions()[0].offset == 1


async def test_a_dead_letter_that_cannot_be_handed_over_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No consumer gets it in between, its count stays, it is handed over once."""
    monkeypatch.setattr("onelog.broker.dead_letters._RETRY_MS", 1_000)
    async with running(tmp_path) as broker:
        queue = await broker.cursors.open_queue("q", ["t"], settings=SETTINGS, principal=LOCAL)
        await say(broker, "t", "x")
        target = home_of(broker, "dead/q")[1]
        if target is home_of(broker, "t")[1]:
            pytest.skip("both topics live in one partition")
        (delivery,) = queue.acquire("c")
        target.refusal = PartitionStopped("it broke")
        queue.release(delivery.token)
        clock = queue._clock
        for _ in range(3):
            assert queue.acquire("c") == []
            assert queue.pending() == 1
            clock.advance(1.1)  # type: ignore[attr-defined]
            queue.run_due()
        target.refusal = None
        clock.advance(1.1)  # type: ignore[attr-defined]
        queue.run_due()
        letters = await broker.cursors.open_offset("letters", ["dead/q"], principal=LOCAL)
        (record,) = await letters.next(10, 5)
        assert json.loads(find_header(record.headers, DEAD_LETTER_HEADER) or b"")["count"] == 1
        assert queue.pending() == 0
        assert read_all(letters) == []


async def test_a_queue_without_a_dead_letter_topic_drops_what_it_gives_up(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        queue = await broker.cursors.open_queue("q", ["t"], principal=LOCAL)
        await say(broker, "t", "x")
        queue.reject(queue.acquire("c")[0].token)
        assert (queue.pending(), queue.dropped) == (0, 1)
        assert queue.positions()[0].offset == 1


# -- memory


async def measure(broker: Broker, kind: str, count: int) -> float:
    """Bytes per idle cursor on `main`, each with a filter of its own."""
    desk = broker.cursors
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(count):
        name, filters = f"{kind}-{number}", [f"site/{number}/#"]
        if kind == "offset":
            await desk.open_offset(name, filters, principal=LOCAL)
        elif kind == "session":
            await desk.open_session(name, filters, principal=LOCAL)
        elif kind == "queue":
            await desk.open_queue(name, filters, principal=LOCAL)
        else:
            await desk.open_table(name, filters, principal=LOCAL)
        await asyncio.sleep(0)  # so that what the calls themselves needed is gone
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / count


@pytest.mark.parametrize("kind", ["offset", "session", "queue"])
async def test_an_idle_cursor_costs_at_most_a_kilobyte(tmp_path: Path, kind: str) -> None:
    """The bar of the issue: over the eight partitions of `main`, kept state included."""
    main = StreamConfig(name="main", captures=("#",), partitions=8, durability=Durability.OS)
    assert main.partitions == MAIN_CONFIG.partitions
    async with running(tmp_path, BrokerSettings(main=main)) as broker:
        cursor_stream = broker.streams.get("~cursors").partitions[0]
        cursor_stream.promise(Durability.OS)  # for speed; what is measured stays the same
        await say(broker, "site/1/x", *map(str, range(300)))
        each = await measure(broker, kind, 1_000)
        print(f"{kind}: {each:.0f} bytes")  # noqa: T201 - shown when it fails
        assert each <= CURSOR_BYTES_MAX


async def test_errors_of_the_hook_do_not_reach_the_consumer(tmp_path: Path) -> None:
    """A dead-letter topic that can never be published to keeps its record, bounded."""
    async with running(tmp_path) as broker:
        bad = QueueSettings(deliveries_max=1, dead_letter_topic="bad/#")
        queue = await broker.cursors.open_queue(
            "q", ["t"], settings=bad, start=EARLIEST, principal=LOCAL
        )
        await say(broker, "t", "x")
        try:
            queue.release(queue.acquire("c")[0].token)
        except OnelogError as error:  # pragma: no cover - what the test is about
            pytest.fail(f"the consumer saw {error}")
        assert queue.pending() == 1
