"""What sessions and queues of a cluster gave to their clients, and whether that may be.

- C3, C7, C10 what comes was sent, not refused, and not of a transaction that is open or given up;
- C4 the first occurrences of what one connection sent come in the order of its sending;
- C5 what came is in the log at the end;
- C6 what comes with QoS 2 comes once; with QoS 1 it comes once to a connection;
- C9 a message whose acknowledgement was answered does not come again, and settles once; all that
  was answered after a queue was bound is settled at last, and what was rejected is a dead letter:
  its settlement is the letter's, and not the answer's, so it may come again;
- C11 a kept session gets all of QoS 1 and 2 that was answered after it subscribed.

A line says that something has begun (SUBACK, Queue.BindOk), was taken, or was settled
(Tx.CommitOk). "Once" is as often as readers of committed records find a value in the log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.support.cluster_lines import Line, Result

EXACTLY = 2
DEAD = "dead"
"""The queue of what was rejected."""


class Taken:
    """All of it."""

    def __init__(
        self, lines: Sequence[Line], sent: Mapping[str, Line], outcome: Callable[[Line], Result]
    ) -> None:
        self._sent, self._outcome = sent, outcome
        self._begun = [line for line in lines if line.call == "begun"]
        self._by_group: defaultdict[str, list[Line]] = defaultdict(list)
        self._settled: defaultdict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in lines:
            if line.call == "taken":
                self._by_group[line.group].append(line)
            elif line.call == "settled" and line.result == "ok":
                self._settled[line.group, line.value].append(line)
        self._held: Counter[str] = Counter()
        finals = [line for line in lines if line.call == "final" and line.committed]
        for final in finals:
            self._held |= Counter(value for _offset, value in final.rows)
        self._is_read = bool(finals)

    def owed(self, begun: Line) -> set[str]:
        """What a session or queue has to give."""
        return {
            line.value
            for line in self._sent.values()
            if line.stream == begun.stream
            and line.start > begun.end
            and line.qos >= begun.qos
            and self._outcome(line) == "ok"
        }

    def findings(self) -> Iterator[str]:
        """Every broken promise, in words."""
        for line in self._begun:
            yield from self._check_owed(line)
        for group, lines in self._by_group.items():
            yield from self._check_phantoms(group, lines)
            if group != DEAD:  # letters come in the order of their rejections
                yield from self._check_order(group, lines)
            yield from self._check_once(group, lines)
            yield from self._check_settled(group, lines)
        yield from self._check_letters()

    def _check_owed(self, begun: Line) -> Iterator[str]:
        is_session = begun.qos > 0
        if is_session:
            came = {line.value for line in self._by_group[begun.group]}
        else:
            came = {value for group, value in self._settled if group == begun.group}
        for value in sorted(self.owed(begun) - came):
            yield (
                f"C11: the session {begun.group} never got {value}, which was answered"
                if is_session
                else f"C9: {value}, which was answered, was never settled in {begun.group}"
            )

    def _check_phantoms(self, group: str, lines: list[Line]) -> Iterator[str]:
        for line in lines:
            sent = self._sent.get(line.value)
            if sent is None:
                yield f"C3: {group} gave {line.value}, which nobody sent"
            elif sent.start > line.end:
                yield f"C3: {group} gave {line.value} before it was sent"
            elif sent.is_refused:
                yield f"C7: {group} gave {line.value}, which was refused"
            elif sent.txn and self._outcome(sent) == "refused":
                yield f"C10: {group} gave {line.value} of {sent.txn}, which was not committed"
            elif self._is_read and line.value not in self._held:
                yield f"C5: {group} gave {line.value}, which is not there at the end"

    def _check_order(self, group: str, lines: list[Line]) -> Iterator[str]:
        last: dict[str, Line] = {}
        seen: set[str] = set()
        for line in lines:
            sent = self._sent.get(line.value)
            if sent is None or line.value in seen:
                continue
            seen.add(line.value)
            before = last.get(sent.who)
            if before is not None and before.start > sent.start:
                yield f"C4: {group} gave {line.value} after {before.value}, which was sent later"
            last[sent.who] = sent

    def _check_once(self, group: str, lines: list[Line]) -> Iterator[str]:
        exact = Counter(line.value for line in lines if line.qos == EXACTLY)
        for value, count in exact.items():
            if count > self._most(value):
                yield f"C6: {group} gave {value} {count} times with QoS 2"
        once = Counter((line.who, line.value) for line in lines if line.qos == 1)
        for (who, value), count in once.items():
            if count > self._most(value):
                yield f"C6: {group} gave {value} {count} times to {who}"

    def _check_settled(self, group: str, lines: list[Line]) -> Iterator[str]:
        acked = {
            value: [line for line in settled if line.commit]
            for (queue, value), settled in self._settled.items()
            if queue == group
        }
        for line in lines:
            before = [ack for ack in acked.get(line.value, ()) if ack.end < line.start]
            if len(before) >= self._most(line.value):
                yield f"C9: {group} gave {line.value} again, which was settled"
        for value, acks in acked.items():
            if len(acks) > self._most(value):
                yield f"C9: {value} was settled {len(acks)} times in {group}"

    def _check_letters(self) -> Iterator[str]:
        letters = {line.value for line in self._by_group[DEAD]}
        for (group, value), settled in self._settled.items():
            if value not in letters and any(not line.commit for line in settled):
                yield f"C9: {value} was rejected in {group}, and is no dead letter"

    def _most(self, value: str) -> int:
        """How often a value may come."""
        return max(1, self._held[value])
