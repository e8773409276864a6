"""What clients of a cluster did and were told, one JSON line per call, and whether that may be.

Workers write their calls into files of their own (`Recorder`), also from other processes. At the
end somebody reads all partitions on all nodes. `findings` then names each broken promise:

- C1 an answered publish is in its partition, at the offset of the answer;
- C2 two reads of one offset, on any nodes, give the same;
- C3 what is read was sent; C7 what was refused is never read, and a refused commit moves nothing;
- C4 the first occurrences of what one connection sent lie in the order of its sending;
- C5 what anybody saw is there at the end; on one connection offsets do not go back;
- C6 idempotent and transactional records occur once, a transaction occurs whole or not at all, and
  other records occur twice only if their outcome was unknown;
- C9, C11 what sessions and queues owe their clients (`tests/support/cluster_taken.py`);
- C10 readers of committed records see no open and no aborted one;
- C12 after each fault every worker that goes on has an answer within `PROGRESS_S`.

Rules: a value is attempted by one call and names it. A call without an answer is `unknown`. Clocks
are the machine's monotonic one, so all workers run on one machine.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.support.cluster_lines import Line, Place, Result
from tests.support.cluster_taken import Taken

PROGRESS_S = 10.0
ANSWERED = frozenset({"publish", "commit", "end", "settled"})


class Recorder:
    """The calls of one worker, or of several threads, in one file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def note(self, line: Line) -> None:
        """Write a call that has ended."""
        with self._lock:
            self._file.write(msgspec.json.encode(line) + b"\n")

    def healed(self) -> None:
        """A fault is over, and no other one is there."""
        now = time.monotonic()
        self.note(Line(call="healed", start=now, end=now))

    def close(self) -> None:
        self._file.close()


def load(paths: Iterable[Path]) -> list[Line]:
    """All calls, by their start. A line that a killed worker did not end is no call."""
    decoder = msgspec.json.Decoder(Line)
    found = []
    for path in paths:
        whole, _, _torn = path.read_bytes().rpartition(b"\n")
        found += [decoder.decode(row) for row in whole.split(b"\n") if row]
    return sorted(found, key=lambda line: line.start)


class ClusterHistory:
    """All calls of a run."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list(lines)
        by = defaultdict(list)
        for line in self.lines:
            by[line.call].append(line)
        self._finals: list[Line] = by["final"]
        self._reads: list[Line] = by["read"]
        self._commits: list[Line] = by["commit"]
        self._positions: list[Line] = by["position"]
        self._publishes = by["publish"]
        self._sent = {line.value: line for line in self._publishes}
        self._ends = {line.txn: line for line in by["end"]}
        self._healed = sorted(line.end for line in by["healed"])
        self.taken = Taken(self.lines, self._sent, self.outcome)
        """What sessions and queues gave to their clients."""

    def prove(self) -> None:
        """Fail with what was broken."""
        found = list(self.findings())
        assert not found, "\n".join(found[:20])

    def findings(self) -> Iterator[str]:
        """Every broken promise, in words."""
        yield from self._check_calls()
        yield from self._check_loss()
        yield from self._check_one_history()
        yield from self._check_phantoms()
        yield from self._check_order()
        yield from self._check_seen()
        yield from self._check_once()
        yield from self._check_transactions()
        yield from self._check_positions()
        yield from self.taken.findings()
        yield from self._check_progress()

    def counts(self) -> Counter[str]:
        """How many calls of each kind had each result."""
        return Counter(f"{line.call} {line.result}" for line in self.lines)

    # -- what is known

    def _shown(self, *, finals: bool = True) -> Iterator[tuple[Line, int, str]]:
        """Each read with each record that it showed."""
        for line in self._reads:
            yield line, line.offset, line.value
        for line in self._finals if finals else ():
            for offset, value in line.rows:
                yield line, offset, value

    def outcome(self, line: Line) -> Result:
        """What its sender knows of a record: of a transaction, whether that was committed."""
        if line.result == "refused" or not line.txn:
            return line.result
        end = self._ends.get(line.txn)
        if end is None:
            return "refused"  # nobody asked for a commit: at last the broker aborts it
        if end.result == "ok":
            return line.result if end.commit else "refused"
        return "unknown" if end.commit else "refused"

    # -- the rules

    def _check_calls(self) -> Iterator[str]:
        doubled = Counter(line.value for line in self._publishes)
        yield from (f"{value} was attempted {n} times" for value, n in doubled.items() if n > 1)
        if not self._finals:
            yield "nobody read everything at the end"

    def _check_loss(self) -> Iterator[str]:
        for final in self._finals:
            held = dict(final.rows)
            values = set(held.values())
            for line in self._publishes:
                if line.place != final.place or self.outcome(line) != "ok":
                    continue
                if line.offset < 0:
                    if line.value not in values and not final.start_offset:
                        yield f"C1: node {final.node} lacks {line.value}, which was answered"
                elif line.offset >= final.start_offset and held.get(line.offset) != line.value:
                    yield (
                        f"C1: node {final.node} has {held.get(line.offset)} at"
                        f" {_at(line)}, where {line.value} was answered"
                    )

    def _check_one_history(self) -> Iterator[str]:
        known: dict[tuple[Place, int], tuple[str, Line]] = {}
        for line, offset, value in self._shown():
            first, who = known.setdefault((line.place, offset), (value, line))
            if first != value:
                yield (
                    f"C2: {_reader(line)} has {value} at {line.stream}/{line.partition}"
                    f" {offset}, {_reader(who)} has {first}"
                )

    def _check_phantoms(self) -> Iterator[str]:
        for line, offset, value in self._shown():
            sent = self._sent.get(value)
            if sent is None or sent.place != line.place:
                yield f"C3: {_reader(line)} has {value} at {offset}, which nobody sent there"
            elif line.call == "read" and sent.start > line.end:
                yield f"C3: {_reader(line)} had {value} before it was sent"
            elif sent.is_refused:
                yield f"C7: {_reader(line)} has {value}, which was refused"

    def _check_order(self) -> Iterator[str]:
        for final in self._finals:
            last: dict[str, Line] = {}
            seen: set[str] = set()
            for _offset, value in final.rows:
                line = self._sent.get(value)
                if line is None or value in seen:
                    continue
                seen.add(value)
                before = last.get(line.who)
                if before is not None and before.start > line.start:
                    yield f"C4: {line.value} of {line.who} lies after {before.value}, sent later"
                last[line.who] = line

    def _check_seen(self) -> Iterator[str]:
        finals = [(line, dict(line.rows)) for line in self._finals]
        last: dict[tuple[str, Place], int] = {}
        for line in self._reads:
            before = last.get((line.who, line.place), -1)
            if line.offset <= before:
                yield f"C5: {line.who} read {_at(line)} after {before}"
            last[line.who, line.place] = line.offset
            for final, held in finals:
                is_there = line.offset < final.start_offset or line.offset in held
                if final.place == line.place and not is_there:
                    yield f"C5: {line.who} read {_at(line)}, and node {final.node} lacks it"

    def _check_once(self) -> Iterator[str]:
        for final in self._finals:
            for value, count in Counter(value for _offset, value in final.rows).items():
                line = self._sent.get(value)
                if count > 1 and line is not None:
                    if line.once or line.txn:
                        yield f"C6: {value} was sent exactly once, and is there {count} times"
                    elif line.result != "unknown" and count > line.attempts:
                        yield (
                            f"C6: {value} was answered, and is there {count} times; it was sent"
                            f" {line.attempts} times at most"
                        )

    def _check_transactions(self) -> Iterator[str]:
        for line, _offset, value in self._shown():
            sent = self._sent.get(value)
            if not line.committed or sent is None or not sent.txn:
                continue
            end = self._ends.get(sent.txn)
            if self.outcome(sent) == "refused":
                yield f"C10: {_reader(line)} has {value} of {sent.txn}, which was not committed"
            elif line.call == "read" and end is not None and end.start > line.end:
                yield f"C10: {_reader(line)} had {value} before {sent.txn} was committed"
        yield from self._check_whole()

    def _check_whole(self) -> Iterator[str]:
        """A transaction of unknown outcome is there whole, or not at all."""
        held: defaultdict[Place, set[str]] = defaultdict(set)
        for final in self._finals:
            if final.committed:
                held[final.place].update(value for _offset, value in final.rows)
        parts = defaultdict(list)
        for line in self._publishes:
            if line.txn and line.result == "ok" and line.place in held:
                parts[line.txn].append(line.value in held[line.place])
        for txn, there in parts.items():
            if any(there) and not all(there):
                yield f"C6: of {txn} {sum(there)} of {len(there)} records are there"

    def _check_positions(self) -> Iterator[str]:
        """A committed position is a register: a look shows the last write, or one under way."""
        for look in self._positions:
            mine = [
                line
                for line in self._commits
                if (line.group, line.place) == (look.group, look.place) and line.start < look.end
            ]
            may_be = {line.offset for line in mine if line.result != "refused"}
            old = [line for line in mine if line.result == "ok" and line.end < look.start]
            if look.offset < 0:
                if old:
                    yield f"C1: {look.group} lost its position in {look.stream}/{look.partition}"
                continue
            if look.offset not in may_be:
                yield f"C7: {look.group} is at {_at(look)}, which nobody committed"
                continue
            last = max((line.start for line in old), default=0.0)
            fresh = any(
                line.offset == look.offset and (line.result == "unknown" or line.end >= last)
                for line in mine
                if line.result != "refused"
            )
            if not fresh:
                yield f"C5: {look.group} went back to {_at(look)}"

    def _check_progress(self) -> Iterator[str]:
        """After each fault, until the next time that one is over."""
        calls = [
            line for line in self.lines if line.call in ("publish", "commit", "end", "settled")
        ]
        for healed, following in itertools.pairwise([*self._healed, math.inf]):
            until = healed + PROGRESS_S
            window = [line for line in calls if healed < line.end <= following]
            tried: dict[str, bool] = {}
            for line in window:
                fits = line.result == "ok" and line.end <= until
                worker = line.who.partition(".")[0]
                tried[worker] = tried.get(worker, False) or fits
            if max((line.end for line in window), default=0.0) >= until:
                yield from (
                    f"C12: no call of {who} succeeded within {PROGRESS_S:.0f} s after a fault"
                    for who, done in tried.items()
                    if not done
                )


def _at(line: Line) -> str:
    return f"{line.stream}/{line.partition} {line.offset}"


def _reader(line: Line) -> str:
    return f"node {line.node} at the end" if line.call == "final" else f"reader {line.who}"
