"""The parent's memory of what a worker acknowledged, and the check of what is there afterwards."""

from __future__ import annotations

import struct
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from tests.fault import worker
from tests.fault.worker import ROUND_SEQUENCES
from tests.support.forks import Fork
from tests.support.history import History, Promise

Place = tuple[str, int, int]
"""Stream, partition, offset."""
Held = dict[int, tuple[str, int]]
"""Offset → topic and sequence."""


def _text(topic: str, sequence: int) -> str:
    """What a record is called in the history."""
    return f"{topic}.{sequence}"


LOGS = ("fs", "os", "tr", "kv", "ko")
"""Streams that nothing leaves but by trim."""
PROMISES = {
    name: Promise(is_complete=name != "tr", is_once=True, wants=lambda text, n=name: text[:2] == n)
    for name in LOGS
}


class Worker:
    """A worker process and the thread that takes its frames."""

    def __init__(
        self, data: Path, number: int, seed: int, plan: str = "", *, at_open: bool = False
    ) -> None:
        self.frames: list[list[Any]] = []
        self._news = threading.Condition()
        self._ended = False
        self._errors = data.parent / f"worker.{number}.err"
        self._process = Fork(worker.run, data, number, seed, plan, at_open, errors=self._errors)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with self._process.stdout as pipe:
            while len(head := pipe.read(4)) == 4:
                body = pipe.read(struct.unpack("<I", head)[0])
                try:
                    frame = msgspec.msgpack.decode(body)
                except msgspec.DecodeError:
                    break  # killed in the middle of a frame: nobody was told
                with self._news:
                    self.frames.append(frame)
                    self._news.notify()
        with self._news:
            self._ended = True
            self._news.notify()

    def wait_for(self, kind: str, count: int = 1, timeout_s: float = 60) -> None:
        """Return when it said so many frames of a kind; fail when it ended or took too long."""

        def said() -> bool:
            return self._ended or self.count(kind) >= count

        with self._news:
            self._news.wait_for(said, timeout_s)
        if self.count(kind) < count:
            self.kill()
            raise AssertionError(f"no {count} {kind} in {timeout_s} s: {self.complaint()}")

    def kill(self) -> None:
        """kill -9, then everything that it had said."""
        self._process.kill()
        self.wait()

    def wait(self, timeout_s: float = 60) -> int:
        """The exit code, after everything that it had said was read."""
        try:
            code = self._process.wait(timeout_s)
        finally:
            self._process.kill()  # does nothing when it has ended
            self._process.wait()
            self._reader.join()
        return code

    def count(self, kind: str) -> int:
        return sum(frame[0] == kind for frame in self.frames)

    def complaint(self) -> str:
        return self._errors.read_text()[-4000:]


class Witness:
    """What the world outside was told, over all rounds."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, int], Held] = defaultdict(dict)
        self.seen: dict[tuple[str, int], Held] = defaultdict(dict)
        self.latest: dict[str, int] = {}
        """Topic → highest acknowledged sequence; `latest_before`: as the worker began."""
        self.latest_before: dict[str, int] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.settled: dict[str, set[Place]] = {"queue": set(), "session": set()}
        self.settling: dict[str, set[Place]] = {"queue": set(), "session": set()}
        """Settled by the consumer, whether or not the broker had time to say that it is kept."""
        self.trim_asked = 0
        self.trimmed = 0
        self.made: set[str] = set()
        self.unmaking: set[str] = set()
        self.unmade: set[str] = set()
        self.restored: dict[tuple[str, int], int] = {}
        self.history = History()

    def take(self, frames: list[list[Any]]) -> None:
        """Check and remember what one worker said, in its order."""
        for kind, *rest in frames:
            getattr(self, "_" + kind.replace("-", "_"))(*rest)
        self.history.broken()

    # What is there: told by the next worker, before it adds anything.

    def _holds(
        self, stream: str, partition: int, start: int, end: int, rows: list[list[Any]]
    ) -> None:
        name = (stream, partition)
        held = {offset: (topic, sequence) for offset, topic, sequence in rows}
        assert len(held) == len(rows), f"{name}: an offset is there twice"
        acknowledged = self.acknowledged[name]
        if stream == "kc":
            self._check_compacted(held)
        else:
            assert list(held) == list(range(start, end)), f"{name}: offsets are not dense"
            for known, what in (
                (acknowledged, "acknowledged"),
                (self.seen[name], "seen by readers"),
            ):
                lost = [at for at, row in known.items() if at >= start and held.get(at) != row]
                assert not lost, f"{name}: {what} records are lost or moved: {lost[:5]}"
            self._check_order(held, start, name)
        if stream == "tr":
            assert self.trimmed <= start <= self.trim_asked
        else:
            assert start == 0
        self.seen[name] = held
        if stream != "kc":  # compaction takes what has a successor
            for topic, sequence in held.values():
                self._see(stream, _text(topic, sequence))

    def _see(self, stream: str, text: str) -> None:
        """A reader of the log from its start has found a record, in this life or an earlier."""
        if text not in self.history.seen_by[stream]:
            self.history.seen(stream, text)

    def _check_order(self, held: Held, start: int, name: tuple[str, int]) -> None:
        """I5: per topic in order, none twice, none missing within a round."""
        last: dict[str, int] = {}
        for topic, sequence in held.values():
            before = last.get(topic)
            if before is None:
                whole = start > 0 or sequence % ROUND_SEQUENCES == 0
            else:
                whole = sequence == before + 1 or (
                    sequence > before and sequence % ROUND_SEQUENCES == 0
                )
            assert whole, f"{name}: {topic} has {sequence} after {before}"
            last[topic] = sequence

    def _check_compacted(self, held: Held) -> None:
        """Compaction keeps the latest of every key, and no offset moves."""
        name = ("kc", 0)
        for known in (self.acknowledged[name], self.seen[name]):
            moved = [at for at, row in held.items() if at in known and known[at] != row]
            assert not moved, f"{name}: records moved: {moved[:5]}"
        newest = dict(held.values())
        for topic, sequence in self.latest.items():
            if topic.startswith("kc/"):
                assert newest.get(topic, -1) >= sequence, f"{topic}: {sequence} is lost"

    def _ready(self, streams: list[str]) -> None:
        there = set(streams)
        assert self.made - self.unmaking <= there, "an acknowledged stream is lost"
        assert not self.unmade & there, "a deleted stream is back"
        self.latest_before = {k: v for k, v in self.latest.items() if k.startswith("kc/")}

    # Acknowledgements.

    def _attempt(self, topic: str, sequence: int) -> None:
        self.history.attempted(_text(topic, sequence), topic)

    def _published(
        self, stream: str, partition: int, offset: int, topic: str, sequence: int
    ) -> None:
        held = self.acknowledged[stream, partition]
        assert offset not in held, f"{stream}/{partition}: offset {offset} was given twice"
        held[offset] = (topic, sequence)
        assert self.latest.get(topic, -1) < sequence
        self.latest[topic] = sequence
        self.history.acknowledged(_text(topic, sequence))

    def _restored(self, rows: list[list[Any]]) -> None:
        self.restored = {(stream, partition): offset for stream, partition, offset in rows}
        for name, offset in self.committed.items():
            assert self.restored[name] >= offset, f"{name}: the reader fell back from {offset}"

    def _first_read(self, stream: str, partition: int, offset: int) -> None:
        committed = self.restored[stream, partition]
        assert offset == committed, f"{stream}/{partition}: read on at {offset}, not {committed}"

    def _committed(self, rows: list[list[Any]]) -> None:
        self.committed |= {(stream, partition): offset for stream, partition, offset in rows}

    def _delivered(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        place = (stream, partition, offset)
        assert place not in self.settled[cursor], f"{cursor}: {place} was settled and is back"

    def _settle(self, cursor: str, places: list[list[Any]]) -> None:
        self.settling[cursor] |= {(row[0], row[1], row[2]) for row in places}

    def _settled(self, cursor: str, places: list[list[Any]]) -> None:
        self.settled[cursor] |= {(row[0], row[1], row[2]) for row in places}

    def _table(self, rows: dict[str, int]) -> None:
        for topic, sequence in self.latest_before.items():
            assert rows.get(topic, -1) >= sequence, f"the table has {rows.get(topic)} of {topic}"

    def _trim(self, before: int) -> None:
        self.trim_asked = max(self.trim_asked, before)

    def _trimmed(self, before: int) -> None:
        self.trimmed = max(self.trimmed, before)

    def _made(self, name: str) -> None:
        self.made.add(name)

    def _unmake(self, name: str) -> None:
        self.unmaking.add(name)

    def _unmade(self, name: str) -> None:
        self.unmade.add(name)
