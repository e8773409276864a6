"""Metadata in the object store: the embedded store, whose changes are a chain of their own.

Rules: the SQLite file is a copy for reading, made anew at every start. A change is answered when
its note is in the chain (I4), so a broker with an empty data directory finds all of them. Notes are
commands: replayed in order they give the same revisions. A fence stops the store, as a broken disk
does. Everything blocks and belongs to the thread of the `Worker`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ColdDamaged, OnelogError, OutcomeUnknown
from onelog.metadata.local_database import LocalDatabase, Revision
from onelog.metadata.store import Op
from onelog.objects.chain import Chain
from onelog.objects.chain_line import ChainLine, SealedBulk
from onelog.objects.chain_opening import ChainOpening
from onelog.objects.chain_requests import run_steps
from onelog.objects.chain_upkeep import ChainUpkeep
from onelog.objects.checkpoint import ChainPlace
from onelog.objects.store import ObjectStore
from onelog.objects.wal import NONCE_BYTES, Wal

T = TypeVar("T")

SNAPSHOT_CHANGES: Final = 100
"""After so many changes the whole store is written."""
CLOSE_S: Final = 10.0
_WRITES: Final = 2
"""Writes on their way at once: one of the worker, and nothing waits for a lost one."""


class AppliedOps(msgspec.Struct, frozen=True, array_like=True, tag="apply"):
    """A transaction that changed something."""

    ops: tuple[Op, ...]


class GrantedLease(msgspec.Struct, frozen=True, array_like=True, tag="grant"):
    """A new lease."""

    ttl_s: float


class EndedLease(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """A lease that expired or was revoked."""

    lease: int


Note = AppliedOps | GrantedLease | EndedLease


class MetadataState:
    """A snapshot, and the changes since; a `ChainState`."""

    def __init__(self) -> None:
        self.file = b""
        """The SQLite file; empty: there was no snapshot yet."""
        self.notes: list[Note] = []

    def load(self, state: bytes) -> None:
        """Take over the state of a checkpoint."""
        try:
            self.file, self.notes = _state.decode(state)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ColdDamaged(f"a snapshot of the metadata cannot be read: {error}") from None

    def wanted(self) -> Sequence[ChainPlace]:
        """None: notes hold everything."""
        return ()

    def supply(self, wal: Wal) -> None:
        """Nothing is wanted."""
        raise AssertionError(f"nobody asked for object {wal.header.seq}")

    def apply(self, wal: Wal) -> None:
        """Add the changes of the next object."""
        try:
            self.notes += _notes.decode(wal.notes)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ColdDamaged(
                f"the changes of metadata in object {wal.header.seq} cannot be read: {error}"
            ) from None

    def save(self) -> bytes:
        """The state for a checkpoint."""
        return msgspec.msgpack.encode((self.file, self.notes))


_state: Final = msgspec.msgpack.Decoder(tuple[bytes, list[Note]])
_notes: Final = msgspec.msgpack.Decoder(list[Note])


class ChainedDatabase(LocalDatabase):
    """The SQLite file, and the chain that it is made from."""

    def __init__(
        self,
        path: Path,
        history_revisions: int,
        store: ObjectStore,
        chain: str,
        node: int,
        clock: Clock,
        opened: Callable[[Chain], None] = lambda _chain: None,
    ) -> None:
        """Open the chain. `opened` gets it, in this thread. A copy that lies here proves that the
        chain exists: a store without it was emptied, or is another one. Raises StoreFenced,
        ColdDamaged, ColdUnavailable."""
        self._log: list[Note] = []
        self._changes = 0
        self._path = path
        nonce = secrets.token_bytes(NONCE_BYTES)
        proof = ""
        if path.exists() and path.stat().st_size:
            proof = f"{path} is a copy of the metadata in it (to begin anew, remove that file)"
        opening = ChainOpening(chain, node, nonce, MetadataState, must_exist=proof)
        found = run_steps(opening.run(), store)
        for name in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)
        if found.state.file:
            path.write_bytes(found.state.file)
        super().__init__(path, history_revisions)
        self._sql.execute("PRAGMA synchronous = OFF")  # the chain is what survives
        self._replay(found.state.notes)
        line = ChainLine(
            node, found.epoch, nonce, linger_s=0.0, batch_bytes=1 << 20, inflight=_WRITES
        )
        upkeep = ChainUpkeep(chain, found.epoch, found.fences)
        self.chain = Chain(store, chain, line, upkeep, self, clock, threads=_WRITES)
        opened(self.chain)
        if found.epoch > 1:
            self._tidy(lambda: self.chain.delete_older_epochs(()))
        self._changes = len(found.state.notes)

    def _replay(self, notes: Sequence[Note]) -> None:
        self.begin()
        for note in notes:
            match note:
                case AppliedOps(ops):
                    super().apply(ops)
                case GrantedLease(ttl_s):
                    super().grant(ttl_s)
                case EndedLease(lease):
                    super().end_lease(lease)
        super().commit()

    # Groups.

    def begin(self) -> None:
        """Start a group of mutations."""
        self._log.clear()
        super().begin()

    def attempt(self, work: Callable[[], T]) -> T:
        """Run one mutation of the group. If it raises, only its own changes are undone."""
        before = len(self._log)
        try:
            return super().attempt(work)
        except BaseException:
            del self._log[before:]
            raise

    def commit(self) -> None:
        """Make the group durable: its changes are in the chain. Raises OutcomeUnknown."""
        super().commit()
        if not self._log:
            return
        try:
            with self.chain.lock:
                self.chain.check()
                self.chain.note(*self._log)
            self.chain.wait()
        except OnelogError as error:
            raise OutcomeUnknown(str(error)) from error
        self._changes += len(self._log)
        if self._changes >= SNAPSHOT_CHANGES:
            self._tidy(self._snapshot)

    def apply(self, ops: Sequence[Op]) -> Revision:
        """Make the changes of one transaction in one revision."""
        made = super().apply(ops)
        if made:
            self._log.append(AppliedOps(tuple(ops)))
        return made

    def grant(self, ttl_s: float) -> int:
        """A new lease."""
        lease = super().grant(ttl_s)
        self._log.append(GrantedLease(ttl_s))
        return lease

    def end_lease(self, lease: int) -> Revision:
        """Delete a lease and its keys."""
        made = super().end_lease(lease)
        self._log.append(EndedLease(lease))
        return made

    # Upkeep.

    def _snapshot(self) -> None:
        copy = self._path.with_name(self._path.name + ".snapshot")
        self.copy(copy)
        state = MetadataState()
        state.file = copy.read_bytes()
        copy.unlink()
        self.chain.checkpoint(lambda: (state.save, ()))
        self._changes = 0

    def _tidy(self, work: Callable[[], None]) -> None:
        """Upkeep that may fail: the next one does it."""
        try:
            work()
        except (OnelogError, OSError):
            self._changes = 0

    def close(self) -> None:
        """Close chain and file."""
        self.chain.close(CLOSE_S)
        super().close()

    # As the owner of the chain.

    def bulk_left(self, bulk: SealedBulk) -> None:
        """Nothing follows from it."""

    def bulk_counts(self, bulk: SealedBulk) -> None:
        """Nothing follows from it."""

    def chain_ended(self, error: OnelogError) -> None:
        """The next commit raises it."""
