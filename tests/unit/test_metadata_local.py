"""What only the embedded store promises: restart, bounds, group commit, a failing disk."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.base import faults
from onelog.base.clock import ManualClock, SystemClock
from onelog.base.errors import (
    Closed,
    DataDirLocked,
    OffsetOutOfRange,
    OutcomeUnknown,
    StorageError,
    Unavailable,
)
from onelog.metadata import local_watch, local_worker
from onelog.metadata.local import LocalStore
from onelog.metadata.local_database import LocalDatabase
from onelog.metadata.local_leases import LeaseTable
from onelog.metadata.store import Compare, Delete, Event, Op, Put

WAIT_S = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[LocalStore]:
    made = await LocalStore.open(path, SystemClock())
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.disarm()


async def following(watch: object) -> tuple[Event, ...]:
    async with asyncio.timeout(WAIT_S):
        return await anext(watch)  # type: ignore[call-overload, no-any-return]


# ---- restart ----


async def test_everything_is_there_after_a_restart(path: Path) -> None:
    """I4: an answer means durable."""
    store = await LocalStore.open(path, SystemClock())
    first = await store.put("a", b"1")
    await store.put("a", b"2")
    await store.put("b", b"")
    last = (await store.range("")).revision
    await store.delete("b")
    before = await store.range("")
    await store.close()
    assert [p.name for p in path.parent.iterdir()] == [path.name], "one file after a clean close"

    store = await LocalStore.open(path, SystemClock())
    assert await store.range("") == before
    watch = await store.watch("", first)
    numbers = [(await following(watch))[0].entry.mod_revision for _ in range(4)]
    assert numbers == [first, first + 1, last, before.revision]
    assert await store.put("c", b"") == before.revision + 1
    await store.close()


async def test_a_lease_starts_anew_after_a_restart_and_then_expires(path: Path) -> None:
    store = await LocalStore.open(path, SystemClock())
    short = await store.grant(0.2)
    long = await store.grant(600)
    await store.put("short", b"", short)
    await store.put("long", b"", long)
    await store.close()

    store = await LocalStore.open(path, SystemClock())
    watch = await store.watch("")
    event = (await following(watch))[0]
    assert (event.kind, event.entry.key) == ("delete", "short")
    await store.keep_alive(long)
    assert await store.grant(1) not in (short, long), "a lease's number is never used again"
    await store.close()


async def test_a_second_opener_is_refused(path: Path, store: LocalStore) -> None:
    with pytest.raises(DataDirLocked):
        await LocalStore.open(path, SystemClock())
    assert await store.put("a", b"") > 0


async def test_a_file_of_something_else_is_refused(path: Path) -> None:
    path.write_bytes(b"this is not a database, it is a text" * 100)
    with pytest.raises(StorageError, match="metadata"):
        await LocalStore.open(path, SystemClock())


async def test_a_closed_store_refuses_calls(path: Path) -> None:
    store = await LocalStore.open(path, SystemClock())
    await store.close()
    with pytest.raises(Closed):
        await store.get("a")
    with pytest.raises(Closed):
        await store.put("a", b"")
    with pytest.raises(Closed):
        await store.keep_alive(1)


CHILD = """
import asyncio, sys
from onelog.base.clock import SystemClock
from onelog.metadata.local import LocalStore

async def main():
    store = await LocalStore.open(sys.argv[1], SystemClock())
    async def writer(w):
        i = 0
        while True:
            await store.put(f"{w}/{i}", b"")
            print(w, i, flush=True)
            i += 1
    await asyncio.gather(*(writer(w) for w in range(8)))

asyncio.run(main())
"""


def killed_writer(path: Path) -> set[str]:
    """Keys that a process had written and been answered for when kill -9 hit it."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(300)]
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate()
    # The kill may have cut the last line in two: a part of a line says nothing.
    whole = [line for line in lines + rest.splitlines(keepends=True) if line.endswith(b"\n")]
    return {"/".join(line.decode().split()) for line in whole}


async def test_kill_9_loses_no_answered_write(path: Path) -> None:
    """I4: every put that was answered before kill -9 is there."""
    answered = await asyncio.to_thread(killed_writer, path)
    store = await LocalStore.open(path, SystemClock())
    found = {entry.key for entry in (await store.range("")).entries}
    await store.close()
    assert len(answered) >= 300
    assert answered <= found
    assert len(found - answered) <= 9, "at most one unanswered put per writer, one cut line"


# ---- bounds ----


async def test_history_is_bounded_and_says_so(path: Path) -> None:
    store = await LocalStore.open(path, SystemClock(), history_revisions=5)
    for i in range(12):
        last = await store.put("k", b"%d" % i)
    with pytest.raises(OffsetOutOfRange, match="load the keys again"):
        await store.watch("", last - 5)
    watch = await store.watch("", last - 4)
    values = [(await following(watch))[0].entry.value for _ in range(5)]
    assert values == [b"7", b"8", b"9", b"10", b"11"]
    await store.close()

    store = await LocalStore.open(path, SystemClock(), history_revisions=5)
    with pytest.raises(OffsetOutOfRange):
        await store.watch("", last - 5)
    await store.close()


async def test_a_slow_watcher_holds_a_bounded_queue_and_still_sees_all(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: a slow reader is a reader of history, not a growing queue."""
    monkeypatch.setattr(local_watch, "QUEUE_REVISIONS_MAX", 10)
    watch = await store.watch("")
    assert isinstance(watch, local_watch.LocalWatch)
    await asyncio.gather(*(store.put(f"k{i}", b"") for i in range(1500)))
    assert len(watch._queue) == 10
    seen = [(await following(watch))[0].entry.mod_revision for _ in range(1500)]
    assert seen == list(range(seen[0], seen[0] + 1500))
    await store.put("live", b"again")
    assert (await following(watch))[0].entry.key == "live"


async def test_a_watchers_queue_is_bounded_in_bytes(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8."""
    monkeypatch.setattr(local_watch, "QUEUE_BYTES_MAX", 1000)
    watch = await store.watch("")
    assert isinstance(watch, local_watch.LocalWatch)
    for _ in range(20):
        await store.put("k", bytes(600))
    assert len(watch._queue) == 2
    for _ in range(20):
        assert len((await following(watch))[0].entry.value) == 600


async def test_a_watcher_slower_than_history_ends_with_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: the reader is told to reload instead of skipping changes silently."""
    monkeypatch.setattr(local_watch, "QUEUE_REVISIONS_MAX", 3)
    store = await LocalStore.open(path, SystemClock(), history_revisions=5)
    watch = await store.watch("")
    for i in range(20):
        await store.put("k", b"%d" % i)
    assert [(await following(watch))[0].entry.value for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(OffsetOutOfRange, match="load the keys again"):
        await following(watch)
    with pytest.raises(StopAsyncIteration):
        await following(watch)
    await store.close()


async def test_calls_past_the_queues_bound_are_refused(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8, I9."""
    monkeypatch.setattr(local_worker, "WAITING_JOBS_MAX", 3)
    results = await asyncio.gather(
        *(store.put(f"k{i}", b"") for i in range(5)), return_exceptions=True
    )
    assert [type(r) for r in results] == [int, int, int, Unavailable, Unavailable]
    assert len((await store.range("")).entries) == 3


# ---- group commit, failing disk ----


async def test_waiting_mutations_share_a_commit(store: LocalStore) -> None:
    commits = 0

    def count() -> None:
        nonlocal commits
        commits += 1

    faults.arm("metadata.commit", count)
    revisions = await asyncio.gather(*(store.put(f"k{i}", b"") for i in range(200)))
    assert len(set(revisions)) == 200
    assert commits < 20


async def test_a_copy_that_waits_beside_a_mutation_is_made_after_its_commit(
    path: Path, store: LocalStore
) -> None:
    held, copy = threading.Event(), path.parent / "copy.db"
    first = asyncio.create_task(store._submit(lambda _db: held.wait(WAIT_S)))
    copied = asyncio.create_task(store.snapshot(copy))
    put = asyncio.create_task(store.put("a", b"1"))
    await asyncio.sleep(0)  # all three wait for the thread, the last two as one group
    held.set()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(first, copied, put)
    found = await LocalStore.open(copy, SystemClock())
    entry = await found.get("a")
    await found.close()
    assert entry is not None
    assert (entry.value, entry.mod_revision) == (b"1", copied.result())


async def test_one_refused_mutation_does_not_spoil_its_group(store: LocalStore) -> None:
    results = await asyncio.gather(
        store.put("a", b""),
        store.txn((), [Put("b", b""), Put("c", b"", lease=99)]),
        store.put("d", b""),
        return_exceptions=True,
    )
    assert [isinstance(r, Exception) for r in results] == [False, True, False]
    assert results[2] == results[0] + 1  # type: ignore[operator]
    assert [e.key for e in (await store.range("")).entries] == ["a", "d"]


async def test_a_full_disk_refuses_mutations_and_is_waited_out(store: LocalStore) -> None:
    """I9: the mutation fails and changes nothing."""
    watch = await store.watch("")
    before = await store.put("a", b"1")
    faults.arm("metadata.commit", faults.fail_with(errno.ENOSPC))
    with pytest.raises(Unavailable):
        await store.put("a", b"2")
    faults.disarm()
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == b"1"
    assert await store.put("a", b"3") == before + 1
    assert [(await following(watch))[0].entry.value for _ in range(2)] == [b"1", b"3"]


async def test_after_an_io_error_the_store_stops_until_it_is_opened_again(path: Path) -> None:
    """I9: what a disk holds after a failed sync cannot be believed."""
    store = await LocalStore.open(path, SystemClock())
    await store.put("a", b"1")
    faults.arm("metadata.commit", faults.fail_with(errno.EIO))
    with pytest.raises(Unavailable):
        await store.put("a", b"2")
    faults.disarm()
    with pytest.raises(Unavailable, match="restart"):
        await store.get("a")
    await store.close()
    store = await LocalStore.open(path, SystemClock())
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == b"1"
    await store.close()


@pytest.mark.parametrize(
    ("point", "is_made"), [("metadata.commit", False), ("metadata.committed", True)]
)
async def test_a_commit_that_failed_half_way_has_an_unknown_outcome(
    path: Path, point: str, is_made: bool
) -> None:
    """I9: only what cannot have been made is called refused; whoever only read is told so, too."""
    store = await LocalStore.open(path, SystemClock())
    await store.put("a", b"1")
    watch = await store.watch("")
    faults.arm(point, faults.fail_with(errno.EIO))
    put, refused, read = await asyncio.gather(
        store.put("a", b"2"),
        store.put("b", b"", lease=99),
        store.get("a"),
        return_exceptions=True,
    )
    faults.disarm()
    assert isinstance(put, OutcomeUnknown if is_made else Unavailable)
    assert isinstance(refused, Unavailable)
    assert isinstance(read, Unavailable)
    with pytest.raises(Unavailable, match="restart"):
        await store.put("a", b"3")
    watch.close()
    await store.close()
    store = await LocalStore.open(path, SystemClock())
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == (b"2" if is_made else b"1")
    await store.close()


async def test_a_defect_in_the_thread_leaves_nobody_waiting(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_db: LocalDatabase) -> None:
        raise MemoryError

    store = await LocalStore.open(path, SystemClock())
    monkeypatch.setattr(LocalDatabase, "commit", fail)
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"1")
    with pytest.raises(Unavailable):
        await store.get("a")
    await store.close()


async def test_an_expiry_that_could_not_be_written_is_tried_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.metadata.local.EXPIRY_RETRY_S", 0.05)
    watch = await store.watch("")
    lease = await store.grant(0.1)
    await store.put("k", b"", lease)
    await following(watch)
    failures = 0

    def fail_once() -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise OSError(errno.ENOSPC, "no room")

    faults.arm("metadata.commit", fail_once)
    assert (await following(watch))[0].kind == "delete"
    assert failures == 2


async def test_a_cancelled_caller_leaves_the_store_sound(store: LocalStore) -> None:
    call = asyncio.create_task(store.put("a", b""))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await store.put("b", b"") == (await store.range("")).revision


# ---- leases on a clock that the test moves ----


def test_a_lease_is_due_exactly_at_its_deadline() -> None:
    clock = ManualClock()
    leases = LeaseTable(clock)
    leases.add(1, 10)
    leases.add(2, 5)
    assert leases.soonest() == 5
    clock.advance(4.9)
    assert leases.take_due() == []
    clock.advance(0.1)
    assert leases.take_due() == [2]
    assert leases.soonest() == 10


def test_a_renewed_lease_moves_and_a_late_renewal_fails() -> None:
    clock = ManualClock()
    leases = LeaseTable(clock)
    leases.add(1, 10)
    clock.advance(9)
    assert leases.renew(1)
    assert leases.soonest() == 19
    clock.advance(9.9)
    assert leases.take_due() == []
    clock.advance(0.1)
    assert not leases.renew(1), "past its deadline, though nobody looked yet"
    assert leases.take_due() == [1]
    assert not leases.renew(1)
    assert leases.soonest() is None


def test_a_wall_clock_that_jumps_moves_no_lease() -> None:
    clock = ManualClock()
    leases = LeaseTable(clock)
    leases.add(1, 10)
    clock.set_wall_ms(0)
    clock.advance(9)
    assert leases.take_due() == []
    leases.remove(1)
    clock.advance(9)
    assert leases.take_due() == []


# ---- the model: a dict ----

KEYS = st.sampled_from(["a", "a/b", "a/c", "b"])
VALUES = st.sampled_from([b"", b"1", b"2"])
COMPARES = st.one_of(
    st.builds(Compare, KEYS, st.just("value"), st.sampled_from(["==", "!=", "<", ">"]), VALUES),
    st.builds(
        Compare,
        KEYS,
        st.sampled_from(["version", "create_revision", "mod_revision"]),
        st.sampled_from(["==", "!=", "<", ">"]),
        st.integers(0, 6),
    ),
)
OPS = st.lists(
    st.one_of(st.builds(Put, KEYS, VALUES), st.builds(Delete, KEYS)),
    max_size=3,
    unique_by=lambda op: op.key,
)
TXNS = st.tuples(st.lists(COMPARES, max_size=2), OPS, OPS)


class Model:
    """The store as a dict: key -> (value, create revision, mod revision, version)."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[bytes, int, int, int]] = {}
        self.revision = 1

    def holds(self, c: Compare) -> bool:
        value, create, mod, version = self.keys.get(c.key, (None, 0, 0, 0))
        found = {"create_revision": create, "mod_revision": mod, "version": version, "value": value}
        actual = found[c.target]
        if actual is None:
            return False
        return {
            "==": actual == c.operand,
            "!=": actual != c.operand,
            "<": actual < c.operand,  # type: ignore[operator]
            ">": actual > c.operand,  # type: ignore[operator]
        }[c.op]

    def txn(self, compares: list[Compare], then: list[Op], otherwise: list[Op]) -> tuple[bool, int]:
        held = all(self.holds(c) for c in compares)
        changed = False
        revision = self.revision + 1
        for op in then if held else otherwise:
            old = self.keys.get(op.key)
            if isinstance(op, Put):
                create, version = (old[1], old[3]) if old else (revision, 0)
                self.keys[op.key] = (op.value, create, revision, version + 1)
                changed = True
            elif old:
                del self.keys[op.key]
                changed = True
        self.revision += changed
        return held, self.revision


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(txns=st.lists(TXNS, max_size=12), together=st.booleans())
def test_transactions_do_what_a_dict_does(
    tmp_path_factory: pytest.TempPathFactory,
    txns: list[tuple[list[Compare], list[Op], list[Op]]],
    together: bool,
) -> None:
    async def run() -> None:
        model = Model()
        path = tmp_path_factory.mktemp("model") / "metadata.db"
        store = await LocalStore.open(path, SystemClock())
        watch = await store.watch("")
        replayed: dict[str, tuple[bytes, int, int, int]] = {}
        if together:
            results = await asyncio.gather(*(store.txn(*txn) for txn in txns))
        else:
            results = [await store.txn(*txn) for txn in txns]
        assert [(r.succeeded, r.revision) for r in results] == [model.txn(*txn) for txn in txns]
        found = await store.range("")
        assert {
            e.key: (e.value, e.create_revision, e.mod_revision, e.version) for e in found.entries
        } == model.keys
        for revision in range(2, model.revision + 1):
            for event in await following(watch):
                entry = event.entry
                assert entry.mod_revision == revision
                if event.kind == "put":
                    row = (entry.value, entry.create_revision, entry.mod_revision, entry.version)
                    replayed[entry.key] = row
                else:
                    assert replayed.pop(entry.key)[0] == entry.value
        assert replayed == model.keys, "the watch alone rebuilds the store"
        await store.close()

    asyncio.run(run())
