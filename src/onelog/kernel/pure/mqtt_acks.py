"""MQTT's acknowledgements interpreted: which stages they wait for, and their packets.

Rules: a connection's acknowledgements go out in the order of its publishes (MQTT5 4.6.0-2): those
of a pass wait for the stages that hold its records, and for those of earlier passes. Nobody waits
for the stages of another connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from onelog.base.clock import Clock
from onelog.base.errors import OnelogError

if TYPE_CHECKING:
    from onelog.kernel.pure.mqtt_input import MqttInput
    from onelog.kernel.pure.stage import Stage


class MqttPass:
    """What all connections share in one pass of the loop.

    `dirty` is the door's list of stages. `acking` gets the inputs that have acknowledgements. The
    time is read once per pass that writes.
    """

    __slots__ = (
        "acking",
        "answered_bytes",
        "bytes_max",
        "clock",
        "dirty",
        "now_ms",
        "reason_of",
        "received_bytes",
        "received_messages",
        "tick_soon",
    )

    def __init__(
        self,
        dirty: list[Stage],
        clock: Clock,
        tick_soon: Callable[[], None],
        bytes_max: int,
        reason_of: Callable[[OnelogError], int] | None = None,
    ) -> None:
        self.dirty = dirty
        self.reason_of = reason_of
        """Gives the reason code of an error."""
        self.acking: list[MqttInput] = []
        self.clock = clock
        self.tick_soon = tick_soon
        self.bytes_max = bytes_max
        self.received_bytes = 0
        """Bytes that all connections sent so far."""
        self.received_messages = 0
        """Plain publishes among them."""
        self.answered_bytes = 0
        """Bytes of the answers to them."""
        self.now_ms = 0

    def await_stages(self, dirty: list[Stage]) -> None:
        """The pass ends: let its acknowledgements wait for the stages that are about to be
        written."""
        if self.acking:
            for number, found in enumerate(self.take_acks()):
                if found is not None:
                    dirty[number].owner.rows.append((found, 0, 0))

    def take_acks(self) -> list[StageAcks | None]:
        """Per dirty stage the acknowledgements that wait for it; None: there are none."""
        waiting: list[StageAcks | None] = [None] * len(self.dirty)
        for row in self.acking:
            acks = row.wait()
            for number in acks.numbers:
                assert number < len(waiting), "it was noted in an earlier pass"
                found = waiting[number]
                if found is None:
                    found = waiting[number] = StageAcks(number, self.reason_of)
                found.waiting.append(acks)
        self.acking.clear()
        return waiting


class StageAcks:
    """Acknowledgements of a pass that wait for one stage: the publisher tells them of its end."""

    __slots__ = ("_number", "_reason_of", "waiting")

    results: None = None

    def __init__(self, number: int, reason_of: Callable[[OnelogError], int] | None) -> None:
        self._number = number
        """Of the stage in the pass."""
        self._reason_of = reason_of
        self.waiting: list[MqttAcks] = []

    def finish(self, count: int, error: OnelogError | None) -> None:
        """The stage is written, or has failed: send what waits for nothing any more.

        A connection that raises keeps none of the others from theirs; the first error is raised
        then.
        """
        del count
        problem: Exception | None = None
        reason = None
        if error is not None:
            assert self._reason_of is not None, "who publishes says what an error is called"
            reason = self._reason_of(error)
        for acks in self.waiting:
            if reason is not None:
                acks.failed = {**(acks.failed or {}), self._number: reason}
            acks.left -= 1
            if not acks.left:
                try:
                    acks.row.send_ready()
                except Exception as raised:  # noqa: BLE001 - raised when all had their turn
                    problem = problem or raised
        if problem is not None:
            raise problem


class MqttAcks:
    """Acknowledgements of a connection that go out together, after earlier ones."""

    __slots__ = ("act", "failed", "left", "numbers", "packets", "row")

    def __init__(
        self, row: MqttInput, packets: bytes, act: Callable[[], None] | None = None
    ) -> None:
        self.row = row
        self.packets = packets
        """Packet id and stage number of each."""
        self.act = act
        """Called instead of sending acknowledgements."""
        found = (int.from_bytes(packets[at : at + 2], "big") for at in range(2, len(packets), 4))
        self.numbers = tuple(dict.fromkeys(found))
        self.left = len(self.numbers)
        """Stages that are not written yet."""
        self.failed: dict[int, int] | None = None


def encode_acks(acks: bytes, failed: dict[int, int] | None = None) -> bytes:
    """PUBACK packets in order; `failed` has the v5 reason code of stages that could not write."""
    out = []
    for at in range(0, len(acks) - 3, 4):
        reason = failed.get(int.from_bytes(acks[at + 2 : at + 4], "big")) if failed else None
        if reason is None:
            out.append(b"\x40\x02" + acks[at : at + 2])
        else:
            out.append(b"\x40\x03" + acks[at : at + 2] + bytes((reason,)))
    return b"".join(out)
