"""The directory: the streams in force, by name and by the topics that they hold.

Rules: a stream is found here from the moment in which a change takes effect, and not before. The
directory writes nothing down and tells nobody: the catalog does both.
"""

from __future__ import annotations

from onelog.base.clock import Clock
from onelog.base.errors import Conflict, StreamNotFound
from onelog.base.topics import is_exact, overlap
from onelog.log.config import StreamConfig
from onelog.log.handle import PartitionHandle
from onelog.log.moves import SourceKey
from onelog.log.resolution import Resolver
from onelog.log.stream import Stream


class Directory:
    """The streams that can be found now."""

    def __init__(self, clock: Clock) -> None:
        self.resolver = Resolver()
        self.by_name: dict[str, Stream] = {}
        self._clock = clock
        self._ordered: list[Stream] | None = None
        """The streams in the order of their names; None: the list must be made anew."""
        self._with_past: dict[str, Stream] = {}
        """Streams that may hold records of filters that they no longer capture."""
        self._last_birth_ms = 0

    # -- looking up

    def get(self, name: str) -> Stream:
        """A stream by name."""
        stream = self.by_name.get(name)
        if stream is None:
            raise StreamNotFound(f"there is no stream {name!r}")
        return stream

    def find(self, name: str) -> Stream | None:
        """A stream by name, or None."""
        return self.by_name.get(name)

    def streams(self) -> list[Stream]:
        """Every stream, by name."""
        if self._ordered is None:
            self._ordered = [self.by_name[name] for name in sorted(self.by_name)]
        return self._ordered.copy()

    def home(self, topic: str) -> Stream:
        """The stream that a topic lives in."""
        return self.by_name[self.resolver.home(topic)]

    def holders(self, text: str) -> list[Stream]:
        """Streams that may hold records of a filter; the home of an exact topic comes last."""
        exact = is_exact(text)
        resolver = self.resolver
        names = set(resolver.homes_of_topic(text) if exact else resolver.homes_of_filter(text))
        for stream in self._with_past.values():
            if any(overlap(capture, text) for capture in stream.record.past_captures):
                names.add(stream.name)
        home = self.resolver.home(text) if exact else ""
        ordered = sorted(
            names, key=lambda name: (name == home, self.by_name[name].record.created_ms, name)
        )
        return [self.by_name[name] for name in ordered]

    # -- what a change needs to know

    def near(self, old: StreamConfig | None, new: StreamConfig) -> list[Stream]:
        """Streams that may gain or lose topics by a change."""
        changed = set(new.captures).symmetric_difference(() if old is None else old.captures)
        names = {name for text in changed for name in self.resolver.homes_of_filter(text)}
        return [self.by_name[name] for name in sorted(names | self._with_past.keys())]

    def partitions(self) -> dict[SourceKey, PartitionHandle]:
        """Every partition, by the id of its stream and its number."""
        return {
            (stream.record.id, int(partition.id)): partition
            for stream in self.by_name.values()
            for partition in stream.partitions
        }

    def all_captures(self, stream: Stream) -> set[str]:
        """The filters that a stream captures, captured, or is about to capture."""
        record = stream.record
        before = self.resolver.captures(stream.name)
        return {*before, *record.config.captures, *record.past_captures}

    def check_captures(self, config: StreamConfig) -> None:
        """Raise Conflict if another stream has one of the captures."""
        for text in sorted(config.captures):
            owner = self.resolver.owner(text)
            if owner not in (None, config.name):
                raise Conflict(
                    f"stream {config.name}: {text!r} is captured by stream {owner} already"
                )

    def next_birth_ms(self) -> int:
        """A time of birth: now, and later than every earlier birth, so that births are in order."""
        return max(self._clock.now_ms(), self._last_birth_ms + 1)

    # -- changing

    def put(self, stream: Stream) -> set[str]:
        """Let a stream be found as it is now; the filters that this concerns."""
        if self.by_name.get(stream.name) is not stream:
            self.by_name[stream.name] = stream
            self._ordered = None
        if stream.record.past_captures:
            self._with_past[stream.name] = stream
        self._last_birth_ms = max(self._last_birth_ms, stream.record.births()[-1][0])
        touched = self.all_captures(stream)  # with the captures from before the change
        self.resolver.replace(stream.name, stream.config.captures)
        return touched

    def remove(self, stream: Stream) -> set[str]:
        """Let nobody find a stream any more; the filters that this concerns."""
        name = stream.name
        del self.by_name[name]
        self._ordered = None
        self._with_past.pop(name, None)
        touched = self.all_captures(stream)
        self.resolver.replace(name, ())
        return touched
