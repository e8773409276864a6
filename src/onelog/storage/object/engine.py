"""The object engine itself: it opens the node's chain, and the partitions that the chain names.

Rules: opening it takes a new epoch and fences the broker before it, whatever that one still does.
Closing it writes what is left. It has no files: a backup of it is a copy of the bucket.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from onelog.base.clock import Clock, SystemClock
from onelog.base.errors import Closed, ColdUnavailable, Conflict, OnelogError
from onelog.base.ids import Offset
from onelog.objects.chain import Chain
from onelog.objects.chain_line import ChainLine
from onelog.objects.chain_opening import ChainOpening
from onelog.objects.chain_requests import run_steps
from onelog.objects.chain_upkeep import ChainUpkeep
from onelog.objects.store import ObjectStore
from onelog.objects.wal import NONCE_BYTES
from onelog.storage.cold import PlanHold, RunCache
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object.core import ObjectCore
from onelog.storage.object.image import LogImage, StateRow, kept_states
from onelog.storage.object.notes import DropNote, HighNote, StateNote
from onelog.storage.object.partition import ObjectLog
from onelog.storage.object.settings import ObjectSettings
from onelog.storage.object.upkeep import ObjectUpkeep

TIER_STATE: Final = "~tier"
"""The state that holds the copy of a tier's manifest; its offset is 0, so no cut takes it."""
_CLOSING_OBJECTS: Final = 16
"""With more WAL objects since the last checkpoint, closing writes one: the next start is short."""


class ObjectEngine:
    """Partitions in an object store."""

    volatile = False
    lies_in_store = True

    def __init__(
        self,
        store: ObjectStore,
        cache: RunCache,
        settings: ObjectSettings | None = None,
        clock: Clock | None = None,
        *,
        chain_store: ObjectStore | None = None,
        must_exist: str = "",
        plans: PlanHold | None = None,
    ) -> None:
        """Open the chain: it blocks. `must_exist` says why the chain cannot be new, if so.
        `plans` remembers who reads objects, beyond this process.

        Raises StoreFenced, ColdDamaged, ColdUnavailable.
        """
        self._settings = settings = settings or ObjectSettings()
        clock = clock or SystemClock()
        nonce = secrets.token_bytes(NONCE_BYTES)
        chains = chain_store or store
        began = time.monotonic()
        opening = ChainOpening(
            settings.chain, settings.node, nonce, LogImage, must_exist=must_exist
        )
        opened = run_steps(opening.run(), chains)
        line = ChainLine(
            settings.node,
            opened.epoch,
            nonce,
            linger_s=settings.linger_ms / 1000,
            batch_bytes=settings.batch_bytes,
            inflight=settings.inflight,
        )
        self.core = core = ObjectCore(store, cache, opened.state, settings, clock, plans)
        upkeep = ChainUpkeep(settings.chain, opened.epoch, opened.fences)
        core.checkpoint_wanted = opened.state.wanted()
        core.recover()
        core.chain = Chain(
            chains, settings.chain, line, upkeep, core, clock, threads=settings.inflight
        )
        self.opening_s = time.monotonic() - began
        self.upkeep = ObjectUpkeep(core)
        self._open: dict[PartitionKey, ObjectLog] = {}
        self._is_closed = False
        self.upkeep.start()

    def open(self, key: PartitionKey, settings: LogSettings) -> ObjectLog:
        """Open or create a partition."""
        with self.core.chain.lock:
            if self._is_closed:
                raise Closed("the object engine is closed")
            self.core.chain.check()
            held = self._open.get(key)
            if held is not None and not held.is_closed:
                raise Conflict(f"partition {key.stream_id}/{key.partition} is open already")
            log = self._open[key] = ObjectLog(self.core, self.core.content(key), settings)
            return log

    def delete(self, key: PartitionKey) -> None:
        """Delete a closed partition. No error if it does not exist."""
        core = self.core
        with core.chain.lock:
            core.chain.check()
            held = self._open.pop(key, None)
            if held is not None and not held.is_closed:
                self._open[key] = held
                raise Conflict(f"partition {key.stream_id}/{key.partition} is open: close it first")
            content = core.contents.pop(key, None)
            if content is None:
                return
            core.weigh(-content.memory_bytes)
            core.chain.line.open.cut(content.name, 0)
            core.chain.note(DropNote(*content.name))
        content.cold.close()
        try:
            core.wait()
        except ColdUnavailable as error:
            raise ColdUnavailable(
                f"{content.place} is deleted here, and the object store has not heard of it yet: it"
                f" will when it answers again, at the latest after the next start. {error}",
                error.reason,
            ) from error

    # Copies of a tier's manifests, which have no disk here.

    def kept_copy(self, key: PartitionKey) -> bytes | None:
        """What a tier in front of this engine kept last; None: nothing."""
        with self.core.chain.lock:
            content = self.core.contents.get(key)
            states = [] if content is None else content.states
            return next((row.blob for row in states if row.kind == TIER_STATE), None)

    def keep_copy(self, key: PartitionKey, data: bytes) -> None:
        """Keep this before whatever is written afterwards: a note, which nobody waits for."""
        with self.core.chain.lock:
            self.core.chain.check()
            content = self.core.content(key)
            fresh = StateRow(TIER_STATE, 0, data)
            content.states = kept_states(content.states, fresh)
            self.core.chain.note(StateNote(*content.name, fresh.kind, fresh.offset, fresh.blob))

    def kept_copies(self, prefix: str) -> list[PartitionKey]:
        """Under which keys copies are kept whose stream ids begin so; none if the chain ended."""
        with self.core.chain.lock:
            if self.core.chain.error is not None:
                return []
            return sorted(key for key in self.core.contents if key.stream_id.startswith(prefix))

    def wait(self) -> None:
        """Block until what was kept is in the store, for a bounded time."""
        self.core.wait()

    def prove(self, key: PartitionKey) -> None:
        """Block until a note is in the chain that says nothing new: a broker that was replaced
        meets the fence. Raises StoreFenced."""
        with self.core.chain.lock:
            self.core.chain.check()
            content = self.core.content(key)
            self.core.chain.note(HighNote(*content.name, content.high))
        self.core.wait()

    def set_aside(self, key: PartitionKey) -> None:
        """Delete a closed partition: its objects are shared with others."""
        self.delete(key)

    def partitions(self) -> list[PartitionKey]:
        """Every partition that was written to, or is open."""
        with self.core.chain.lock:
            return sorted(
                key
                for key, content in self.core.contents.items()
                if content.end or (key in self._open and not self._open[key].is_closed)
            )

    def check_room(self) -> None:
        """Raise StorageFull when the buffer is full."""
        with self.core.chain.lock:
            self.core.check_buffer(1)

    def freeze(self, cuts: Mapping[PartitionKey, Offset], into: Path) -> dict[str, int]:
        """There are no files here: copy the bucket."""
        del cuts, into
        return {}

    def needed_of_chain(self, listed: Sequence[str]) -> Collection[str]:
        """Which of these objects of chains are needed: for the sweep."""
        return self.core.chain.needed(listed, self.core.checkpoint_wanted)

    def needed(self, listed: Sequence[str]) -> Collection[str]:
        """Which of these data objects are named by the log, or will be: for the sweep."""
        with self.core.chain.lock:
            self.core.chain.check()
            uses, doomed = self.core.image.uses, self.core.image.doomed
            rows = {row.object for held in self.core.contents.values() for row in held.cold.rows}
            return [name for name in listed if uses[name] or name in doomed or name in rows]

    def close(self) -> None:
        """Write what is left, then end. Idempotent."""
        with self.core.chain.lock:
            if self._is_closed:
                return
            self._is_closed = True
            for log in self._open.values():
                log.close()
        self.upkeep.close()
        chain, deadline_s = self.core.chain, self._settings.close_ms / 1000
        chain.hurry()
        with contextlib.suppress(OnelogError):  # the next start reads more
            chain.wait(deadline_s)
            if chain.line.seq - chain.upkeep.seq > _CLOSING_OBJECTS:
                self.upkeep.checkpoint()
        chain.close(deadline_s)
