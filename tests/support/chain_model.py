"""A store that delays, doubles and loses writes, and brokers that open, write and die on it.

The classes that open, write and check-point the chain are the real ones; only the store and the
order of steps are the model's. A history is a seed: everything that happens follows from it.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from onelog.base.errors import StoreFenced
from onelog.objects import names
from onelog.objects.chain_line import ChainLine, SealedBulk
from onelog.objects.chain_opening import ChainOpening
from onelog.objects.chain_requests import (
    ChainRequest,
    CreateObject,
    DeleteObjects,
    GetObjects,
    ListNames,
)
from onelog.objects.chain_upkeep import ChainUpkeep
from onelog.objects.checkpoint import VERSION, ChainCheckpoint, ChainPlace
from onelog.objects.wal import Wal

CHAIN = "0"
RECORD, SETTLE = "record", "settle"


class ModelState:
    """All records in order: settled ones, and those that lie in objects of the chain."""

    def __init__(self) -> None:
        self.settled: list[int] = []
        self.rows: list[tuple[ChainPlace, list[int]]] = []

    def load(self, state: bytes) -> None:
        self.settled, places = msgspec.msgpack.decode(state)
        self.rows = [(ChainPlace(*place), []) for place in places]

    def wanted(self) -> Sequence[ChainPlace]:
        return [place for place, _ in self.rows]

    def supply(self, wal: Wal) -> None:
        place = ChainPlace(wal.header.epoch, wal.header.seq)
        found = [what for kind, what in msgspec.msgpack.decode(wal.notes) if kind == RECORD]
        self.rows = [(at, found if at == place else held) for at, held in self.rows]

    def apply(self, wal: Wal) -> None:
        place = ChainPlace(wal.header.epoch, wal.header.seq)
        self.advance(place, msgspec.msgpack.decode(wal.notes))

    def advance(self, place: ChainPlace, notes: Sequence[Any]) -> None:
        for kind, what in notes:
            if kind == SETTLE:
                for _, held in self.rows[:what]:
                    self.settled += held
                del self.rows[:what]
        records = [what for kind, what in notes if kind == RECORD]
        if records:
            self.rows.append((place, records))

    def records(self) -> list[int]:
        return self.settled + [record for _, held in self.rows for record in held]

    def save(self) -> bytes:
        return msgspec.msgpack.encode((self.settled, [place for place, _ in self.rows]))


class Lost(Exception):
    """The answer to a write did not come: it may be done, or be done later."""


class ModelStore:
    """Objects, and writes that arrive late."""

    def __init__(self, rng: random.Random, faults: float) -> None:
        self.rng = rng
        self.faults = faults
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []

    def create(self, name: str, data: bytes) -> bool:
        """One request to create an object: whether it was new. Raises Lost."""
        fate = self.rng.random() / self.faults if self.faults else 2.0
        if fate < 0.2:
            raise Lost  # it never arrived
        if fate < 0.5:
            self.late.append((name, data))  # it arrives later
            raise Lost
        is_new = name not in self.objects
        if is_new:
            self.objects[name] = data
        if fate < 0.75:
            raise Lost  # the answer is lost
        if fate < 1.0:
            self.late.append((name, data))  # it arrives twice
        return is_new

    def arrive(self) -> None:
        """One of the late writes arrives."""
        name, data = self.late.pop(self.rng.randrange(len(self.late)))
        self.objects.setdefault(name, data)

    def names(self, prefix: str, limit: int | None) -> list[tuple[str, int]]:
        found = sorted(name for name in self.objects if name.startswith(prefix))
        return [(name, len(self.objects[name])) for name in found[:limit]]


Process = Generator[None, None, Any]


def asked(store: ModelStore, request: ChainRequest) -> Process:
    """The answer to a request; others take their steps between the parts of it."""
    match request:
        case ListNames(prefix, limit):
            yield
            return store.names(prefix, limit)
        case GetObjects(wanted, _):
            found = []
            for name in wanted:
                yield
                found.append(store.objects.get(name))
            return found
        case CreateObject(name, data, _):
            return (yield from created(store, name, data))
        case DeleteObjects(doomed):
            for name in doomed:
                yield
                store.objects.pop(name, None)
            return None


def created(store: ModelStore, name: str, data: bytes) -> Process:
    """As `ObjectStore.create`: tried until it is known, "exists" is read back."""
    while True:
        yield
        try:
            if store.create(name, data):
                return None
        except Lost:
            continue
        yield
        found = store.objects.get(name)
        if found is not None:
            return None if found == data else found


def steps(store: ModelStore, work: Generator[ChainRequest, Any, Any]) -> Process:
    answer: Any = None
    while True:
        try:
            request = work.send(answer)
        except StopIteration as done:
            return done.value
        answer = yield from asked(store, request)


class ModelBroker:
    """A broker: it opens the chain, then writes records, settles, makes checkpoints."""

    def __init__(self, history: History, opening: type[ChainOpening[ModelState]]) -> None:
        self.history = history
        self.nonce = history.rng.randbytes(16)
        self.opening = opening(CHAIN, 0, self.nonce, ModelState)
        self.processes: list[Process] = [self._open()]
        self.is_over = self.is_checkpointing = False

    def _open(self) -> Process:
        store = self.history.store
        opened = yield from steps(store, self.opening.run())
        self.state: ModelState = opened.state
        self.length = len(self.state.records())
        self.line = ChainLine(
            0, opened.epoch, self.nonce, linger_s=0, batch_bytes=1 << 20, inflight=3
        )
        self.upkeep = ChainUpkeep(CHAIN, opened.epoch, opened.fences)
        self.pending: dict[int, list[tuple[int, int]]] = {}
        self.processes.append(self._write())
        yield from steps(store, self.upkeep.delete_older_epochs(self.state.wanted()))

    def _write(self) -> Process:
        rng, line = self.history.rng, self.line
        for _ in range(rng.randrange(12)):
            for _ in range(rng.randrange(1, 3)):
                record = self.history.new_record()
                self.pending.setdefault(line.seq + 1, []).append((self.length, record))
                self.length += 1
                line.open.notes.append((RECORD, record))
            if rng.random() < 0.3:
                line.open.notes.append((SETTLE, rng.randrange(1, 4)))
            while line.wait_s(0.0) is None:
                yield
            bulk = line.take(0.0, 0)
            self.state.advance(ChainPlace(line.epoch, bulk.seq), bulk.notes)
            self.processes.append(self._put(bulk))
            if not self.is_checkpointing and rng.random() < 0.3:
                self.is_checkpointing = True  # one at a time, as in `Chain`
                self.processes.append(self._checkpoint())
            yield

    def _put(self, bulk: SealedBulk) -> Process:
        name = names.chain_wal(CHAIN, self.line.epoch, bulk.seq)
        data = b"".join(bulk.wal.parts)
        found = yield from created(self.history.store, name, data)
        if found is not None:
            raise StoreFenced(name)
        for counted in self.line.arrived(bulk.seq):
            for offset, record in self.pending.pop(counted.seq, ()):
                self.history.answered[record] = offset

    def _checkpoint(self) -> Process:
        line = self.line
        made = ChainCheckpoint(
            VERSION, line.epoch, line.seq, self.nonce, line.link, self.upkeep.fences,
            self.state.save(),
        )  # fmt: skip
        wanted = self.state.wanted()
        while line.durable_seq < made.seq:
            yield
        yield from steps(self.history.store, self.upkeep.write(made, wanted))
        self.is_checkpointing = False

    def step(self) -> None:
        """One step of one of its threads."""
        process = self.history.rng.choice(self.processes)
        try:
            next(process)
        except StopIteration:
            self.processes.remove(process)
            self.is_over = not self.processes
        except StoreFenced:
            self.is_over = True


class History:
    """What several brokers do on one store, by a seed."""

    def __init__(
        self,
        seed: int,
        opening: type[ChainOpening[ModelState]] = ChainOpening[ModelState],
        *,
        faults: float = 0.5,
    ) -> None:
        self.rng = random.Random(seed)
        self.store = ModelStore(self.rng, self.rng.random() * faults)
        self.answered: dict[int, int] = {}
        self._opening = opening
        self._records = 0

    def new_record(self) -> int:
        self._records += 1
        return self._records

    def run(self, *, starts: int = 6, steps_max: int = 2500) -> list[int]:
        """Let brokers start (up to four at once), write and be killed. Returns the records that the
        last one finds."""
        rng, store = self.rng, self.store
        alive = [ModelBroker(self, self._opening)]
        for _ in range(steps_max):
            if len(alive) < 4 and starts and rng.random() < (0.02 if alive else 1.0):
                starts -= 1
                alive.append(ModelBroker(self, self._opening))
            if not alive:
                break
            if store.late and rng.random() < 0.1:
                store.arrive()
            broker = rng.choice(alive)
            broker.step()
            if broker.is_over or rng.random() < 0.004:  # kill -9
                alive.remove(broker)
        # A last start finds what counts, and late writes change nothing about it.
        store.faults = 0
        while store.late and rng.random() < 0.7:
            store.arrive()
        last = ModelBroker(self, self._opening)
        for _ in range(100_000):
            next(last.processes[0])
            if hasattr(last, "upkeep"):
                return last.state.records()
        raise AssertionError("the last start does not end")

    def check(self, found: list[int]) -> None:
        """No answered record is lost, none is there twice, none is out of order."""
        assert len(set(found)) == len(found), "a record is there twice"
        for record, offset in self.answered.items():
            assert offset < len(found), f"record {record}, answered, is lost"
            assert found[offset] == record, f"record {record} is not at its offset {offset}"
