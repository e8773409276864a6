"""Does every metadata store behave as `metadata/store.py` says, which is as etcd v3 does?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from onelog.base.errors import InvalidRequest, LimitExceeded, NotFound
from onelog.metadata.parts import in_parts
from onelog.metadata.store import Compare, Delete, Event, MetadataStore, Put, Watch
from tests.contract.metadata_stores import STORES

SHORT_TTL_S = 1.0
"""The shortest lease that every store can give (etcd counts whole seconds)."""

WAIT_S = 10.0
"""A test that waits longer than this has failed."""


@pytest.fixture(params=sorted(STORES))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    made = await STORES[request.param](tmp_path)
    yield made
    await made.close()


async def take(watch: Watch, count: int) -> list[tuple[Event, ...]]:
    revisions: list[tuple[Event, ...]] = []
    async with asyncio.timeout(WAIT_S):
        async for revision in watch:
            revisions.append(revision)
            if len(revisions) == count:
                break
    return revisions


def shown(revisions: list[tuple[Event, ...]]) -> list[list[tuple[str, str, bytes]]]:
    return [[(e.kind, e.entry.key, e.entry.value) for e in events] for events in revisions]


# ---- keys and revisions ----


async def test_a_missing_key_is_none(store: MetadataStore) -> None:
    assert await store.get("nothing") is None


async def test_a_key_remembers_its_revisions_and_version(store: MetadataStore) -> None:
    first = await store.put("a", b"1")
    second = await store.put("b", b"")
    third = await store.put("a", b"3")
    assert first < second < third == second + 1
    entry = await store.get("a")
    assert entry is not None
    assert (entry.value, entry.version, entry.lease) == (b"3", 2, 0)
    assert (entry.create_revision, entry.mod_revision) == (first, third)


async def test_a_key_that_comes_back_starts_at_version_one(store: MetadataStore) -> None:
    await store.put("a", b"1")
    assert await store.delete("a") == 1
    revision = await store.put("a", b"2")
    entry = await store.get("a")
    assert entry is not None
    assert (entry.version, entry.create_revision, entry.mod_revision) == (1, revision, revision)


async def test_deleting_nothing_spends_no_revision(store: MetadataStore) -> None:
    before = await store.put("a", b"")
    assert await store.delete("nothing") == 0
    assert (await store.txn((), (Delete("nothing"),))).revision == before
    assert await store.put("a", b"") == before + 1


async def test_a_range_is_ordered_by_utf8_bytes_and_bounded(store: MetadataStore) -> None:
    keys = ["p/", "p/a", "p/b\x00", "p/b", "p/é", "p/\U0001f600", "p/\uffff", "p0", "o", "q"]
    for key in keys:
        await store.put(key, key.encode())
    revision = await store.put("last", b"")
    found = await store.range("p/")
    assert [e.key for e in found.entries] == sorted(
        (k for k in keys if k.startswith("p/")), key=str.encode
    )
    assert all(e.value == e.key.encode() for e in found.entries)
    assert found.revision == revision
    assert [e.key for e in (await store.range("p/", limit=2)).entries] == ["p/", "p/a"]
    assert len((await store.range("")).entries) == len(keys) + 1


async def test_a_prefix_delete_takes_exactly_the_prefix(store: MetadataStore) -> None:
    for key in ("a/1", "a/2", "a0", "a", "b"):
        await store.put(key, b"")
    assert await store.delete("a/", prefix=True) == 2
    assert [e.key for e in (await store.range("")).entries] == ["a", "a0", "b"]


async def test_binary_and_empty_values_come_back_as_they_were(store: MetadataStore) -> None:
    for value in (b"", b"\x00", bytes(range(256)) * 100):
        await store.put("v", value)
        entry = await store.get("v")
        assert entry is not None
        assert entry.value == value


# ---- transactions ----


async def test_a_transaction_takes_one_branch_and_one_revision(store: MetadataStore) -> None:
    await store.put("a", b"1")
    before = await store.put("old", b"")
    yes = await store.txn(
        [Compare("a", "value", "==", b"1")],
        [Put("a", b"2"), Put("b", b"2"), Delete("old")],
        [Put("wrong", b"")],
    )
    assert (yes.succeeded, yes.revision) == (True, before + 1)
    no = await store.txn([Compare("a", "value", "==", b"1")], [Put("wrong", b"")], [Put("c", b"3")])
    assert (no.succeeded, no.revision) == (False, before + 2)
    found = await store.range("")
    assert [(e.key, e.value, e.mod_revision) for e in found.entries] == [
        ("a", b"2", before + 1),
        ("b", b"2", before + 1),
        ("c", b"3", before + 2),
    ]


@pytest.mark.parametrize(
    ("target", "op", "operand", "holds"),
    [
        ("version", "==", 2, True),
        ("version", "<", 2, False),
        ("version", ">", 1, True),
        ("version", "!=", 2, False),
        ("value", "==", b"m", True),
        ("value", "<", b"n", True),
        ("value", ">", b"m", False),
        ("value", "!=", b"x", True),
        ("create_revision", ">", 0, True),
        ("create_revision", "==", 0, False),
        ("mod_revision", "==", 0, False),
        ("mod_revision", "!=", 0, True),
    ],
)
async def test_a_compare_sees_the_key(
    store: MetadataStore, target: str, op: str, operand: bytes | int, holds: bool
) -> None:
    await store.put("k", b"l")
    await store.put("k", b"m")
    result = await store.txn([Compare("k", target, op, operand)], [])  # type: ignore[arg-type]
    assert result.succeeded is holds


@pytest.mark.parametrize("target", ["version", "create_revision", "mod_revision"])
async def test_a_missing_key_compares_as_zero(store: MetadataStore, target: str) -> None:
    create = [Compare("k", target, "==", 0)]  # type: ignore[arg-type]
    assert (await store.txn(create, [Put("k", b"")])).succeeded
    assert not (await store.txn(create, [Put("k", b"")])).succeeded


@pytest.mark.parametrize("op", ["==", "!=", "<", ">"])
async def test_the_value_of_a_missing_key_never_compares(store: MetadataStore, op: str) -> None:
    result = await store.txn([Compare("k", "value", op, b"")], [])  # type: ignore[arg-type]
    assert not result.succeeded


async def test_of_many_creators_of_one_key_exactly_one_wins(store: MetadataStore) -> None:
    results = await asyncio.gather(
        *(
            store.txn([Compare("lock", "version", "==", 0)], [Put("lock", b"%d" % i)])
            for i in range(50)
        )
    )
    winners = [i for i, result in enumerate(results) if result.succeeded]
    entry = await store.get("lock")
    assert entry is not None
    assert [b"%d" % i for i in winners] == [entry.value]


async def test_concurrent_writers_each_get_their_own_revision(store: MetadataStore) -> None:
    revisions = await asyncio.gather(*(store.put(f"k{i}", b"") for i in range(100)))
    ordered = sorted(revisions)
    assert all(after == before + 1 for before, after in pairwise(ordered))


async def test_a_refused_transaction_changes_nothing(store: MetadataStore) -> None:
    before = (await store.range("")).revision
    with pytest.raises(InvalidRequest):
        await store.txn((), [Put("a", b"1"), Put("a", b"2")])
    with pytest.raises(InvalidRequest):
        await store.txn((), [Put("a/b", b"1"), Delete("a/", prefix=True)])
    with pytest.raises(NotFound):
        await store.txn((), [Put("a", b"1"), Put("b", b"", lease=2**40)])
    with pytest.raises(InvalidRequest):
        await store.txn([Compare("a", "version", "==", b"1")], [Put("a", b"1")])
    with pytest.raises(InvalidRequest):
        await store.put("", b"")
    with pytest.raises(InvalidRequest):
        await store.put("\ud800", b"")
    with pytest.raises(LimitExceeded):
        await store.txn((), [Put(f"k{i}", b"") for i in range(129)])
    with pytest.raises(LimitExceeded):
        await store.put("big", bytes(3_000_000))
    found = await store.range("")
    assert (found.entries, found.revision) == ((), before)


# ---- watches ----


@pytest.mark.parametrize("count", [1, 128, 129, 5000])
async def test_a_write_takes_any_number_of_operations_in_their_order(
    store: MetadataStore, count: int
) -> None:
    await store.put("gone/1", b"")
    await store.write([Delete("gone/", prefix=True), *(Put(f"k/{n}", b"1") for n in range(count))])
    assert len((await store.range("k/")).entries) == count
    writing = store.write([Delete(f"k/{number}") for number in range(count)])
    await asyncio.gather(writing, store.put("k/0", b"2"))
    (left,) = (await store.range("k/")).entries
    assert left.value == b"2"  # what was called later comes after all of it
    assert await store.get("gone/1") is None


async def test_a_write_that_is_refused_changes_nothing(store: MetadataStore) -> None:
    for ops in (
        [Put("a", b""), Put("a", b"")],
        [Put("a", b""), Delete("a")],
        [Put("a/b", b""), Delete("a/", prefix=True)],
        [Put("a", b""), Put("", b"")],
    ):
        with pytest.raises(InvalidRequest):
            await store.write(ops)
    with pytest.raises(LimitExceeded):
        await store.write([Put("a", b""), Put("b", bytes(2_000_000))])
    assert await store.get("a") is None


def test_operations_are_cut_where_a_transaction_ends() -> None:
    small = [Put(str(number), b"") for number in range(300)]
    assert [len(part) for part in in_parts(small)] == [128, 128, 44]
    large = [Put(str(number), bytes(1_000_000)) for number in range(3)]
    assert [len(part) for part in in_parts(large)] == [1, 1, 1]
    assert [op for part in in_parts(small) for op in part] == small
    assert list(in_parts([])) == []


async def test_a_watch_sees_each_later_revision_whole_in_order_and_once(
    store: MetadataStore,
) -> None:
    await store.put("w/before", b"")
    watch = await store.watch("w/")
    await store.put("w/a", b"1")
    await store.put("x/other", b"")
    await store.txn((), [Put("w/b", b"2"), Put("x/b", b""), Delete("w/a")])
    deleted = await store.delete("w/", prefix=True)
    revisions = await take(watch, 3)
    assert deleted == 2
    assert shown(revisions) == [
        [("put", "w/a", b"1")],
        [("put", "w/b", b"2"), ("delete", "w/a", b"1")],
        [("delete", "w/b", b"2"), ("delete", "w/before", b"")],
    ]
    numbers = [sorted({e.entry.mod_revision for e in events}) for events in revisions]
    first = numbers[0][0]
    assert numbers == [[first], [first + 2], [first + 3]]
    watch.close()


async def test_range_then_watch_leaves_no_gap_and_no_double(store: MetadataStore) -> None:
    seen: dict[str, int] = {}

    async def write() -> None:
        for i in range(200):
            await store.put(f"g/{i}", b"")

    writer = asyncio.create_task(write())
    await store.put("g/first", b"")
    found = await store.range("g/")
    watch = await store.watch("g/", found.revision + 1)
    for entry in found.entries:
        seen[entry.key] = seen.get(entry.key, 0) + 1
    for events in await take(watch, 201 - len(found.entries)):
        for event in events:
            seen[event.entry.key] = seen.get(event.entry.key, 0) + 1
    await writer
    assert seen == {"g/first": 1} | {f"g/{i}": 1 for i in range(200)}


async def test_a_watch_from_an_old_revision_replays_history(store: MetadataStore) -> None:
    first = await store.put("h/a", b"1")
    await store.put("other", b"")
    await store.put("h/a", b"2")
    await store.delete("h/a")
    watch = await store.watch("h/", first)
    assert shown(await take(watch, 3)) == [
        [("put", "h/a", b"1")],
        [("put", "h/a", b"2")],
        [("delete", "h/a", b"2")],
    ]


async def test_a_watch_from_a_later_revision_waits_for_it(store: MetadataStore) -> None:
    now = await store.put("f/a", b"0")
    watch = await store.watch("f/", now + 2)
    await store.put("f/a", b"1")
    await store.put("f/a", b"2")
    assert shown(await take(watch, 1)) == [[("put", "f/a", b"2")]]


async def test_a_closed_watch_stops_its_waiting_reader(store: MetadataStore) -> None:
    watch = await store.watch("")
    reader = asyncio.create_task(take(watch, 1))
    await store.get("anything")
    watch.close()
    assert await reader == []
    watch.close()


async def test_a_closed_store_stops_its_watches(store: MetadataStore) -> None:
    watch = await store.watch("")
    reader = asyncio.create_task(take(watch, 1))
    await store.get("anything")
    await store.close()
    assert await reader == []
    await store.close()


# ---- leases ----


async def test_a_lease_that_is_not_kept_alive_takes_its_keys_in_one_revision(
    store: MetadataStore,
) -> None:
    watch = await store.watch("l/")
    lease = await store.grant(SHORT_TTL_S)
    await store.txn((), [Put("l/a", b"1", lease), Put("l/b", b"2", lease), Put("l/free", b"")])
    revisions = await take(watch, 2)
    assert shown(revisions)[1] == [("delete", "l/a", b"1"), ("delete", "l/b", b"2")]
    assert [e.key for e in (await store.range("l/")).entries] == ["l/free"]
    with pytest.raises(NotFound):
        await store.keep_alive(lease)
    with pytest.raises(NotFound):
        await store.put("l/a", b"", lease)


async def test_revoking_a_lease_takes_only_keys_that_still_hang_on_it(store: MetadataStore) -> None:
    lease = await store.grant(60)
    other = await store.grant(60)
    for key in ("a", "freed", "moved", "gone"):
        await store.put(key, b"", lease)
    await store.put("freed", b"")
    await store.put("moved", b"", other)
    await store.delete("gone")
    await store.put("gone", b"")
    await store.revoke(lease)
    assert [e.key for e in (await store.range("")).entries] == ["freed", "gone", "moved"]
    with pytest.raises(NotFound):
        await store.revoke(lease)
    await store.keep_alive(other)


async def test_a_lease_that_is_kept_alive_outlives_its_ttl(store: MetadataStore) -> None:
    kept = await store.grant(SHORT_TTL_S * 2)
    await store.put("kept", b"", kept)
    for _ in range(2):
        # The end of a second, shorter lease is the clock of this test.
        watch = await store.watch("tick")
        short = await store.grant(SHORT_TTL_S)
        await store.put("tick", b"", short)
        await take(watch, 2)
        watch.close()
        await store.keep_alive(kept)
    assert await store.get("kept") is not None


async def test_lease_numbers_differ_and_nonsense_is_refused(store: MetadataStore) -> None:
    assert len({await store.grant(60) for _ in range(5)}) == 5
    for ttl_s in (0, -1, float("inf"), float("nan")):
        with pytest.raises(InvalidRequest):
            await store.grant(ttl_s)
