"""The rows of all virtual hosts in the metadata store, in memory as the store's watch shows them.

Rules:
- Exchanges, kept queues and bindings come and go in memory when the watch says so, and by nothing
  else: on this node, too, and in the order of the store's revisions. A write that the store refused
  leaves no trace.
- A write compares the rows that it rests on: a binding those of its virtual host, its exchange and
  its queue. So no binding outlives what it was made for.
- A list that one transaction does not take is written in parts. A queue or an exchange goes before
  its bindings, which then lead nowhere: whoever makes one of that name again deletes them first,
  and so does the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from onelog.base.errors import Conflict
from onelog.broker import Change, Delete, Entry, MetadataStore, Projection, Put, in_parts
from onelog.observe import Troubles
from onelog.queues.definitions import KINDS, MADE, ROOT, decode_row, parse_key
from onelog.queues.exchanges import Binding, ExchangeRecord
from onelog.queues.settings import QueueRecord

_DECODERS: Final[dict[str, Callable[[bytes], ExchangeRecord | QueueRecord | Binding]]] = {
    "exchanges": lambda value: decode_row(value, ExchangeRecord),
    "queues": lambda value: decode_row(value, QueueRecord),
    "bindings": lambda value: decode_row(value, Binding),
}
_ORDER: Final = (MADE, *KINDS)
"""What comes is needed by what comes after it; what goes, the other way round."""

TopologyRecord = ExchangeRecord | QueueRecord | Binding | bytes
"""What a row says; of a virtual host, what people wrote about it."""


class TopologyRow(NamedTuple):
    """A row: of which virtual host and kind it is, and what it says."""

    vhost: str
    kind: str
    record: TopologyRecord


class RowChange(NamedTuple):
    """A row that came (or says something else now), or went."""

    key: str
    row: TopologyRow
    is_there: bool


class Topology:
    """What the store knows; `apply` gets every change once `follow` was called."""

    def __init__(
        self,
        store: MetadataStore,
        troubles: Troubles,
        apply: Callable[[Sequence[RowChange]], None],
    ) -> None:
        self._rows = Projection(store, ROOT, _decode, troubles, self._changed)
        self._apply = apply
        self._early: list[RowChange] | None = []
        """What changed since the rows were read, until it can be applied."""

    async def open(self) -> list[tuple[str, TopologyRow]]:
        """Every key and row, in the order in which they are needed."""
        await self._rows.open()
        self._early = []
        return sorted(self._rows.rows(), key=lambda row: _ORDER.index(row[1].kind))

    def follow(self) -> None:
        """Apply what changes from now on, and what changed meanwhile."""
        early, self._early = self._early or [], None
        if early:
            self._apply(early)

    async def close(self) -> None:
        """Follow no more."""
        await self._rows.close()

    def find(self, key: str) -> TopologyRow | None:
        """A row."""
        row = self._rows.get(key)
        return None if row is None else row.value

    async def put(self, key: str, value: bytes) -> None:
        """Write a row, new or not, and wait until it applies here.

        Raises Conflict when it is not as it is known here, and what `Projection.write` raises.
        """
        await self._rows.put(key, value)

    async def create(self, key: str, value: bytes, *needed: str) -> None:
        """As `put`, of a new row, which rests on those that are `needed`."""
        await self._rows.write([Put(key, value)], known={**self._known(needed), key: 0})

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete rows as far as they are there, in parts. The first part is made as `put` is."""
        is_first = True
        for part in in_parts([Delete(key) for key in keys if self.find(key) is not None]):
            while there := [op for op in part if self.find(op.key) is not None]:
                try:
                    await self._rows.write(there)
                except Conflict:
                    if is_first:
                        raise
            is_first = False

    async def delete_prefix(self, prefix: str, guard: str) -> None:
        """Delete every row that begins with `prefix`, at once, if `guard` is one and as known."""
        await self._rows.write([Delete(prefix, prefix=True)], known=self._known([guard]))

    def _known(self, keys: Iterable[str]) -> dict[str, int]:
        rows = ((key, self._rows.get(key)) for key in keys)
        return {key: 0 if row is None else row.revision for key, row in rows}

    def _changed(self, changes: Sequence[Change[TopologyRow]]) -> None:
        found = list(_in_order(changes))
        if self._early is None:
            self._apply(found)
        else:
            self._early += found


def _in_order(changes: Sequence[Change[TopologyRow]]) -> Iterator[RowChange]:
    gone = [
        RowChange(change.key, change.before, is_there=False)
        for change in changes
        if change.before is not None
        and (change.after is None or (change.before.kind != MADE and change.after != change.before))
    ]
    new = [
        RowChange(change.key, change.after, is_there=True)
        for change in changes
        if change.after is not None and change.after != change.before
    ]
    yield from sorted(gone, key=lambda row: -_ORDER.index(row.row.kind))
    yield from sorted(new, key=lambda row: _ORDER.index(row.row.kind))


def _decode(entry: Entry) -> TopologyRow:
    vhost, kind = parse_key(entry.key)
    if kind == MADE:
        return TopologyRow(vhost, kind, entry.value)
    return TopologyRow(vhost, kind, _DECODERS[kind](entry.value))
