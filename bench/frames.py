"""Python frames that the broker takes for a message that comes alone, without sockets.

Usage: `python -m bench.frames mqtt|amqp QOS`. A publisher and a subscriber of
`bench/lockstep_child.py` are fed one message at a time: publish, hand-out, acknowledgement. Prints
each function with its calls per message, and at last their sum. A busy machine changes no count.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvloop

from bench import lockstep_child
from bench.lockstep_child import Side, Wire, one_round

KNOWN_AFTER: Final = 20
"""So many messages come first, until their ways are known."""
MESSAGES: Final = 200
_OWN: Final = frozenset({__file__, lockstep_child.__file__, asyncio.tasks.__file__})


async def count_frames(
    publishers: Side,
    consumers: Side,
    messages_of: Callable[[int], list[bytes]],
    acks_of: Callable[[Wire], bytes] | None,
    count: int,
    rounds: int,
) -> float:
    """In place of `best_round`: the frames of a message."""
    assert (count, rounds) == (1, 1)
    calls: Counter[str] = Counter()

    def seen(frame: FrameType, event: str, _value: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename not in _OWN:
            calls[f"{code.co_filename}:{code.co_qualname}"] += 1

    def uncounted(wire: Wire) -> bytes:
        sys.setprofile(None)
        try:
            return acks_of(wire) if acks_of else b""
        finally:
            sys.setprofile(seen)

    publishers.clear()
    consumers.clear()
    for number in range(KNOWN_AFTER + MESSAGES):
        messages = messages_of(number)
        if number == KNOWN_AFTER:
            calls.clear()
        sys.setprofile(seen)
        try:
            await one_round(publishers, consumers, messages, uncounted if acks_of else None)
        finally:
            sys.setprofile(None)
    for name, times in calls.most_common():
        print(f"{times / MESSAGES:8.3f}  {name}")
    return calls.total() / MESSAGES


async def main(protocol: str, qos: str) -> None:
    case: Any = {"mqtt": lockstep_child.mqtt, "amqp": lockstep_child.amqp}[protocol]
    lockstep_child.PAIRS = 1
    lockstep_child.best_round = count_frames
    with tempfile.TemporaryDirectory() as folder:
        print(f"{await case(Path(folder), int(qos), 1, 1):8.3f}", flush=True)
        os._exit(0)  # as `lockstep_child.py` ends


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
