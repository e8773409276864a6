"""What clients of a broker did and were told, and the proof that it kept its promises.

Clients log as they go: a message was attempted, acknowledged, refused; a view saw it, settled it.
`History.findings` then names every broken promise:

- loss: an acknowledged message that a complete view never saw;
- phantom: a message that was seen, but never attempted or refused for sure;
- order: a view saw a lane's messages first in another order than they were attempted in (I5);
- twice: a message came again where it may not: it had been settled, or nothing had happened that
  lets it come again, or it did not say that it comes again;
- settled twice: two consumers of one view were both told that a message is theirs.

Rules: a message's text is its name and is attempted once. An attempt without an answer may be there
or not. What counts is the order in which the log was written: a client logs an attempt before it
sends and an answer after it came. A crash is logged when it is over: no client of the old life logs
after it. The log is a plain list, so clients of many threads may share it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Deed(StrEnum):
    """What can happen."""

    ATTEMPTED = "attempted"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    SEEN = "seen"
    SETTLING = "settling"
    SETTLED = "settled"
    RETURNED = "returned"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log."""

    deed: Deed
    text: str = ""
    who: str = ""
    """The lane of an attempt, the view of the rest."""
    at_s: float = 0.0
    marked: bool = False
    """The message said that it comes again."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What a view was promised."""

    is_complete: bool = True
    """Sees every acknowledged message."""
    is_ordered: bool = True
    """Sees each lane in order."""
    is_once: bool = False
    """Sees no message twice, whatever happens."""
    is_marked: bool = False
    """What comes again says so."""
    kept_after_s: float | None = None
    """A settlement has no answer: it holds when it is so much older than a crash."""
    wants: Callable[[str], bool] = lambda _text: True
    """Which messages it asked for."""


@dataclass(slots=True)
class _Sight:
    """A message as one view knows it."""

    seen: int = 0
    life: int = 0
    """In which of the broker's lives it was seen last."""
    settled: bool = False
    settling_s: float | None = None
    may_return: bool = False


@dataclass(slots=True)
class History:
    """The log, and its judge."""

    events: list[Event] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    """What was acknowledged so far."""
    seen_by: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """What each view saw so far."""

    # -- what clients say

    def attempted(self, text: str, lane: str = "") -> None:
        """Before a message is sent; messages of one lane are sent one after the other."""
        self._note(Deed.ATTEMPTED, text, lane)

    def acknowledged(self, text: str) -> None:
        """After the broker's answer that it has the message."""
        self._note(Deed.ACKNOWLEDGED, text)
        self.known.add(text)

    def refused(self, text: str) -> None:
        """After the broker's answer that it does not have the message."""
        self._note(Deed.REFUSED, text)

    def seen(self, view: str, text: str, *, marked: bool = False) -> None:
        """A view got a message."""
        self._note(Deed.SEEN, text, view, marked=marked)
        self.seen_by[view].add(text)

    def settling(self, view: str, text: str) -> None:
        """Before a view says that it is done with a message."""
        self._note(Deed.SETTLING, text, view)

    def settled(self, view: str, text: str) -> None:
        """After the broker's answer to that, where the protocol has one."""
        self._note(Deed.SETTLED, text, view)

    def returned(self, view: str, text: str) -> None:
        """Before a view gives a message back unsettled: it may come again."""
        self._note(Deed.RETURNED, text, view)

    def broken(self, view: str = "", at_s: float | None = None) -> None:
        """The broker died (then all views begin a new life), or a view lost its connection."""
        at_s = time.monotonic() if at_s is None else at_s
        self.events.append(Event(Deed.BROKEN, "", view, at_s))

    def _note(self, deed: Deed, text: str, who: str = "", *, marked: bool = False) -> None:
        self.events.append(Event(deed, text, who, time.monotonic(), marked))

    # -- what is known of it

    def count(self, deed: Deed, who: str | None = None) -> int:
        """How often something happened."""
        return sum(e.deed is deed and who in (None, e.who) for e in tuple(self.events))

    def lacking(self, views: Mapping[str, Promise]) -> dict[str, set[str]]:
        """Acknowledged messages that complete views have not seen yet."""
        return {
            name: {text for text in self.known - self.seen_by[name] if promise.wants(text)}
            for name, promise in views.items()
            if promise.is_complete
        }

    # -- the proof

    def findings(self, views: Mapping[str, Promise]) -> list[str]:
        """Every broken promise, in words; none when all were kept."""
        found = self._check_writers()
        found += [
            f"loss: {name} lacks {len(texts)} acknowledged messages, {min(texts)} for one"
            for name, texts in self.lacking(views).items()
            if texts
        ]
        for name, promise in views.items():
            found += self._check_phantoms(name) + self._check_order(name, promise)
            found += self._check_repeats(name, promise)
        strangers = {e.who for e in self.events if e.deed is Deed.SEEN} - views.keys()
        return found + [f"nothing was promised to the view {name}" for name in sorted(strangers)]

    def prove(self, views: Mapping[str, Promise]) -> None:
        """Fail with what was broken."""
        found = self.findings(views)
        assert not found, "\n".join(found[:20])

    def _check_writers(self) -> list[str]:
        attempts = Counter(e.text for e in self.events if e.deed is Deed.ATTEMPTED)
        answered = Counter(
            e.text for e in self.events if e.deed in (Deed.ACKNOWLEDGED, Deed.REFUSED)
        )
        return [
            *(f"{text} was attempted {n} times" for text, n in attempts.items() if n > 1),
            *(f"{text} was answered {n} times" for text, n in answered.items() if n > 1),
            *(f"phantom: {text} was answered, not sent" for text in answered.keys() - attempts),
        ]

    def _check_phantoms(self, view: str) -> list[str]:
        """In the order of the log: what was seen had been attempted before."""
        known: set[str] = set()
        refused = {event.text for event in self.events if event.deed is Deed.REFUSED}
        found = []
        for event in self.events:
            if event.deed is Deed.ATTEMPTED:
                known.add(event.text)
            elif event.deed is Deed.SEEN and event.who == view:
                if event.text not in known:
                    found.append(f"phantom: {view} saw {event.text}, which nobody had sent")
                elif event.text in refused:
                    found.append(f"phantom: {view} saw {event.text}, which was refused")
        return found

    def _check_order(self, view: str, promise: Promise) -> list[str]:
        if not promise.is_ordered:
            return []
        lanes: dict[str, tuple[str, int]] = {}
        for number, event in enumerate(self.events):
            if event.deed is Deed.ATTEMPTED:
                lanes.setdefault(event.text, (event.who, number))
        last: dict[str, tuple[int, str]] = {}
        first_time: set[str] = set()
        found = []
        for event in self.events:
            fits = event.deed is Deed.SEEN and event.who == view and event.text in lanes
            if not fits or event.text in first_time:
                continue
            first_time.add(event.text)
            lane, number = lanes[event.text]
            before = last.get(lane)
            if before is not None and number < before[0]:
                found.append(f"order: {view} saw {event.text} after {before[1]} of lane {lane!r}")
            else:
                last[lane] = (number, event.text)
        return found

    def _check_repeats(self, view: str, promise: Promise) -> list[str]:
        sights: dict[str, _Sight] = defaultdict(_Sight)
        life = 0
        found = []
        for event in self.events:
            if event.deed is Deed.BROKEN and event.who in ("", view):
                life += 1
                _keep_old(sights, promise, event.at_s)
                continue
            if event.who != view or event.deed in (Deed.ATTEMPTED, Deed.BROKEN):
                continue
            sight = sights[event.text]
            match event.deed:
                case Deed.SEEN:
                    why = _why_not(sight, promise, event, life)
                    if why:
                        found.append(f"twice: {view} saw {event.text} again: {why}")
                    sight.seen, sight.life, sight.may_return = sight.seen + 1, life, False
                case Deed.SETTLING:
                    sight.settling_s = event.at_s
                case Deed.SETTLED:
                    if sight.settled:
                        found.append(f"settled twice: {event.text} in {view}")
                    sight.settled = True
                case Deed.RETURNED:
                    sight.may_return = True
                case _:
                    pass
        return found


def _keep_old(sights: Mapping[str, _Sight], promise: Promise, crash_s: float) -> None:
    """At a crash: what was settled long before without an answer counts as settled."""
    if promise.kept_after_s is not None:
        for sight in sights.values():
            if sight.settling_s is not None and sight.settling_s < crash_s - promise.kept_after_s:
                sight.settled = True


def _why_not(sight: _Sight, promise: Promise, event: Event, life: int) -> str:
    """Why a view may not get a message now; empty when it may."""
    if sight.seen == 0:
        return ""
    if promise.is_once:
        return "it was promised once"
    if sight.settled:
        return "it was settled"
    if sight.life == life and not sight.may_return:
        return "nothing happened that lets it come again"
    if promise.is_marked and not event.marked:
        return "it does not say so"
    return ""
