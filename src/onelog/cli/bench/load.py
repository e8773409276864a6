"""The load: pairs of a publisher and a subscriber, driven by one thread.

Rules: a publisher has at most a window of messages under way, and a message is under way until its
subscriber has it; so nothing is lost, and the rate is what the broker carries from end to end. All
messages of a burst have the same length and the time at which the burst was sent: both ends work on
whole reads, never on single messages. What does not move for `STALLED_S` is an error.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Protocol

from onelog.base.errors import Timeout

STALLED_S: Final = 10.0
TICK_S: Final = 0.1
STAMP_BYTES: Final = 8
ALONE_S: Final = 0.3
CHUNK_BYTES: Final = 32_768

Times = Counter[int]
"""How many messages came, by the time at which they were sent, in ns."""


class Writer(Protocol):
    """The end that publishes."""

    burst_max: int
    """So many messages it can send at once."""

    def fileno(self) -> int:
        """Of its socket."""
        ...

    def room(self) -> int:
        """How many more messages the broker lets it send before it answers."""
        ...

    def encode(self, count: int, now_ns: int) -> bytes | bytearray:
        """The bytes of a burst."""
        ...

    def send(self, data: bytes | bytearray, count: int) -> None:
        """Write a burst. Raises OnelogError."""
        ...

    def take_answers(self) -> None:
        """Read what is there. Raises OnelogError."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Reader(Protocol):
    """The end that subscribes."""

    sample: bytes
    """Some whole messages as they came, for `speed_alone`."""

    def fileno(self) -> int:
        """Of its socket."""
        ...

    def take(self) -> Times:
        """Read what is there. Raises OnelogError."""
        ...

    def parse(self, data: bytes) -> Times:
        """The messages of a sample."""
        ...

    def close(self) -> None:
        """Say goodbye."""
        ...


@dataclass
class Pair:
    """A publisher and its subscriber."""

    writer: Writer
    reader: Reader
    window: int
    under_way: int = 0

    def fill(self, now_ns: int) -> None:
        """Send as much as the window allows."""
        count = min(self.window - self.under_way, self.writer.burst_max, self.writer.room())
        if count > 0:
            self.under_way += count
            self.writer.send(self.writer.encode(count, now_ns), count)

    def close(self) -> None:
        """Both ends."""
        self.writer.close()
        self.reader.close()


@dataclass
class Measured:
    """What a case moved while it was measured."""

    seconds: float = 0.0
    messages: int = 0
    generator_s: float = 0.0
    """CPU of this process."""
    waits: Times = field(default_factory=Counter)
    """Messages by the ns that they were under way."""

    def quantile_us(self, share: float) -> float:
        """The time within which so much of the messages arrived."""
        left = share * sum(self.waits.values())
        for wait_ns in sorted(self.waits):
            left -= self.waits[wait_ns]
            if left <= 0:
                return wait_ns / 1000
        return 0.0


def drive(
    pairs: Sequence[Pair], warm_s: float, seconds: float, on_time: Callable[[float], None]
) -> Measured:
    """Run all pairs; what comes before `warm_s` is not counted. Raises OnelogError."""
    found = Measured()
    with selectors.DefaultSelector() as poll:
        for pair in pairs:
            poll.register(pair.reader, selectors.EVENT_READ, (pair, True))
            poll.register(pair.writer, selectors.EVENT_READ, (pair, False))
        start_ns = moved_ns = now_ns = time.monotonic_ns()
        begin_ns, end_ns = (start_ns + int(s * 1e9) for s in (warm_s, warm_s + seconds))
        counted_ns, spent_s, shown_ns = 0, 0.0, 0
        for pair in pairs:
            pair.fill(now_ns)
        while now_ns < end_ns:
            events = poll.select(TICK_S)
            now_ns = time.monotonic_ns()
            if not counted_ns and now_ns >= begin_ns:
                counted_ns, spent_s = now_ns, time.process_time()
            for key, _mask in events:
                pair, is_reader = key.data
                if is_reader:
                    came = pair.reader.take()
                    count = came.total()
                    pair.under_way -= count
                    if counted_ns:
                        found.messages += count
                        for sent_ns, many in came.items():
                            found.waits[now_ns - sent_ns] += many
                    moved_ns = now_ns if count else moved_ns
                else:
                    pair.writer.take_answers()
                pair.fill(time.monotonic_ns())
            if now_ns - moved_ns > STALLED_S * 1e9:
                raise Timeout(f"no message arrived for {STALLED_S:g} s")
            if now_ns - shown_ns > TICK_S * 1e9:
                on_time((now_ns - start_ns) / 1e9)
                shown_ns = now_ns
    found.seconds = max((now_ns - counted_ns) / 1e9, 1e-9)
    found.generator_s = time.process_time() - spent_s
    return found


def speed_alone(pair: Pair) -> float:
    """Messages a second that the generator could do if the broker took no time at all.

    It encodes bursts and reads the deliveries of the case again, and sends both through a pair of
    sockets: what a broker would do between them is left out.
    """
    sample = pair.reader.sample
    each = pair.reader.parse(sample).total()
    if not each:
        return 0.0
    burst = max(1, min(pair.window, pair.writer.burst_max))
    here, there = socket.socketpair()
    with here, there:

        def write() -> None:
            _through(here, there, pair.writer.encode(burst, time.monotonic_ns()))

        def read() -> None:
            _through(here, there, sample)
            pair.reader.parse(sample)

        return 1 / (_seconds(write) / burst + _seconds(read) / each)


def _seconds(work: Callable[[], None]) -> float:
    """What one call takes, of many."""
    calls, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < ALONE_S / 2 or not calls:
        work()
        calls += 1
    return taken / calls


def _through(here: socket.socket, there: socket.socket, data: bytes | bytearray) -> None:
    view = memoryview(data)
    for at in range(0, len(view), CHUNK_BYTES):
        piece = view[at : at + CHUNK_BYTES]
        here.sendall(piece)
        left = len(piece)
        while left:
            left -= len(there.recv(left))


def stamp(block: bytearray, at: int, each: int, now_ns: int) -> None:
    """Write the time into every message of a block of messages of one length."""
    count = len(block) // each
    for number, value in enumerate(now_ns.to_bytes(STAMP_BYTES, "big")):
        block[at + number :: each] = bytes((value,)) * count


def stamps(data: bytes, at: int, each: int) -> Times:
    """The times in all messages of a block of messages of one length."""
    form = struct.Struct(f">{at}xQ{each - at - STAMP_BYTES}x")
    return Counter(map(_FIRST, form.iter_unpack(data)))


_FIRST = itemgetter(0)
