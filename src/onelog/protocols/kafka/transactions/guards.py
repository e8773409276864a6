"""Guards: whether a transaction's end came while another node was asked about the transaction.

Rules: a guard is taken before the question, and looked at in the step of the loop that writes. The
end of the producer's transaction at this place breaks it, and so does a new leader of the place.
So no write that was allowed before the end is made after it (KIP-890).
"""

from __future__ import annotations

from collections.abc import Hashable


class Guard:
    """One question under way."""

    __slots__ = ("epoch", "is_broken", "place")

    def __init__(self, place: Hashable, epoch: int) -> None:
        self.place = place
        self.epoch = epoch
        """The epoch of this node as the leader of the place."""
        self.is_broken = False


class Guards:
    """The guards of this node, by the place and the producer that they watch."""

    def __init__(self) -> None:
        self._held: dict[Hashable, list[Guard]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, place: Hashable, epoch: int) -> Guard:
        """Watch a place from now on. The caller gives the guard back."""
        guard = Guard(place, epoch)
        self._held.setdefault(place, []).append(guard)
        return guard

    def give_back(self, guard: Guard) -> None:
        """It is not needed any more."""
        held = self._held[guard.place]
        held.remove(guard)
        if not held:
            del self._held[guard.place]

    def ended(self, place: Hashable) -> None:
        """The producer's transaction has ended at a place."""
        for guard in self._held.get(place, ()):
            guard.is_broken = True
