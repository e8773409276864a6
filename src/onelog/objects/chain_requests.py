"""What the steps of a chain ask a store for, so that they are generators without IO.

Rules: a step yields a request, gets the answer, and returns its result at the end. `run_steps` runs
the steps against a store; the model of the chain runs them one by one, in any order.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from onelog.base import faults
from onelog.base.errors import NotFound
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
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as done:
                return cast("T", done.value)
            answer = _answer(store, request, pool)


def _answer(store: ObjectStore, request: ChainRequest, pool: ThreadPoolExecutor) -> Any:
    match request:
        case ListNames(prefix, limit):
            return [(row.name, row.size_bytes) for row in store.list(prefix, limit=limit)]
        case GetObjects(names):
            return list(pool.map(partial(_get, store), names))
        case CreateObject(name, data, point):
            faults.hit(point)
            try:
                store.create(name, [data])
            except Taken as taken:
                return taken.found
            return None
        case DeleteObjects(names):
            for at in range(0, len(names), DELETED_AT_ONCE):
                faults.hit("doom.delete")
                store.delete(names[at : at + DELETED_AT_ONCE])
            return None


def _get(store: ObjectStore, name: str) -> bytes | None:
    try:
        return store.get(name)
    except NotFound:
        return None
