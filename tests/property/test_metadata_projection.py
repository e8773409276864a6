"""Two projections of one store, whatever fails: they end equal, and no answer was a lie (I9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.base.clock import ManualClock, SystemClock
from onelog.base.errors import Conflict, OffsetOutOfRange, Timeout, Unavailable
from onelog.metadata import projection
from onelog.metadata.local import LocalStore
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Delete, Entry, Op, Put
from onelog.observe.troubles import Troubles
from tests.support.metadata import Fault, FaultyStore

KEYS = ["p/a", "p/b", "p/c"]
WRITES = st.tuples(
    st.integers(0, 1),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True),
    st.booleans(),
    st.lists(st.sampled_from(Fault), max_size=3),
)
"""Which node, the rows, whether the first of them goes, what becomes of it."""
STEPS = st.one_of(
    st.lists(WRITES, min_size=1, max_size=3),
    st.tuples(st.sampled_from(["hide", "show", "cut", "forget", "deliver"]), st.integers(0, 1)),
)


class Node:
    def __init__(self, store: LocalStore) -> None:
        self.store = FaultyStore(store)
        self.seen: set[bytes] = set()
        troubles = Troubles(ManualClock())
        self.rows = Projection(self.store, "p/", _value, troubles, self._changed)

    def _changed(self, changes: Sequence[Change[bytes]]) -> None:
        self.seen.update(change.after for change in changes if change.after is not None)

    async def disturb(self, what: str) -> None:
        watch = self.store.watches[-1]
        match what:
            case "hide":
                watch.hide()
            case "show":
                watch.show()
            case "cut":
                watch.end(Unavailable("cut"))
            case "forget":
                watch.end(OffsetOutOfRange("forgotten"))
            case "deliver":
                await self.store.deliver()


def _value(entry: Entry) -> bytes:
    return entry.value


class Run:
    """A history: what was asked for, and what was answered."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.answered: set[bytes] = set()
        self.refused: set[bytes] = set()
        self._number = 0

    async def write(self, node: Node, keys: list[str], deletes: bool, faults: list[Fault]) -> None:
        self._number += 1
        mark = b"%d" % self._number
        ops: list[Op] = [Put(key, mark) for key in keys]
        if deletes and len(keys) > 1 and node.rows.get(keys[0]) is not None:
            ops[0] = Delete(keys[0])
        node.store.faults.extend(faults)
        try:
            revision = await node.rows.write(ops)
        except (Conflict, Unavailable):
            self.refused.add(mark)
        except Timeout:
            pass  # perhaps it was made
        else:
            self.answered.add(mark)
            self._check_visible(node, ops, revision)

    @staticmethod
    def _check_visible(node: Node, ops: list[Op], revision: int) -> None:
        """Who was answered sees its change, or a later one of the same row."""
        assert node.rows.revision >= revision
        for op in ops:
            row = node.rows.get(op.key)
            if isinstance(op, Put) and row is not None and row.revision == revision:
                assert row.value == op.value
            elif node.rows.revision == revision:
                assert isinstance(op, Delete)
                assert row is None


async def _reached(node: Node, revision: int) -> None:
    async with asyncio.timeout(10):
        while node.rows.revision < revision:
            with contextlib.suppress(Timeout):
                await node.rows.reached(revision)


async def _run(path: Path, steps: Sequence[object]) -> None:
    store = await LocalStore.open(path, SystemClock())
    nodes = [Node(store), Node(store), Node(store)]
    for node in nodes:
        await node.rows.open()
    witness = nodes[2]
    run = Run(nodes)
    for step in steps:
        if isinstance(step, list):
            await asyncio.gather(*(run.write(nodes[row[0]], *row[1:]) for row in step))
        else:
            assert isinstance(step, tuple)
            await nodes[step[1]].disturb(step[0])
    for node in nodes:
        await node.store.deliver()
        node.store.watches[-1].show()
    last = await store.put("p/last", b"last")
    for node in nodes:
        await _reached(node, last)
    expected = {entry.key: entry.value for entry in (await store.range("p/")).entries}
    for node in nodes:
        assert dict(node.rows.rows()) == expected
        assert not run.refused & node.seen, "what was refused is never seen"
    assert run.answered <= witness.seen, "what was answered was made"
    for node in nodes:
        await node.rows.close()
    await store.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEPS, max_size=8))
def test_projections_of_one_store_end_equal_and_answers_are_true(
    tmp_path_factory: pytest.TempPathFactory, steps: list[object]
) -> None:
    path = tmp_path_factory.mktemp("store") / "metadata.db"
    with (
        patch.object(projection, "ASK_AGAIN_S", (0.003, 0.003, 0.003)),
        patch.object(projection, "REACH_TIMEOUT_S", 0.01),
        patch.object(projection, "RETRY_S", 0.001),
    ):
        asyncio.run(_run(path, steps))
