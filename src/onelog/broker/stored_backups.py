"""Looks into stores of backups for operators: list, check, prune.

Rules: each look is a process of its own (`backup/stored_worker.py`), because it reads and hashes
everything that backups hold. `LOOKS_MAX` run at once. They end when the broker stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, TypeVar

import msgspec

from onelog.backup.stored import StoredAnswer, StoredQuestion, check_question
from onelog.backup.stored_worker import StoredLine
from onelog.base.commands import raise_error
from onelog.base.errors import Closed, Conflict, StorageError, Unavailable
from onelog.broker.helper_process import begin_helper

LOOKS_MAX: Final = 2
_MODULE: Final = "onelog.backup.stored_worker"
A = TypeVar("A", bound=StoredAnswer)


class StoreLooks:
    """The looks that are under way."""

    def __init__(self) -> None:
        self._count = 0
        self._workers: set[asyncio.subprocess.Process] = set()
        self._closed = False

    async def ask(self, question: StoredQuestion, kind: type[A]) -> A:
        """The answer, which is of this kind. Raises InvalidRequest, NotFound, Conflict, …."""
        if self._closed:
            raise Closed("the broker stops")
        check_question(question)
        if self._count >= LOOKS_MAX:
            raise Conflict(
                f"{self._count} looks into stores of backups are under way: wait for one of them"
            )
        self._count += 1
        try:
            line = await self._look(question)
        finally:
            self._count -= 1
        if line.error == StorageError.__name__:  # of that store, and none of this broker
            raise Conflict(line.message)
        raise_error(line.error, line.message)
        return msgspec.json.decode(line.answer, type=kind)

    async def _look(self, question: StoredQuestion) -> StoredLine:
        worker = await begin_helper(_MODULE, asyncio.subprocess.DEVNULL)
        self._workers.add(worker)
        try:
            if self._closed:
                raise Closed("the broker stops")
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(msgspec.json.encode(question) + b"\n")
            with contextlib.suppress(ConnectionError):  # it ended: there is no line below
                await worker.stdin.drain()
            said = await worker.stdout.read()
        finally:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()
            self._workers.discard(worker)
        if not said:
            raise Unavailable("the process that looks into the store ended: ask again")
        return msgspec.json.decode(said, type=StoredLine)

    def close(self) -> None:
        """End every look. Idempotent."""
        self._closed = True
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
