"""The offsets of one group: committed ones, and those that wait for the end of a transaction.

Rules: an offset that is not durable yet is not visible. A pending offset is not visible either, but
a reader that asks for stable offsets learns that there is one. Between a commit and the end of a
transaction, the later request counts, whichever completes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onelog.broker.kept import KeptRow
from onelog.protocols.kafka.groups.rows import (
    GroupOffset,
    committed_key,
    encode_committed,
    pending_key,
)

Place = tuple[str, int]
"""Topic and partition."""


class GroupOffsets:
    """The offsets of one group."""

    __slots__ = ("_writing", "committed", "count", "group", "pending")

    def __init__(self, group: str) -> None:
        self.group = group
        self.committed: dict[str, dict[int, GroupOffset]] = {}
        """Topic → partition → committed offset."""
        self.pending: dict[int, dict[Place, GroupOffset]] = {}
        """Producer id → the offsets that its open transaction will commit."""
        self.count = 0
        """The number of committed and pending offsets."""
        self._writing: dict[Place, int] = {}
        """The order of commits that are being written."""

    def __bool__(self) -> bool:
        return self.count > 0 or bool(self._writing)

    # -- looking

    @property
    def load(self) -> int:
        """The number of its offsets, including those that are being written."""
        return self.count + len(self._writing)

    def find(self, topic: str, partition: int) -> GroupOffset | None:
        """The committed offset in a partition."""
        partitions = self.committed.get(topic)
        return None if partitions is None else partitions.get(partition)

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Whether an open transaction may change the offset there."""
        place = (topic, partition)
        return any(place in staged for staged in self.pending.values())

    def places(self) -> Iterator[tuple[Place, GroupOffset]]:
        """Every committed offset."""
        for topic, partitions in self.committed.items():
            for partition, committed in partitions.items():
                yield (topic, partition), committed

    def places_of(self, topic: str) -> list[Place]:
        """The partitions of a topic with offsets, including those that are being written."""
        places = {(topic, partition) for partition in self.committed.get(topic, ())}
        return sorted(places.union(place for place in self._writing if place[0] == topic))

    def new_places(self, places: Iterable[Place]) -> int:
        """How many of these would be new."""
        return sum(self.find(topic, partition) is None for topic, partition in places)

    # -- committing: rows to write, then what to do when they are durable

    def begin_commit(self, rows: Mapping[Place, GroupOffset]) -> list[KeptRow]:
        """The rows of a commit."""
        self._writing.update((place, committed.order) for place, committed in rows.items())
        return [
            (committed_key(self.group, *place), encode_committed(committed))
            for place, committed in rows.items()
        ]

    def end_commit(self, rows: Mapping[Place, GroupOffset], *, durable: bool) -> None:
        """A commit is durable, or failed."""
        for place, committed in rows.items():
            if self._writing.get(place) == committed.order:
                del self._writing[place]
            if durable:
                self.set(place, committed)

    def set(self, place: Place, committed: GroupOffset) -> None:
        """Set a committed offset."""
        topic, partition = place
        partitions = self.committed.setdefault(topic, {})
        self.count += partition not in partitions
        partitions[partition] = committed

    def drop(self, places: Iterable[Place]) -> None:
        """Forget committed offsets."""
        for topic, partition in places:
            partitions = self.committed.get(topic)
            if partitions is not None and partitions.pop(partition, None) is not None:
                self.count -= 1
                if not partitions:
                    del self.committed[topic]

    def drop_rows(self, places: Iterable[Place]) -> list[KeptRow]:
        """The rows that remove committed offsets."""
        return [(committed_key(self.group, *place), None) for place in places]

    # -- transactions

    def stage(self, producer_id: int, rows: Mapping[Place, GroupOffset]) -> list[KeptRow]:
        """Note the offsets that an open transaction will commit. Returns the rows to keep."""
        staged = self.pending.setdefault(producer_id, {})
        self.count += len(rows.keys() - staged.keys())
        staged.update(rows)
        return [
            (pending_key(self.group, producer_id, *place), encode_committed(committed))
            for place, committed in rows.items()
        ]

    def unstage(self, producer_id: int, rows: Mapping[Place, GroupOffset]) -> None:
        """Forget the pending offsets of a transaction, if they are still these."""
        staged = self.pending.get(producer_id, {})
        for place, committed in rows.items():
            if staged.get(place) is committed:
                del staged[place]
                self.count -= 1
        if not staged:
            self.pending.pop(producer_id, None)

    def outcome(self, producer_id: int, *, committed: bool) -> dict[Place, GroupOffset]:
        """The offsets that the end of a transaction commits: all it staged, except those committed
        since."""
        if not committed:
            return {}
        return {
            place: row
            for place, row in self.pending.get(producer_id, {}).items()
            if self._newest(place) <= row.order
        }

    def _newest(self, place: Place) -> int:
        known = self.find(*place)
        return max(-1 if known is None else known.order, self._writing.get(place, -1))

    def pending_rows(self, producer_id: int) -> list[KeptRow]:
        """The rows that remove the pending offsets of a transaction."""
        return [
            (pending_key(self.group, producer_id, *place), None)
            for place in self.pending.get(producer_id, ())
        ]

    def all_rows(self) -> list[KeptRow]:
        """The rows that remove everything."""
        places = {place for place, _committed in self.places()}
        rows = self.drop_rows(places.union(self._writing))
        for producer_id in self.pending:
            rows += self.pending_rows(producer_id)
        return rows
