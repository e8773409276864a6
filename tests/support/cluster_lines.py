"""One call of a client of a cluster, as histories have it (`tests/support/cluster_history.py`)."""

from __future__ import annotations

from typing import Literal

import msgspec

Result = Literal["ok", "refused", "unknown"]
Place = tuple[str, int]


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One call; which fields it has depends on what it is."""

    call: Literal[
        "publish", "end", "commit", "position", "read", "final", "healed",
        "begun", "taken", "settled",
    ]  # fmt: skip
    who: str = ""
    """A worker on one connection: what follows a dot says which of its connections."""
    start: float = 0.0
    end: float = 0.0
    result: Result = "ok"
    stream: str = ""
    partition: int = -1
    offset: int = -1
    """Of a record; of a position: the next one. -1: the answer does not say."""
    value: str = ""
    once: bool = False
    """A publish of an idempotent producer."""
    qos: int = 0
    """Of a publish: with which MQTT's subscribers get it. Of what was taken: with which it came.
    Of a beginning: from which on everything is owed."""
    again_s: float = 0.0
    """Its client may send it again by itself, and waits so long at least before each attempt; it
    tells of the last one only. 0: it never does."""
    txn: str = ""
    commit: bool = True
    """How a transaction ended; of a settlement: not rejected."""
    group: str = ""
    """Of consumers; of what begun, was taken and settled: the session or queue."""
    node: int = -1
    committed: bool = True
    """A read shows committed records only."""
    rows: list[tuple[int, str]] = []
    """A final read: everything from `start_offset` on."""
    start_offset: int = 0

    @property
    def attempts(self) -> int:
        """How often it may have been sent before its client told of it."""
        return 1 + int((self.end - self.start) / self.again_s) if self.again_s else 1

    @property
    def is_refused(self) -> bool:
        """Whether it was never written: what a client says of its last attempt leaves open what
        became of those before."""
        return self.result == "refused" and self.attempts == 1

    @property
    def place(self) -> Place:
        """Where it was."""
        return self.stream, self.partition
