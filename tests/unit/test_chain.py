"""The chain's threads: bulks leave in time, count in order, are tried until they are in, and end at
a fence."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import Closed, ColdUnavailable, OnelogError, StoreFenced
from onelog.objects import names
from onelog.objects.access import Buffer
from onelog.objects.chain import Chain
from onelog.objects.chain_line import ChainLine, SealedBulk
from onelog.objects.chain_opening import ChainOpening
from onelog.objects.chain_requests import run_steps
from onelog.objects.chain_upkeep import ChainUpkeep
from onelog.objects.memory import MemoryAccess
from onelog.objects.store import ObjectStore, StoreSettings
from tests.support.chain_model import RECORD, ModelState

WAIT_S = 10


class Gated(MemoryAccess):
    """A store whose writes wait for the test, or fail."""

    def __init__(self) -> None:
        super().__init__("gated")
        self.before: Callable[[str], None] = lambda _name: None

    def put(
        self, name: str, parts: Sequence[Buffer], size_bytes: int, *, is_new: bool = False
    ) -> int:
        self.before(name)
        return super().put(name, parts, size_bytes, is_new=is_new)


class Owner:
    def __init__(self) -> None:
        self.left: list[int] = []
        self.counts: list[int] = []
        self.ended: OnelogError | None = None

    def bulk_left(self, bulk: SealedBulk) -> None:
        self.left.append(bulk.seq)

    def bulk_counts(self, bulk: SealedBulk) -> None:
        self.counts.append(bulk.seq)

    def chain_ended(self, error: OnelogError) -> None:
        self.ended = error


@pytest.fixture
def access() -> Gated:
    return Gated()


@pytest.fixture
def store(access: Gated) -> ObjectStore:
    return ObjectStore(StoreSettings(url="memory://gated"), access)


def open_chain(store: ObjectStore, owner: Owner, **settings) -> Chain:
    settings = {"linger_s": 0.0, "batch_bytes": 1 << 20, "inflight": 4, **settings}
    nonce = secrets.token_bytes(16)
    opened = run_steps(ChainOpening("0", 0, nonce, ModelState).run(), store)
    line = ChainLine(0, opened.epoch, nonce, **settings)
    upkeep = ChainUpkeep("0", opened.epoch, opened.fences)
    return Chain(store, "0", line, upkeep, owner, SystemClock(), threads=settings["inflight"])


def add(chain: Chain, record: int) -> None:
    with chain.lock:
        chain.check()
        chain.note((RECORD, record))


def records(store: ObjectStore) -> list[int]:
    opening = ChainOpening("0", 0, secrets.token_bytes(16), ModelState)
    return run_steps(opening.run(), store).state.records()


def test_what_was_waited_for_is_found_by_the_next_broker(store):
    chain = open_chain(store, Owner())
    for record in range(20):
        add(chain, record)
    chain.wait(WAIT_S)
    assert records(store) == list(range(20))
    chain.close(WAIT_S)


def test_a_bulk_counts_only_when_all_before_it_are_in_the_store(store, access):
    owner = Owner()
    chain = open_chain(store, owner)
    gate, seen = threading.Event(), threading.Event()
    first = names.chain_wal("0", 1, 1)

    def before(name: str) -> None:
        if name == first:
            assert gate.wait(WAIT_S)

    access.before = before
    add(chain, 1)
    while not owner.left:
        time.sleep(0.001)
    add(chain, 2)
    chain.when_in(lambda _error: seen.set())
    while names.chain_wal("0", 1, 2) not in access._objects:
        time.sleep(0.001)
    assert not seen.wait(0.05)
    assert owner.counts == []
    gate.set()
    assert seen.wait(WAIT_S)
    assert owner.counts == [1, 2]
    chain.close(WAIT_S)


def test_the_first_message_after_silence_does_not_linger_and_the_next_ones_leave_together(store):
    owner = Owner()
    chain = open_chain(store, owner, linger_s=3.0)
    began = time.monotonic()
    add(chain, 1)
    chain.wait(WAIT_S)
    assert time.monotonic() - began < 2.9
    for record in range(2, 6):
        add(chain, record)
    chain.wait(WAIT_S)
    assert 2.9 < time.monotonic() - began < WAIT_S
    assert owner.counts == [1, 2]
    chain.close(WAIT_S)


def test_a_write_that_fails_is_tried_until_it_is_in_and_nobody_is_answered_before(store, access):
    owner, told = Owner(), []
    chain = open_chain(store, owner)
    chain.on_trouble = lambda: told.append(chain.failing_since is not None)
    failures = 3

    def before(_name: str) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            assert owner.counts == []
            raise ColdUnavailable("the store is away", "throttled")

    access.before = before
    add(chain, 7)
    chain.wait(WAIT_S)
    assert failures == 0
    assert told == [True, False]
    assert chain.figures.retries == 3
    assert records(store) == [7]
    chain.close(WAIT_S)


def test_a_lost_answer_is_read_back_and_counts_once(store, access):
    chain = open_chain(store, Owner())
    put = access.put
    lost = [True]

    def losing(name, parts, size_bytes, *, is_new=False):
        put(name, parts, size_bytes, is_new=is_new)
        if lost:
            lost.pop()
            raise ColdUnavailable("the answer is lost")
        return 1

    access.put = losing
    add(chain, 1)
    chain.wait(WAIT_S)
    assert records(store) == [1]
    chain.close(WAIT_S)


def test_a_broker_that_was_replaced_meets_the_fence_and_says_so(store):
    owner = Owner()
    old = open_chain(store, owner)
    add(old, 1)
    old.wait(WAIT_S)
    new = open_chain(store, Owner())
    add(new, 2)
    new.wait(WAIT_S)
    add(old, 99)
    with pytest.raises(StoreFenced, match="another broker took over"):
        old.wait(WAIT_S)
    assert isinstance(owner.ended, StoreFenced)
    with pytest.raises(StoreFenced):
        add(old, 100)
    add(new, 3)
    new.wait(WAIT_S)
    assert records(store) == [1, 2, 3]
    old.close(WAIT_S)
    new.close(WAIT_S)


def test_closing_writes_what_is_left_at_once(store):
    chain = open_chain(store, Owner(), linger_s=60)
    add(chain, 1)
    chain.wait(WAIT_S)
    add(chain, 2)
    began = time.monotonic()
    chain.close(WAIT_S)
    assert time.monotonic() - began < 5
    with pytest.raises(Closed):
        add(chain, 3)
    assert records(store) == [1, 2]


def test_the_linger_grows_while_the_store_throttles_and_shrinks_again():
    line = ChainLine(0, 1, bytes(16), linger_s=0.25, batch_bytes=1, inflight=1)
    grown = []
    for _ in range(6):
        line.slow_down()
        grown.append(line.linger_s)
    assert grown == [0.5, 1.0, 2.0, 2.0, 2.0, 2.0]
    for _ in range(4):
        line.speed_up()
    assert line.linger_s == 0.25


def test_a_checkpoint_lets_a_start_read_less_and_needless_objects_go(store, access):
    chain = open_chain(store, Owner())
    state = ModelState()
    for record in range(5):
        add(chain, record)
        chain.wait(WAIT_S)
        state.settled.append(record)
    assert chain.checkpoint(lambda: (state.save, ()))
    assert not chain.checkpoint(lambda: (state.save, ()))
    left = [name for name in access._objects if "/w/" in name]
    assert left == []
    add(chain, 5)
    chain.wait(WAIT_S)
    before = store.counts.get
    assert records(store) == list(range(6))
    assert store.counts.get - before <= 4
    chain.close(WAIT_S)
