"""Pages of mapped files that cannot be read: the interpreted kernel cannot look after maps."""

from __future__ import annotations


def watch_map(address: int, size: int) -> int:
    """-1: nobody looks after the map, and a page that cannot be read ends the process."""
    del address, size
    return -1


def forget_map(number: int) -> None:
    """A map goes."""
    del number


def map_failed(number: int) -> bool:
    """Whether a page of a map could not be read, and zeros lie there now."""
    del number
    return False


def bus_faults() -> int:
    """How many pages could not be read since the process began."""
    return 0
