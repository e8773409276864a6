"""The catalog follows the store: what others wrote takes effect, what was refused never does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import (
    AlreadyExists,
    Conflict,
    OutcomeUnknown,
    StreamNotFound,
    Timeout,
    Unavailable,
)
from onelog.log.catalog import Catalog
from onelog.log.config import StreamConfig
from onelog.log.partition import Durability
from onelog.log.syncer import Syncer
from onelog.metadata import projection
from onelog.metadata.local import LocalStore
from onelog.metadata.store import MetadataStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Engine
from onelog.storage.memory import MemoryEngine
from onelog.storage.segment import SegmentEngine
from tests.logs import pairs, put, row
from tests.support.metadata import Fault, FaultyStore


class Peer:
    """A node with its own disk and its own way to a store that it shares."""

    def __init__(self, store: MetadataStore, directory: Path) -> None:
        self.clock = ManualClock()
        self.troubles = Troubles(self.clock)
        self.store = FaultyStore(store)
        self.syncer = Syncer(2)
        self.engines: dict[str, Engine] = {
            "segment": SegmentEngine(directory / "segment", self.clock),
            "memory": MemoryEngine(self.clock),
        }
        self.catalog = Catalog(self.store, self.engines, self.syncer, self.clock, self.troubles)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what a change of streams brings about."""
        changed = asyncio.Event()
        self.catalog.on_change.append(changed.set)
        async with asyncio.timeout(5):
            while not is_so():
                await changed.wait()
                changed.clear()
        self.catalog.on_change.remove(changed.set)

    async def close(self) -> None:
        await self.catalog.close()
        for engine in self.engines.values():
            engine.close()
        await self.syncer.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    made = await LocalStore.open(tmp_path / "metadata.db", ManualClock())
    yield made
    await made.close()


@pytest.fixture
async def node(store: LocalStore, tmp_path: Path) -> AsyncIterator[Peer]:
    made = Peer(store, tmp_path / "node")
    await made.catalog.open()
    yield made
    await made.close()


@pytest.fixture
async def other(store: LocalStore, tmp_path: Path) -> AsyncIterator[Peer]:
    made = Peer(store, tmp_path / "other")
    await made.catalog.open()
    yield made
    await made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "ASK_AGAIN_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(projection, "REACH_TIMEOUT_S", 0.05)


def config(name: str = "s", *captures: str, **fields: object) -> StreamConfig:
    made = StreamConfig(name=name, captures=captures, durability=Durability.OS)
    return msgspec.structs.replace(made, **fields)


async def test_a_stream_that_another_node_makes_changes_and_deletes_is_so_here(
    node: Peer, other: Peer
) -> None:
    made = await node.catalog.create(config("s", "a"))
    await other.until(lambda: other.catalog.find("s") is not None)
    stream = other.catalog.get("s")
    assert stream.record == made.record
    assert other.catalog.home("a") is stream
    await node.catalog.alter(config("s", "a", "b", partitions=3, message_bytes_max=500))
    await other.until(lambda: len(stream.partitions) == 3)
    assert stream.config == made.config
    assert stream.partitions[0].message_bytes_max == 500
    assert other.catalog.home("b") is stream
    put(stream.partitions[0], row(b"k", b"1"))
    await node.catalog.delete("s")
    await other.until(lambda: other.catalog.find("s") is None)
    assert stream.partitions[0].stopped is not None
    assert not other.troubles.rows()


async def test_a_command_that_did_not_see_another_ones_change_writes_nothing(
    node: Peer, other: Peer, store: LocalStore
) -> None:
    """I9: the store decides, not what this node believes."""
    await node.catalog.create(config("s", "a"))
    await other.until(lambda: other.catalog.find("s") is not None)
    watch = other.store.watches[-1]
    watch.hide()
    await node.catalog.alter(config("s", "a", message_bytes_max=500))
    before = await store.range("streams/")
    altering = asyncio.create_task(other.catalog.alter(config("s", "a", message_bytes_max=600)))
    await asyncio.sleep(0.01)
    watch.show()
    with pytest.raises(Conflict):
        await altering
    assert await store.range("streams/") == before
    await other.until(lambda: other.catalog.get("s").config.message_bytes_max == 500)
    await other.catalog.alter(config("s", "a", message_bytes_max=600))
    await node.until(lambda: node.catalog.get("s").config.message_bytes_max == 600)


async def test_of_two_nodes_that_make_a_stream_at_once_one_does(node: Peer, other: Peer) -> None:
    done = await asyncio.gather(
        node.catalog.create(config("s", "a")),
        other.catalog.create(config("s", "a")),
        return_exceptions=True,
    )
    failed = [result for result in done if isinstance(result, BaseException)]
    assert len(failed) == 1
    assert isinstance(failed[0], (Conflict, AlreadyExists))
    for peer in (node, other):
        await peer.until(lambda peer=peer: peer.catalog.find("s") is not None)  # type: ignore[misc]
    assert node.catalog.get("s").record == other.catalog.get("s").record


async def test_a_stream_that_was_deleted_and_made_anew_elsewhere_is_another_one_here(
    node: Peer, other: Peer
) -> None:
    first = await node.catalog.create(config("s", "a"))
    await other.until(lambda: other.catalog.find("s") is not None)
    put(other.catalog.get("s").partitions[0], row(b"k", b"old"))
    watch = other.store.watches[-1]
    watch.hide()
    await node.catalog.delete("s")
    second = await node.catalog.create(config("s", "a"))
    assert first.record.id != second.record.id
    watch.show()
    await other.until(
        lambda: (
            (found := other.catalog.find("s")) is not None and found.record.id == second.record.id
        )
    )
    assert pairs(other.catalog.get("s").partitions[0].log) == []


@pytest.mark.parametrize("command", ["create", "alter", "delete"])
async def test_a_refused_command_changes_nothing_in_memory(node: Peer, command: str) -> None:
    stream = await node.catalog.create(config("s", "a"))
    before = stream.record
    node.store.faults.append(Fault.REFUSED)
    with pytest.raises(Unavailable):
        match command:
            case "create":
                await node.catalog.create(config("t", "b"))
            case "alter":
                await node.catalog.alter(config("s", "a", "b"))
            case "delete":
                await node.catalog.delete("s")
    assert [row.name for row in node.catalog.streams()] == ["s"]
    assert node.catalog.get("s").record == before
    assert stream.partitions[0].stopped is None
    put(stream.partitions[0], row(b"k", b"1"))


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE, Fault.UNKNOWN_LATE])
@pytest.mark.parametrize("command", ["alter", "delete"])
async def test_a_command_of_unknown_outcome_is_carried_out_once(
    node: Peer, command: str, fault: Fault, quick: None
) -> None:
    stream = await node.catalog.create(config("s", "a"))
    node.store.faults.append(fault)
    if command == "alter":
        await node.catalog.alter(config("s", "a", "b"))
        assert node.catalog.home("b") is stream
    else:
        await node.catalog.delete("s")
        with pytest.raises(StreamNotFound):
            node.catalog.get("s")
    await node.store.deliver()
    assert node.catalog.find("s") is (stream if command == "alter" else None)


async def test_a_stream_whose_making_was_unknown_is_there_when_it_shows(
    node: Peer, quick: None
) -> None:
    node.store.faults.append(Fault.UNKNOWN_LATE)
    with pytest.raises(OutcomeUnknown):
        await node.catalog.create(config("s", "a"))
    assert node.catalog.find("s") is None
    await node.store.deliver()
    await node.until(lambda: node.catalog.find("s") is not None)
    put(node.catalog.get("s").partitions[0], row(b"k", b"1"))
    with pytest.raises(AlreadyExists):
        await node.catalog.create(config("s", "a"))


async def test_records_carry_their_topic_while_it_is_unknown_whether_captures_changed(
    node: Peer, quick: None
) -> None:
    """If they did, whoever reads them later looks for the topic beside them."""
    main = await node.catalog.create(config("main", "#"))
    put(main.partitions[0], row(b"k", b"0"))
    stream = await node.catalog.create(config("s", "a"))
    stream.record = msgspec.structs.replace(stream.record, fixed_topic="a")
    put(stream.partitions[0], row(b"k", b"1"))
    watch = node.store.watches[-1]
    watch.hide()
    with pytest.raises(Timeout):
        await node.catalog.alter(config("s", "a", "b/#"))
    assert stream.tags_topics
    assert stream.config.captures == ("a",)
    put(stream.partitions[0], row(b"k", b"2"))
    watch.show()
    await node.until(lambda: stream.config.captures == ("a", "b/#"))
    assert stream.fixed_topic_at(0, 0) == "a"
    assert stream.fixed_topic_at(0, 1) is None
    assert stream.record.moves
    assert all(move.is_exact for move in stream.record.moves)
