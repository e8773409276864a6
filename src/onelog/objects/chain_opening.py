"""Opening a chain: a new epoch, a fence behind the last object of the old one, and its state.

Rules, each of which the model of tests/property/test_chain_model.py found to be needed:
- An epoch is taken by creating its `open` object, which is never deleted, and neither is a fence: a
  write that was frozen for weeks meets one of them. No rule needs a clock.
- A fence is created at the first hole behind the newest checkpoint. The writer answers in order, so
  nothing behind a hole was ever answered.
- Checkpoints are listed again after the fence. One at or behind the hole means that the hole was a
  deleted object: begin anew behind it. An object that goes while it is read means the same.
- `base` is looked for after the fence: without it the epoch never wrote anything, and never will.
- Bytes also go bad on their way: an object whose checksum does not hold is read `READS` times
  before it counts as damaged.
- A start that finds a newer epoch at its end gives up before it deletes anything: the broker of
  that epoch may stand on the same objects, or have deleted what was read here.
- The steps are a generator without IO (`chain_requests.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from onelog.base.errors import ColdDamaged, StoreFenced
from onelog.objects import names
from onelog.objects.access import Buffer
from onelog.objects.chain_requests import ChainRequest, CreateObject, GetObjects, ListNames
from onelog.objects.checkpoint import VERSION, ChainCheckpoint, ChainPlace
from onelog.objects.wal import FENCE_BYTES_MAX, Wal, decode_wal, encode_fence, fenced_by

AT_ONCE: Final = 8
"""Objects that are asked for together."""
READS: Final = 3
"""How often an object is read whose bytes do not hold what they should."""
_TRIES_MAX: Final = 1000
"""How often a start begins anew before it gives up."""


class ChainState(Protocol):
    """What the objects of a chain add up to."""

    def load(self, state: bytes) -> None:
        """Take over the state of a checkpoint. Raises ColdDamaged."""
        ...

    def wanted(self) -> Sequence[ChainPlace]:
        """The objects, before the checkpoint, whose data the state still refers to."""
        ...

    def supply(self, wal: Wal) -> None:
        """Take the data of an object that is wanted."""
        ...

    def apply(self, wal: Wal) -> None:
        """Add the next object. Raises ColdDamaged."""
        ...

    def save(self) -> bytes:
        """The state for a checkpoint."""
        ...


S = TypeVar("S", bound=ChainState)
T = TypeVar("T")


class OpenedChain(NamedTuple, Generic[S]):
    """A chain that may be written to, from seq 1 on."""

    epoch: int
    state: S
    fences: tuple[ChainPlace, ...]


Steps = Generator[ChainRequest, Any, S]


class _BeginAnew(Exception):
    """Something was deleted meanwhile, so there is a newer state."""

    def __init__(self, missing: str) -> None:
        super().__init__(missing)
        self.missing = missing


class ChainOpening(Generic[S]):
    """One start of one broker on the chain `name` of a node."""

    def __init__(
        self, name: str, node: int, nonce: bytes, fresh: Callable[[], S], *, must_exist: str = ""
    ) -> None:
        """`must_exist` says what proves that the chain exists; a store without it is refused."""
        self._name = name
        self._node = node
        self._nonce = nonce
        self._fresh = fresh
        self._must_exist = must_exist
        self._epoch = 0
        self._fences: set[ChainPlace] = set()
        self._found: dict[str, Buffer] = {}
        """Objects that came back in place of a fence."""
        self._last = 0
        """The highest number that was listed, with or without a hole before it."""

    def run(self) -> Generator[ChainRequest, Any, OpenedChain[S]]:
        """All steps."""
        last = yield from self._take_epoch()
        state = yield from self._read_back(last)
        fences = tuple(sorted(self._fences))
        base = ChainCheckpoint(VERSION, self._epoch, 0, self._nonce, 0, fences, state.save())
        name = names.chain_base(self._name, self._epoch)
        if (yield CreateObject(name, base.encode(), "open.base")) is not None:
            raise self._fenced("another broker uses the same epoch")
        # A newer starter may have deleted what was read here while it was read.
        yield from self._check_epoch()
        return OpenedChain(self._epoch, state, fences)

    def _take_epoch(self) -> Generator[ChainRequest, Any, int]:
        """Take the epoch after the newest one, which is returned; 0: there was none."""
        while True:
            found = yield ListNames(names.chains_of(self._name), 1)
            if not found and self._must_exist:
                raise ColdDamaged(
                    f"the store has no chain {names.chains_of(self._name)}, but"
                    f" {self._must_exist}. Was it emptied, or is it not mounted? Check store.url"
                    " and node.id, or restore the bucket from a copy"
                )
            last = _place(found[0][0]).epoch if found else 0
            name = names.chain_open(self._name, last + 1)
            if (yield CreateObject(name, self._nonce, "open.epoch")) is None:
                self._epoch = last + 1
                return last

    def _read_back(self, last: int) -> Steps[S]:
        missing: list[str] = []
        while True:
            try:
                for epoch in range(last, 0, -1):
                    state = yield from self._ended(epoch)
                    if state is not None:
                        return state
                return self._fresh()
            except _BeginAnew as gone:
                yield from self._check_epoch()
                # An object that is still missing though nothing else changed is lost.
                if missing.count(gone.missing) > 1 or len(missing) > _TRIES_MAX:
                    raise ColdDamaged(
                        f"the chain {names.chains_of(self._name)} needs {gone.missing}, which is"
                        " gone: restore the object from a copy of the bucket"
                    ) from None
                missing.append(gone.missing)

    def _check_epoch(self) -> Generator[ChainRequest, Any, None]:
        """Give up if a newer epoch began."""
        newest = yield ListNames(names.chains_of(self._name), 1)
        epoch = _place(newest[0][0]).epoch
        if epoch > self._epoch:
            raise self._fenced(f"epoch {epoch} began meanwhile")

    def _ended(self, epoch: int) -> Generator[ChainRequest, Any, S | None]:
        """Fence an epoch. Returns its state; None: it never wrote."""
        hole = yield from self._fence(epoch, (yield from self._newest_checkpoint(epoch)))
        seq = yield from self._newest_checkpoint(epoch)
        if seq >= hole:
            raise _BeginAnew(f"{names.chain_wal(self._name, epoch, hole)} before {seq}")
        yield from self._check_lost(epoch, hole)
        self._fences.add(ChainPlace(epoch, hole))
        base_name = names.chain_base(self._name, epoch)
        (base,) = yield GetObjects((base_name,))
        if base is None:
            return None
        name = names.chain_checkpoint(self._name, epoch, seq) if seq else base_name
        (data,) = (yield GetObjects((name,))) if seq else (base,)
        if data is None:
            raise _BeginAnew(name)
        checkpoint = yield from self._read(_checkpoint, data, name)
        if (checkpoint.epoch, checkpoint.seq) != (epoch, seq):
            raise ColdDamaged(f"{name} holds the checkpoint of another place: restore it")
        self._fences.update(checkpoint.fences)
        state = self._fresh()
        state.load(checkpoint.state)
        yield from self._supply(state)
        yield from self._apply(state, checkpoint, hole)
        self._found.clear()
        return state

    def _check_lost(self, epoch: int, hole: int) -> Generator[ChainRequest, Any, None]:
        """Raise ColdDamaged if an object behind the hole knows that the hole was none: its writer
        had the answer for the object that is missing."""
        if self._last <= hole:
            return
        name = names.chain_wal(self._name, epoch, self._last)
        (data,) = yield GetObjects((name,))
        if data is None:
            return
        last = yield from self._read(decode_wal, data, name)
        if last.header.known >= hole:
            lost = names.chain_wal(self._name, epoch, hole)
            raise ColdDamaged(
                f"the WAL object {lost} was in the store and is gone, with messages that were"
                " answered: restore the object from a copy of the bucket"
            )

    def _newest_checkpoint(self, epoch: int) -> Generator[ChainRequest, Any, int]:
        found = yield ListNames(names.chain_checkpoints(self._name, epoch), 1)
        return _place(found[0][0]).seq if found else 0

    def _fence(self, epoch: int, after: int) -> Generator[ChainRequest, Any, int]:
        """Create a fence at the first hole behind `after`, unless there is one. Returns where."""
        listed = yield ListNames(names.chain_wals(self._name, epoch), None)
        there = {_place(name).seq: size_bytes for name, size_bytes in listed}
        self._last = max(there, default=0)
        seq = after + 1
        while seq in there:
            if there[seq] <= FENCE_BYTES_MAX:
                name = names.chain_wal(self._name, epoch, seq)
                (data,) = yield GetObjects((name,))
                if data is None:
                    raise _BeginAnew(name)
                if (yield from self._is_closed(data, name)):
                    return seq
            seq += 1
        while True:
            name = names.chain_wal(self._name, epoch, seq)
            fence = encode_fence(self._node, epoch, seq, self._nonce, self._epoch)
            found = yield CreateObject(name, fence, "open.fence")
            if found is None or (yield from self._is_closed(found, name)):
                return seq
            seq += 1

    def _read(
        self, decode: Callable[[Buffer, str], T], data: Buffer, name: str
    ) -> Generator[ChainRequest, Any, T]:
        """What an object holds whose bytes came as `data`. Raises ColdDamaged."""
        for _ in range(READS - 1):
            try:
                return decode(data, name)
            except ColdDamaged:
                (found,) = yield GetObjects((name,))
            if found is None:
                raise _BeginAnew(name)
            data = found
        return decode(data, name)

    def _is_closed(self, data: Buffer, name: str) -> Generator[ChainRequest, Any, bool]:
        """Whether an object is the fence of an older starter; a newer one's ends this start."""
        wal = yield from self._read(decode_wal, data, name)
        if not wal.is_fence:
            self._found[name] = data
            return False
        by = fenced_by(wal, name)
        if by > self._epoch:
            raise self._fenced(f"epoch {by} began meanwhile")
        return True

    def _supply(self, state: S) -> Generator[ChainRequest, Any, None]:
        wanted = list(state.wanted())
        asked_all = [names.chain_wal(self._name, *place) for place in wanted]
        for at in range(0, len(wanted), AT_ONCE):
            group, asked = wanted[at : at + AT_ONCE], tuple(asked_all[at : at + AT_ONCE])
            found = yield GetObjects(asked, tuple(asked_all[at + AT_ONCE : at + 2 * AT_ONCE]))
            for place, name, data in zip(group, asked, found, strict=True):
                if data is None:
                    raise _BeginAnew(name)
                state.supply((yield from self._checked(data, name, place)))

    def _apply(
        self, state: S, checkpoint: ChainCheckpoint, hole: int
    ) -> Generator[ChainRequest, Any, None]:
        link, epoch = checkpoint.link, checkpoint.epoch
        for first in range(checkpoint.seq + 1, hole, AT_ONCE):
            seqs = range(first, min(first + AT_ONCE, hole))
            asked = tuple(names.chain_wal(self._name, epoch, seq) for seq in seqs)
            unknown = tuple(name for name in asked if name not in self._found)
            if unknown:
                later = range(seqs.stop, min(seqs.stop + AT_ONCE, hole))
                ahead = tuple(names.chain_wal(self._name, epoch, seq) for seq in later)
                ahead = tuple(name for name in ahead if name not in self._found)
                found = yield GetObjects(unknown, ahead)
                self._found.update(zip(unknown, found, strict=True))
            for seq, name in zip(seqs, asked, strict=True):
                data = self._found.pop(name)
                if data is None:
                    raise _BeginAnew(name)
                wal = yield from self._checked(data, name, ChainPlace(epoch, seq))
                if wal.header.link != link or wal.header.nonce != checkpoint.nonce or wal.is_fence:
                    raise ColdDamaged(
                        f"{name} is not the object that was written behind the one before it:"
                        " restore both from a copy of the bucket"
                    )
                state.apply(wal)
                link = wal.crc

    def _checked(
        self, data: Buffer, name: str, place: ChainPlace
    ) -> Generator[ChainRequest, Any, Wal]:
        wal = yield from self._read(decode_wal, data, name)
        if (wal.header.node, wal.header.epoch, wal.header.seq) != (self._node, *place):
            raise ColdDamaged(f"{name} holds another object of a chain: restore it from a copy")
        return wal

    def _fenced(self, why: str) -> StoreFenced:
        return StoreFenced(
            f"the chain {names.chains_of(self._name)} belongs to another broker: {why}; only one"
            " broker may use a store's prefix at a time: stop one of them"
        )


def _checkpoint(data: Buffer, name: str) -> ChainCheckpoint:
    return ChainCheckpoint.decode(bytes(data), name)


def _place(name: str) -> names.ChainName:
    found = names.parse_chain(name)
    if found is None:
        raise ColdDamaged(f"{name} is no name of a chain: it does not belong there")
    return found
