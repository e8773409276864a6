"""What `onelog top` knows: the last of everything that came, and how it is sorted.

Rules: nothing here waits or prints. Rates of topics come from a sample, the first messages of each
interval, and are scaled to the rate of all messages; the picture says so when it had to.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final

SPAN: Final = 5
"""Intervals that the rates of topics are the mean of."""
SAMPLE: Final = 450
"""About so many messages of an interval come at most (the API's bound is 500)."""
TOPICS_MAX: Final = 200
"""Topics that are kept of one interval."""

_UNKNOWN: Final = "starting"

Json = dict[str, Any]

CURSOR_SORTS: Final = ("lag", "pending", "name")
TOPIC_SORTS: Final = ("rate", "topic")


@dataclass
class Board:
    """The state of the view."""

    interval_s: float
    url: str
    rates: Json = field(default_factory=dict)
    status: str = _UNKNOWN
    alarms: list[Json] = field(default_factory=list)
    overview: Json = field(default_factory=dict)
    cursors: list[Json] = field(default_factory=list)
    cursors_capped: bool = False
    trouble: str = ""
    """Why nothing comes at the moment."""
    topics_trouble: str = ""
    """Why the topics are not known."""
    paused: bool = False
    sampled: bool = False
    """Whether more messages came than the sample holds."""
    cursor_sort: str = CURSOR_SORTS[0]
    topic_sort: str = TOPIC_SORTS[0]
    _skipped: bool = False
    _counts: Counter[str] = field(default_factory=Counter)
    _intervals: deque[tuple[Counter[str], float]] = field(
        default_factory=lambda: deque(maxlen=SPAN)
    )

    def event(self, name: str, data: Json) -> bool:
        """Take in an event; whether there is a new picture."""
        if name == "message":
            if len(self._counts) < TOPICS_MAX or data["topic"] in self._counts:
                self._counts[data["topic"]] += 1
        elif name == "skipped":
            self._skipped = True
        elif name == "alarms":
            self.status, self.alarms = data["status"], data["alarms"]
        elif name == "end":
            self.topics_trouble = str(data.get("reason", ""))
        elif name == "rates":
            self.rates, self.trouble = data, ""
            self._close_interval()
            return True
        return False

    def _close_interval(self) -> None:
        seen = self._counts.total()
        whole = (self.rates["rates"]["published_messages"] or 0.0) * self.interval_s
        self.sampled = self._skipped or seen >= SAMPLE
        factor = max(1.0, whole / seen) if seen and self.sampled else 1.0
        self._intervals.append((self._counts, factor))
        self._counts, self._skipped = Counter(), False

    def topics(self) -> list[tuple[str, float]]:
        """Topics and their messages per second, in the chosen order."""
        found: Counter[str] = Counter()
        for counts, factor in self._intervals:
            for topic, number in counts.items():
                found[topic] += number * factor  # type: ignore[assignment]
        seconds = max(1, len(self._intervals)) * self.interval_s
        rows = [(topic, number / seconds) for topic, number in found.items()]
        if self.topic_sort == "rate":
            return sorted(rows, key=lambda row: (-row[1], row[0]))
        return sorted(rows)

    def sorted_cursors(self) -> list[Json]:
        """Cursors in the chosen order."""
        if self.cursor_sort == "name":
            return sorted(self.cursors, key=lambda row: str(row["name"]))
        key = self.cursor_sort
        return sorted(self.cursors, key=lambda row: (-row[key], str(row["name"])))

    def press(self, key: str) -> bool:
        """Do what a key asks for; whether the view ends."""
        if key in ("q", "Q", "\x03", "\x04"):
            return True
        if key == "s":
            self.cursor_sort = _after(CURSOR_SORTS, self.cursor_sort)
        elif key == "t":
            self.topic_sort = _after(TOPIC_SORTS, self.topic_sort)
        elif key in ("p", " "):
            self.paused = not self.paused
        return False

    @property
    def is_whole(self) -> bool:
        """Whether everything came once, so that a picture leaves nothing out."""
        return bool(self.rates and self.overview and self.status != _UNKNOWN)

    def document(self) -> Json:
        """The whole, for programs."""
        return {
            **self.rates,
            "status": self.status,
            "alarms": self.alarms,
            "counts": self.overview.get("counts"),
            "disk": self.overview.get("disk"),
            "loop": self.overview.get("loop"),
            "cursors": self.sorted_cursors()[:100],
            "topics": [
                {"topic": topic, "messages_per_s": round(rate, 3)}
                for topic, rate in self.topics()[:100]
            ],
        }


def _after(choices: tuple[str, ...], chosen: str) -> str:
    return choices[(choices.index(chosen) + 1) % len(choices)]
