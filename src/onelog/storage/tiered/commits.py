"""The commits of one partition's tier: each is a manifest with the next number, created only.

Rules: a name that exists is read back. If this process wrote it (by its nonce), it is taken over,
and the change is made again on top of it. If somebody else did, or the store lists a newer one,
this writer is *fenced*: it moves nothing any more, and the local log goes on. Before its first
commit a process compares the store's newest manifest with its own copy. A store that has less than
the copy says is not the store that it was: the tier refuses it. One that has more is taken over, if
it belongs to this log. The last manifests stay, so that a reader of a list finds what it saw.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from onelog.base import faults
from onelog.base.errors import ColdDamaged, ColdUnavailable, Fenced, NotFound, StorageError
from onelog.base.ids import Offset
from onelog.kernel import crc32c, scan_batches
from onelog.objects import names
from onelog.objects.manifest import NONCE_BYTES, Doomed, Manifest, encode_with
from onelog.objects.piece import decode_footer
from onelog.objects.rows import FOOTER_BYTES, Row
from onelog.objects.store import ObjectStore, Taken
from onelog.storage.cold import RowTable
from onelog.storage.engine import in_place
from onelog.storage.tiered.inner import LocalLog
from onelog.storage.tiered.state import TierState

HOUSE_BYTES: Final = 8
"""The first bytes of a nonce say which data directory wrote it, the others which process."""
KEPT: Final = 3
"""Manifests of a partition that stay in the store."""
_READ_BYTES: Final = 4 * 1024 * 1024


class TierChange(NamedTuple):
    """What a commit changes in a manifest."""

    rows: RowTable
    doomed: Sequence[Doomed]
    start: int
    stream: bytes | None = None
    """The stream's record; None: the one of the manifest before."""
    leader_epoch: int | None = None
    marks: dict[str, str] | None = None


Change = Callable[[], TierChange | None]
"""Makes a change of what is known now; None: there is nothing to change."""


class Commits:
    """Talks to the store about one partition's manifests. One thread at a time."""

    __slots__ = ("_inner", "_nonce", "_state", "_store", "fence", "is_met", "refusal")

    def __init__(self, store: ObjectStore, state: TierState, inner: LocalLog, house: bytes) -> None:
        """`house` says which data directory this is."""
        self._store = store
        self._state = state
        self._inner = inner
        self._nonce = house + secrets.token_bytes(NONCE_BYTES - len(house))
        self.is_met = False
        """Whether the store was compared with the copy."""
        self.fence = ""
        """Why this process moves nothing any more; empty: it does."""
        self.refusal = ""
        """Why the store was refused when it was last compared; empty: it was not."""

    # The first contact.

    def meet(self) -> None:
        """Compare the store with what is known here, unless that was done. Raises Fenced,
        StorageError, ColdUnavailable."""
        if self.fence:
            raise Fenced(self.fence)
        if self.is_met:
            return
        try:
            self._compare()
        except StorageError as error:
            self.refusal = "" if isinstance(error, ColdUnavailable) else str(error)
            raise
        self._state.note_met()
        self.is_met, self.refusal = True, ""

    def _compare(self) -> None:
        state, known = self._state, self._state.head
        seq = self._newest_seq()
        if seq < known.seq or (seq == 0 and state.lost):
            found = f"its newest manifest has number {seq}" if seq else "it has no manifest"
            ours = "this machine's copies are damaged" if state.lost else f"ours is {known.seq}"
            raise StorageError(
                f"{self._store.url} does not hold what the tier of {state.name} wrote: {found},"
                f" {ours}. Was it emptied, or is store.url another bucket or prefix? Nothing is"
                " moved there; set store.url right, or restore the bucket from a copy, then restart"
            )
        if seq == 0:
            return
        manifest = self._read(seq)
        if seq == known.seq:
            if manifest.nonce != known.nonce:
                raise StorageError(
                    f"{self._store.url} holds another manifest {seq} of {state.name} than this"
                    " machine wrote: another broker writes there. Nothing is moved; give each"
                    " broker a prefix of its own"
                )
            return
        self._check_ours(manifest)
        self._adopt(manifest)

    def _adopt(self, manifest: Manifest) -> None:
        head = msgspec.structs.replace(manifest, rows=())
        self._state.adopt(head, RowTable(manifest.rows))

    def _newest_seq(self) -> int:
        prefix = names.manifests_of(*self._state.key)
        for found in self._store.list(prefix, limit=1):
            name = names.parse_manifest(found.name)
            if name is not None:
                return name.seq
            raise ColdDamaged(f"{self._store.url}: {found.name} is no manifest: remove it")
        return 0

    def _read(self, seq: int) -> Manifest:
        name = names.tier_manifest(*self._state.key, seq)
        shown = f"{self._store.url}/{name}"
        with contextlib.suppress(ColdDamaged):
            return Manifest.decode(self._store.get(name), shown)
        return Manifest.decode(self._store.get(name), shown)  # bytes also go bad on their way

    def _check_ours(self, manifest: Manifest) -> None:
        """Refuse a manifest that another process wrote, if it is not of this very log."""
        state, end = self._state, self._inner.end_offset
        rows_end = max((row.end for row in self._counting(manifest)), default=0)
        if rows_end > end or manifest.partition != state.key.partition:
            raise StorageError(
                f"{self._store.url} has {state.name} up to offset {rows_end}, and here its"
                f" log ends at {end}: another broker wrote there, or this disk is an old copy."
                " Nothing is moved; delete its folder and restore it from the bucket,"
                " or give this broker a prefix of its own"
            )
        known = {row.object for row in state.rows}
        for row in self._counting(manifest):
            if row.object not in known and row.kind == "log" and row.base >= state.local:
                is_home = manifest.nonce[:HOUSE_BYTES] == self._nonce[:HOUSE_BYTES]
                self._check_row(row, may_be_thinned=is_home)

    def _counting(self, manifest: Manifest) -> Iterator[Row]:
        """Rows that a cut did not take meanwhile."""
        state = self._state
        for row in manifest.rows:
            if not (state.unmet_cut and row.end > state.cut):
                yield row

    def _check_row(self, row: Row, *, may_be_thinned: bool) -> None:
        """Compare a piece with the local batches of the same offsets."""
        inner = self._inner
        offset, size_bytes, crc = Offset(row.base), 0, 0
        while offset < row.end:
            view = in_place(inner, partial(inner.read, offset, _READ_BYTES, Offset(row.end)))
            if not view:
                break
            size_bytes, crc = size_bytes + len(view), crc32c(view, crc)
            offset = _end_of(view)
        if size_bytes < row.log_bytes and may_be_thinned:
            return
        start = row.position + row.piece_bytes - FOOTER_BYTES
        try:
            data = self._store.get_range(row.object, start, FOOTER_BYTES)
        except NotFound:
            return  # reads of it will say so
        footer = decode_footer(data, row.object)
        if (footer.log_bytes, footer.log_crc) != (size_bytes, crc):
            raise StorageError(
                f"{self._store.url} holds other records than this machine for offsets {row.base} to"
                f" {row.end} of {self._state.name}: another broker writes there. Nothing is moved;"
                " give each broker a prefix of its own"
            )

    # Commits.

    def commit(self, change: Change) -> bool:
        """Make a change in the store, then here. False: there was nothing to change.

        Raises Fenced, ColdUnavailable (it may be done or not: the next commit finds out), and what
        writing the copy raises.
        """
        self.meet()
        while True:
            wanted = change()
            if wanted is None:
                return False
            head, rows = self._next(wanted), wanted.rows
            self._state.prove()
            try:
                self._put(head.seq, encode_with(head, len(rows), rows.packed))
                self._check_newest(head.seq)
                self._state.adopt(head, rows)
                self._state.wait()
            except Taken as taken:
                self._take_over(head.seq, taken)
                continue
            except StorageError:
                # The store may have this manifest: it is asked before anything else is decided.
                self.is_met = False
                raise
            self._forget(head.seq - KEPT)
            return True

    def _next(self, wanted: TierChange) -> Manifest:
        head = self._state.head
        return msgspec.structs.replace(
            head,
            seq=head.seq + 1,
            nonce=self._nonce,
            doomed=tuple(wanted.doomed),
            start=wanted.start,
            stream=head.stream if wanted.stream is None else wanted.stream,
            leader_epoch=(
                head.leader_epoch if wanted.leader_epoch is None else wanted.leader_epoch
            ),
            marks=head.marks if wanted.marks is None else wanted.marks,
        )

    def _put(self, seq: int, data: bytes) -> None:
        try:
            faults.hit("tier.manifest")
        except OSError as error:
            raise ColdUnavailable(f"the manifest of {self._state.name}: {error}") from error
        self._store.create(names.tier_manifest(*self._state.key, seq), [data])

    def _take_over(self, seq: int, taken: Taken) -> None:
        """The name is taken: by an earlier try of this process, or by another writer."""
        found = Manifest.decode(taken.found, taken.name)
        if found.nonce != self._nonce:
            self._fenced(f"its manifest {seq} is another broker's")
        self._check_newest(seq)
        self._adopt(found)

    def _check_newest(self, seq: int) -> None:
        """A name long gone is free again: only what is listed first counts."""
        newest = self._newest_seq()
        if newest != seq:
            self._fenced(f"its newest manifest has number {newest}, ours {seq}")

    def _fenced(self, why: str) -> None:
        self.fence = (
            f"the tier of {self._state.name} is fenced: {self._store.url}: {why}. Another broker"
            " moves this partition there; this one moves nothing any more, and its log goes on."
            " Stop one of the two, or give it a prefix of its own (store.url), then restart this"
            " one"
        )
        raise Fenced(self.fence)

    def _forget(self, seq: int) -> None:
        """Delete a manifest that is no longer needed; if that fails, the sweep does it."""
        if seq > 0:
            with contextlib.suppress(ColdUnavailable):
                self._store.delete([names.tier_manifest(*self._state.key, seq)])


def _end_of(view: memoryview) -> Offset:
    return Offset(scan_batches(view, 0, False)[-1].last_offset + 1)
