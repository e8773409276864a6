"""A store in the memory of this process, for tests: what everybody opens by one name is one store.

Rules: as those of a bucket, with one lock for all.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from onelog.base.errors import NotFound
from onelog.objects.access import Buffer, NameTaken, StoredObject

_STORES: Final[dict[str, MemoryAccess]] = {}
_LOCK: Final = threading.Lock()


def memory_access(name: str) -> MemoryAccess:
    """The store of a name, made when it is asked for first."""
    with _LOCK:
        return _STORES.setdefault(name, MemoryAccess(name))


class MemoryAccess:
    """Names in a dict."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}

    def put(
        self, name: str, parts: Sequence[Buffer], size_bytes: int, *, is_new: bool = False
    ) -> int:
        """See `Access`."""
        data = b"".join(parts)
        assert len(data) == size_bytes
        with self._lock:
            if is_new and name in self._objects:
                raise NameTaken(name)
            self._objects[name] = (data, int(time.time() * 1000))
        return 1

    def get(self, name: str) -> bytes:
        """See `Access`."""
        try:
            return self._objects[name][0]
        except KeyError:
            raise NotFound(f"memory://{self._name}: {name} is missing") from None

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """See `Access`."""
        return self.get(name)[start : start + length]

    def get_suffix(self, name: str, length: int) -> bytes:
        """See `Access`."""
        data = self.get(name)
        return data[max(0, len(data) - length) :]

    def list(self, prefix: str, after: str) -> Iterator[StoredObject]:
        """See `Access`."""
        with self._lock:
            names = sorted(self._objects)
        for name in names[bisect.bisect_right(names, after) :]:
            data, modified_ms = self._objects.get(name, (None, 0))
            if name.startswith(prefix) and data is not None:
                yield StoredObject(name, len(data), modified_ms)

    def delete(self, names: Sequence[str]) -> int:
        """See `Access`."""
        with self._lock:
            for name in names:
                self._objects.pop(name, None)
        return 1
