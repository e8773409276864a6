"""The offsets of one group: committed ones, and those that wait for the end of a transaction.

Rules: what is not durable yet is not seen. A pending offset is not seen either, but readers who ask
for stable offsets are told that there is one. Of a commit and the end of a transaction the one that
was asked for later counts, whichever ends later.
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
    """What a group has committed."""

    __slots__ = ("_writing", "committed", "count", "group", "pending")

    def __init__(self, group: str) -> None:
        self.group = group
        self.committed: dict[str, dict[int, GroupOffset]] = {}
        """Topic → partition → where the group stands."""
        self.pending: dict[int, dict[Place, GroupOffset]] = {}
        """Producer id → what its open transaction will commit."""
        self.count = 0
        """Committed and pending ones."""
        self._writing: dict[Place, int] = {}
        """The order of commits on their way to the disk."""

    def __bool__(self) -> bool:
        return self.count > 0 or bool(self._writing)

    # -- looking

    @property
    def load(self) -> int:
        """What it holds, with what is on its way to the disk."""
        return self.count + len(self._writing)

    def find(self, topic: str, partition: int) -> GroupOffset | None:
        """Where the group stands in a partition."""
        partitions = self.committed.get(topic)
        return None if partitions is None else partitions.get(partition)

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Whether an open transaction may move the group there."""
        place = (topic, partition)
        return any(place in staged for staged in self.pending.values())

    def places(self) -> Iterator[tuple[Place, GroupOffset]]:
        """Every committed offset."""
        for topic, partitions in self.committed.items():
            for partition, committed in partitions.items():
                yield (topic, partition), committed

    def places_of(self, topic: str) -> list[Place]:
        """Where the group stands in a topic, with what is on its way to the disk."""
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
        """Note where the group stands."""
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
        """Note what an open transaction will commit; the rows that keep it."""
        staged = self.pending.setdefault(producer_id, {})
        self.count += len(rows.keys() - staged.keys())
        staged.update(rows)
        return [
            (pending_key(self.group, producer_id, *place), encode_committed(committed))
            for place, committed in rows.items()
        ]

    def unstage(self, producer_id: int, rows: Mapping[Place, GroupOffset]) -> None:
        """Forget what a transaction was to commit, as far as it is still this."""
        staged = self.pending.get(producer_id, {})
        for place, committed in rows.items():
            if staged.get(place) is committed:
                del staged[place]
                self.count -= 1
        if not staged:
            self.pending.pop(producer_id, None)

    def outcome(self, producer_id: int, *, committed: bool) -> dict[Place, GroupOffset]:
        """What a transaction's end moves: all it staged, without what was committed since."""
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
        """The rows that remove what a transaction staged."""
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
