"""The process that looks into a store of backups for the broker.

Rules: it gets one question on its standard input, and writes one answer to its standard output, a
line of JSON each. When its standard input ends, nobody waits for the answer any more: it ends. It
runs at low priority.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import BinaryIO

import msgspec

from onelog.backup.stored import StoredQuestion, answer
from onelog.base.errors import OnelogError, StorageError
from onelog.base.process import stand_back


class StoredLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the worker found, or why it could not."""

    answer: msgspec.Raw = msgspec.Raw()
    """As JSON."""
    error: str = ""
    """The class of the error."""
    message: str = ""


def main() -> int:
    """Answer one question; the exit code."""
    stand_back()
    source = sys.stdin.buffer
    question = msgspec.json.decode(source.readline(), type=StoredQuestion)
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    try:
        line = StoredLine(answer=msgspec.Raw(msgspec.json.encode(answer(question, _quiet))))
    except OnelogError as error:
        line = StoredLine(error=type(error).__name__, message=str(error))
    except OSError as error:
        line = StoredLine(error=StorageError.__name__, message=f"{question.url}: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()
    return 0


def _end_with(source: BinaryIO) -> None:
    source.read()
    os._exit(1)


def _quiet(_done: int, _total: int) -> None:
    """Nobody looks."""


if __name__ == "__main__":
    sys.exit(main())
