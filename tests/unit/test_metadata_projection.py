"""A projection: rows of the store in memory, changed by the watch and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from onelog.base.clock import ManualClock, SystemClock
from onelog.base.errors import (
    Conflict,
    OffsetOutOfRange,
    OutcomeUnknown,
    Timeout,
    Unavailable,
)
from onelog.metadata import projection
from onelog.metadata.local import LocalStore
from onelog.metadata.once import written_once
from onelog.metadata.projection import NOT_WATCHED, Change, Projection
from onelog.metadata.store import Delete, Entry, Put
from onelog.observe.troubles import Troubles
from tests.support.metadata import Fault, FaultyStore


def decode(entry: Entry) -> bytes:
    if entry.value == b"unreadable":
        raise ValueError(entry.key)
    return entry.value


class Node:
    """One process with a projection, over its own way to the store."""

    def __init__(self, store: LocalStore) -> None:
        self.store = FaultyStore(store)
        self.troubles = Troubles(ManualClock())
        self.heard: list[tuple[str, bytes | None, bytes | None]] = []
        self.rows = Projection(self.store, "p/", decode, self.troubles, self._changed)

    def _changed(self, changes: Sequence[Change[bytes]]) -> None:
        self.heard += changes

    def shown(self) -> dict[str, bytes]:
        return dict(self.rows.rows())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    made = await LocalStore.open(tmp_path / "metadata.db", SystemClock())
    yield made
    await made.close()


@pytest.fixture
async def node(store: LocalStore) -> AsyncIterator[Node]:
    await store.put("p/old", b"0")
    await store.put("q/other", b"0")
    made = Node(store)
    await made.rows.open()
    yield made
    await made.rows.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits long for what does not come."""
    monkeypatch.setattr(projection, "ASK_AGAIN_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(projection, "REACH_TIMEOUT_S", 0.05)
    monkeypatch.setattr(projection, "RETRY_S", 0.001)


async def test_a_write_is_seen_where_it_was_made_when_it_is_answered(node: Node) -> None:
    assert node.shown() == {"p/old": b"0"}
    revision = await node.rows.put("p/new", b"1")
    assert node.shown() == {"p/old": b"0", "p/new": b"1"}
    assert node.rows.revision == revision
    await node.rows.delete("p/old")
    assert node.shown() == {"p/new": b"1"}
    assert node.heard == [
        ("p/old", None, b"0"),
        ("p/new", None, b"1"),
        ("p/old", b"0", None),
    ]


async def test_a_refused_write_changes_nothing(node: Node, store: LocalStore) -> None:
    """I9."""
    node.store.faults.append(Fault.REFUSED)
    with pytest.raises(Unavailable):
        await node.rows.put("p/old", b"1")
    assert node.shown() == {"p/old": b"0"}
    assert len((await store.range("")).entries) == 2


async def test_the_faster_one_of_two_nodes_wins_and_the_other_knows_it_then(
    node: Node, store: LocalStore
) -> None:
    other = Node(store)
    await other.rows.open()
    done = await asyncio.gather(
        node.rows.put("p/old", b"node"), other.rows.put("p/old", b"other"), return_exceptions=True
    )
    assert [isinstance(result, Conflict) for result in done] == [False, True]
    assert other.shown() == node.shown() == {"p/old": b"node"}
    await other.rows.put("p/old", b"other")
    assert other.shown() == {"p/old": b"other"}
    await other.rows.close()


async def test_a_write_that_meets_rows_it_has_not_seen_is_a_conflict_that_shows_them(
    node: Node, store: LocalStore
) -> None:
    watch = node.store.watches[-1]
    watch.hide()
    await store.put("p/old", b"another")
    writing = asyncio.create_task(node.rows.put("p/old", b"mine"))
    await asyncio.sleep(0.01)
    assert not writing.done()
    watch.show()
    with pytest.raises(Conflict):
        await writing
    assert node.shown() == {"p/old": b"another"}


async def test_rows_beside_the_prefix_are_written_along_or_not_at_all(
    node: Node, store: LocalStore
) -> None:
    await node.rows.write([Delete("p/old"), Put("q/other", b"1")])
    assert [entry.key for entry in (await store.range("")).entries] == ["q/other"]
    await store.put("p/old", b"again")
    with pytest.raises(Conflict):
        await node.rows.write([Put("p/old", b""), Put("q/other", b"2")], known={"p/old": 0})
    entry = await store.get("q/other")
    assert entry is not None
    assert entry.value == b"1"


async def test_a_row_that_a_write_needs_as_it_was_is_compared_though_it_is_not_written(
    node: Node, store: LocalStore
) -> None:
    row = node.rows.get("p/old")
    assert row is not None
    await node.rows.write([Put("p/a", b"")], known={"p/old": row.revision})
    await store.delete("p/old")
    with pytest.raises(Conflict):
        await node.rows.write([Put("p/b", b"")], known={"p/old": row.revision})
    assert node.shown() == {"p/a": b""}


# -- unknown outcomes


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE, Fault.UNKNOWN_LATE])
async def test_a_change_of_unknown_outcome_is_made_exactly_once(
    node: Node, store: LocalStore, fault: Fault, quick: None
) -> None:
    node.store.faults.append(fault)
    await node.rows.put("p/old", b"1")
    assert node.shown() == {"p/old": b"1"}
    await node.store.deliver()  # what came late finds another revision
    entry = await store.get("p/old")
    assert entry is not None
    assert (entry.value, entry.version) == (b"1", 2)


async def test_a_change_of_unknown_outcome_that_another_overtook_was_not_made(
    node: Node, store: LocalStore, quick: None
) -> None:
    node.store.faults += [Fault.UNKNOWN_NOT_DONE, Fault.UNKNOWN_NOT_DONE]
    writing = asyncio.create_task(node.rows.put("p/old", b"mine"))
    await asyncio.sleep(0)
    await store.put("p/old", b"another")
    with pytest.raises(Conflict):
        await writing
    assert node.shown() == {"p/old": b"another"}


async def test_a_change_of_unknown_outcome_that_was_made_and_overtaken_was_made(
    node: Node, store: LocalStore, quick: None
) -> None:
    """The first change of its row shows it, though the row is another by now."""
    watch = node.store.watches[-1]
    watch.hide()
    node.store.faults.append(Fault.UNKNOWN_DONE)
    writing = asyncio.create_task(node.rows.put("p/old", b"mine"))
    theirs = await store.watch("p/")
    await anext(aiter(theirs))
    await store.put("p/old", b"another")
    watch.show()
    await writing
    await node.rows.put("p/last", b"")
    assert node.shown()["p/old"] == b"another"
    assert ("p/old", b"0", b"mine") in node.heard


async def test_a_write_that_is_found_when_rows_are_loaded_again_has_the_revision_of_its_row(
    node: Node, store: LocalStore
) -> None:
    watch = node.store.watches[-1]
    watch.hide()
    node.store.faults.append(Fault.UNKNOWN_DONE)
    writing = asyncio.create_task(node.rows.put("p/old", b"1"))
    while (made := await store.get("p/old")) is None or made.value != b"1":  # noqa: ASYNC110
        await asyncio.sleep(0)
    later = await store.put("p/new", b"2")
    watch.end(OffsetOutOfRange("forgotten"))
    assert await writing == made.mod_revision < later
    row = node.rows.get("p/old")
    assert row is not None
    assert row.revision == made.mod_revision


async def test_a_new_row_of_unknown_outcome_is_shown_by_the_watch_or_stays_unknown(
    node: Node, store: LocalStore, quick: None
) -> None:
    """It is not asked again: it may have come, and another may have taken it away."""
    node.store.faults.append(Fault.UNKNOWN_DONE)
    await node.rows.put("p/new", b"1")
    assert node.shown()["p/new"] == b"1"
    node.store.faults.append(Fault.UNKNOWN_LATE)
    with pytest.raises(OutcomeUnknown):
        await node.rows.put("p/late", b"1")
    assert "p/late" not in node.shown()
    await node.store.deliver()
    await node.rows.put("p/last", b"")
    assert node.shown()["p/late"] == b"1", "what nobody knew counts once it shows"


async def test_an_outcome_that_cannot_be_found_out_stays_unknown(node: Node, quick: None) -> None:
    node.store.faults += [Fault.UNKNOWN_NOT_DONE, Fault.REFUSED, Fault.UNKNOWN_NOT_DONE]
    with pytest.raises(OutcomeUnknown):
        await node.rows.put("p/old", b"1")
    assert node.shown() == {"p/old": b"0"}


# -- the watch


async def test_a_change_that_is_stored_and_not_seen_yet_is_no_success(
    node: Node, quick: None
) -> None:
    watch = node.store.watches[-1]
    watch.hide()
    with pytest.raises(Timeout, match="stored") as caught:
        await node.rows.put("p/old", b"1")
    assert not isinstance(caught.value, OutcomeUnknown)
    assert node.shown() == {"p/old": b"0"}
    watch.show()
    await node.rows.put("p/last", b"")
    assert node.shown()["p/old"] == b"1"


@pytest.mark.parametrize("error", [OffsetOutOfRange("forgotten"), Unavailable("cut")])
async def test_rows_are_loaded_anew_when_the_watch_ends(
    node: Node, store: LocalStore, error: Exception, quick: None
) -> None:
    await node.rows.put("p/stays", b"1")
    watch = node.store.watches[-1]
    watch.hide()
    await store.delete("p/old")
    await store.put("p/new", b"1")
    node.heard.clear()
    watch.end(error)
    await node.rows.put("p/last", b"")
    assert node.shown() == {"p/stays": b"1", "p/new": b"1", "p/last": b""}
    assert sorted(change[0] for change in node.heard) == ["p/last", "p/new", "p/old"]
    assert {("p/new", None, b"1"), ("p/old", b"0", None)} <= set(node.heard)
    assert not node.troubles.standing()


async def test_a_row_that_cannot_be_read_stands_as_a_trouble_and_the_last_rows_count(
    node: Node, store: LocalStore, quick: None
) -> None:
    await store.put("p/old", b"unreadable")
    async with asyncio.timeout(5):
        while not node.troubles.standing():  # noqa: ASYNC110 - a register has no wake-up
            await asyncio.sleep(0.001)
    (row,) = node.troubles.standing()
    assert (row.kind, row.place) == (NOT_WATCHED, "p/")
    assert node.shown() == {"p/old": b"0"}
    revision = await store.put("p/old", b"1")
    await node.rows.reached(revision)
    assert node.shown() == {"p/old": b"1"}
    async with asyncio.timeout(5):
        while node.troubles.standing():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_an_owner_that_raises_over_a_change_keeps_no_other_change_back(node: Node) -> None:
    def fail(_changes: object) -> None:
        raise RuntimeError("a defect")

    node.rows._changed = fail
    await node.rows.put("p/a", b"1")
    await node.rows.put("p/b", b"2")
    assert node.shown() == {"p/old": b"0", "p/a": b"1", "p/b": b"2"}
    assert node.troubles.count(projection.LISTENER) == 2


# -- keys that are written once


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.UNKNOWN_DONE])
async def test_a_key_that_is_written_once_keeps_its_first_value(
    store: LocalStore, fault: Fault
) -> None:
    way = FaultyStore(store)
    way.faults.append(fault)
    assert await written_once(way, "k", b"first") == b"first"
    assert await written_once(way, "k", b"second") == b"first"


async def test_nobody_goes_on_with_a_value_that_was_perhaps_not_written(store: LocalStore) -> None:
    """I9: what comes late would be another one's value."""
    way = FaultyStore(store)
    way.faults.append(Fault.UNKNOWN_LATE)
    with pytest.raises(Unavailable, match="not known"):
        await written_once(way, "k", b"late")
    await way.deliver()
    assert await written_once(way, "k", b"second") == b"late"
