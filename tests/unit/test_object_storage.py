"""Does a broker tell what its store cost, try it, and sweep only what nobody needs?"""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from unittest.mock import patch

import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import ColdUnavailable, InvalidRequest, StorageError
from onelog.broker import objects as objects_module
from onelog.broker.objects import SWEEP, Objects, SweptChain
from onelog.log.couriers import RemoteCouriers
from onelog.objects.access import Buffer
from onelog.objects.counts import Prices
from onelog.objects.memory import MemoryAccess
from onelog.objects.names import chain_wal
from onelog.objects.probe import probe
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.objects.sweeping import sweep
from onelog.observe.troubles import Troubles


@pytest.fixture
def store() -> ObjectStore:
    return open_store(StoreSettings(url=f"memory://{uuid.uuid4()}"))


def objects_of(store: ObjectStore | None) -> Objects:
    clock = SystemClock()
    troubles = Troubles(clock)
    prices = Prices(put=5, get=0.4, list=5, delete=0, sent_gb=0, received_gb=0)
    objects = Objects(prices, RemoteCouriers(troubles), clock, troubles)
    objects.store = store
    return objects


class Forgetful(MemoryAccess):
    """A store that lets everybody create a name."""

    def put(self, name: str, parts: list[Buffer], size_bytes: int, *, is_new: bool = False) -> int:
        return super().put(name, parts, size_bytes)


def test_a_store_that_keeps_its_promises_passes_and_is_left_empty(store):
    assert probe(store).url == store.url
    assert not list(store.list(""))


def test_a_store_whose_creates_are_not_exclusive_is_refused():
    store = ObjectStore(StoreSettings(url="memory://forgetful"), Forgetful("forgetful"))
    with pytest.raises(StorageError, match="4 of 4 writers"):
        probe(store)
    assert not list(store.list(""))


def test_a_sweep_deletes_what_its_keeper_does_not_know_and_nothing_else(store):
    for name in ("t/named", "t/left", "f/no-keeper"):
        store.put(name, [b"xyz"])
    keepers = {"t/": lambda names: [name for name in names if name == "t/named"]}
    looked = sweep(store, keepers, dry_run=True, age_ms=-1000)
    assert (looked.deleted, looked.names, looked.dry_run) == (1, ("t/left",), True)
    swept = sweep(store, keepers, age_ms=-1000)
    assert (swept.deleted, swept.deleted_bytes, swept.seen) == (1, 3, 2)
    assert [row.name for row in store.list("")] == ["f/no-keeper", "t/named"]


def test_a_sweep_leaves_young_objects_to_their_uploads(store):
    store.put("t/young", [b"x"])
    swept = sweep(store, {"t/": lambda _names: ()})
    assert (swept.deleted, swept.young) == (0, 1)


def test_a_keeper_that_cannot_tell_ends_the_sweep_and_nothing_is_deleted(store):
    def away(_names):
        raise ColdUnavailable("the manifests cannot be read")

    store.put("t/a", [b"x"])
    with pytest.raises(ColdUnavailable):
        sweep(store, {"t/": away}, age_ms=-1000)
    assert [row.name for row in store.list("")] == ["t/a"]


async def test_status_names_requests_and_dollars(store):
    objects = objects_of(store)
    for number in range(1000):
        store.put(f"t/{number}", [b"x" * 10])
    status = objects.status()
    assert status.hour.put == status.total.put == 1000 and status.hour.sent_bytes == 10_000
    assert status.hour.dollars == pytest.approx(0.005)
    assert status.month_dollars == pytest.approx(3.65)
    names = {sample.name for sample in objects.samples()}
    assert {"onelog_store_requests_total", "onelog_store_couriers"} <= names


async def test_check_and_sweep_run_beside_the_loop(store):
    objects = objects_of(store)
    assert (await objects.check()).create_ms >= 0
    assert (await objects.sweep(dry_run=True)).seen == 0
    await objects.close()


async def test_a_broker_without_a_store_says_how_to_get_one():
    objects = objects_of(None)
    with pytest.raises(InvalidRequest, match=r"store\.url"):
        objects.status()
    assert not list(objects.samples())


@pytest.mark.parametrize(
    "option", ["nonsense=1", "aws_allow_http=true", "aws_bucket_key_enabled=x"]
)
def test_an_option_that_obstore_does_not_take_is_an_error_in_words(option):
    pytest.importorskip("obstore")
    name, _, value = option.partition("=")
    with pytest.raises(InvalidRequest, match=r"s3://b/p.* cannot be used: ") as refused:
        open_store(StoreSettings(url="s3://b/p", options={name: value}))
    assert "Debug source" not in str(refused.value)


async def test_a_sweep_goes_over_chains_wherever_they_lie(store):
    elsewhere = open_store(StoreSettings(url=f"memory://{uuid.uuid4()}"))
    objects = objects_of(store)
    asked: list[str] = []

    def keep(listed):
        asked.extend(listed)
        return ()

    for where, chain in ((store, "0-meta"), (elsewhere, "0")):
        where.put(chain_wal(chain, 1, 1), [b"x"])
        objects.keep_chain(SweptChain(where, chain, keep))
    assert (await objects.sweep(dry_run=False)).young == 2
    assert not asked, "what is younger than a day is left to its writer"
    with patch.object(objects_module, "sweep", partial(sweep, age_ms=-1000)):
        found = await objects.sweep(dry_run=True)
        assert (found.seen, found.deleted, found.deleted_bytes, found.dry_run) == (2, 2, 2, True)
        assert found.names == (chain_wal("0-meta", 1, 1), chain_wal("0", 1, 1))
        assert (await objects.sweep(dry_run=False)).deleted == 2
    assert not [*store.list(""), *elsewhere.list("")]
    await objects.close()


async def test_the_daily_sweep_goes_on_after_a_day_that_failed(store):
    objects = objects_of(store)
    days: list[int] = []
    swept = asyncio.Event()

    def keep(_listed):
        days.append(len(days))
        if len(days) == 1:
            raise ColdUnavailable("the first day the store is away")
        return ()

    def day(*args, **words):
        found = sweep(*args, **{**words, "age_ms": -1000, "pause_s": 0})
        loop.call_soon_threadsafe(swept.set)
        return found

    loop = asyncio.get_running_loop()
    store.put("t/left", [b"x"])
    objects.keepers["t/"] = keep
    with patch.multiple(objects_module, _SWEEPS_S=(0, 0.01), sweep=day):
        objects.sweep_daily()
        async with asyncio.timeout(30):
            await swept.wait()
        await objects.close()
    assert days[:2] == [0, 1]
    assert not list(store.list("t/"))
    assert objects._troubles.count(SWEEP) == 1
