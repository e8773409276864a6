"""What the steps of a chain ask a store for, so that they are generators without IO.

Rules: a step yields a request, gets the answer, and returns its result at the end. `run_steps` runs
the steps against a store; the model of the chain runs them one by one, in any order.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar, cast

from onelog.base import faults
from onelog.base.errors import ColdUnavailable, NotFound
from onelog.objects.access import Buffer
from onelog.objects.store import ObjectStore, Taken

READERS: Final = 4
"""Threads that read objects of a chain."""
DELETED_AT_ONCE: Final = 500

T = TypeVar("T")


class ListNames(NamedTuple):
    """Asks for names below a folder, ascending: a list of (name, bytes)."""

    prefix: str
    limit: int | None


class GetObjects(NamedTuple):
    """Asks for objects: their bytes, or None for one that is not there."""

    names: tuple[str, ...]
    ahead: tuple[str, ...] = ()
    """Those that will be asked for next."""


class CreateObject(NamedTuple):
    """Asks to create an object: None if it is done, or the bytes that are there."""

    name: str
    data: bytes
    point: str
    """The fault point of this step."""


class DeleteObjects(NamedTuple):
    """Asks to delete objects; one that is not there is no error."""

    names: tuple[str, ...]


ChainRequest = ListNames | GetObjects | CreateObject | DeleteObjects
Steps = Generator[ChainRequest, Any, T]


def run_steps(steps: Steps[T], store: ObjectStore) -> T:
    """Run steps against a store. It blocks. Raises what the steps raise, and ColdUnavailable."""
    answer: Any = None
    with ThreadPoolExecutor(READERS, "chain") as pool:
        reads = _Reads(store, pool)
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as done:
                return cast("T", done.value)
            if isinstance(request, GetObjects):
                answer = reads.get(request)
            else:
                reads.forget()
                answer = _answer(store, request)


class _Reads:
    """Objects that are read, and those that are read ahead while the steps work on others."""

    def __init__(self, store: ObjectStore, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._pool = pool
        self._coming: dict[str, Future[Buffer | None]] = {}

    def get(self, request: GetObjects) -> list[Buffer | None]:
        """The objects of a request."""
        asked = [
            self._coming.pop(name) if name in self._coming else self._ask(name)
            for name in request.names
        ]
        self._coming.update((name, self._ask(name)) for name in request.ahead)
        return [future.result() for future in asked]

    def _ask(self, name: str) -> Future[Buffer | None]:
        return self._pool.submit(_get, self._store, name)

    def forget(self) -> None:
        """Something else was asked for: what was read ahead may be old by now."""
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()


def _answer(store: ObjectStore, request: ChainRequest) -> Any:
    match request:
        case ListNames(prefix, limit):
            return [(row.name, row.size_bytes) for row in store.list(prefix, limit=limit)]
        case CreateObject(name, data, point):
            _pass(point, name)
            try:
                store.create(name, [data])
            except Taken as taken:
                return taken.found
            return None
        case DeleteObjects(names):
            for at in range(0, len(names), DELETED_AT_ONCE):
                _pass("doom.delete", names[at])
                store.delete(names[at : at + DELETED_AT_ONCE])
            return None


def _pass(point: str, name: str) -> None:
    """A fault point that fails as a store does."""
    try:
        faults.hit(point)
    except OSError as error:
        raise ColdUnavailable(f"{name} could not be reached: {error}") from error


def _get(store: ObjectStore, name: str) -> Buffer | None:
    try:
        return store.get_view(name)
    except NotFound:
        return None
