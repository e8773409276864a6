"""AMQP's connections and channels, interpreted: what the kernel needs to know of them.

Rules: the compiled kernel has a short way for deliveries and acknowledgements, if nothing else has
to come first: nothing on the channel waits, and what is acknowledged are the oldest messages that
it holds, which went out the short way (`queue_end.py`). Here everything takes the long way, which
specifies it: `ChannelConsumer.take_run` and `Consuming.ack`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onelog.kernel.pure.queue_end import ConsumerEnd

if TYPE_CHECKING:
    from onelog.kernel.pure.amqp_delivery import AmqpEnvelopes


class AmqpCounters:
    """Numbers that all connections count together."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.published = 0
        self.confirmed = 0


class AmqpPeer:
    """One connection."""

    __slots__ = (
        "_transport", "_writing", "channels", "counters", "envelopes", "frame_bytes_max",
        "is_open", "loop_time", "received_bytes", "seat", "sent_bytes", "unacked_max",
    )  # fmt: skip

    counters: Any
    _transport: Any
    _writing: bool
    """Whether the peer keeps up with reading."""
    is_open: bool
    """Whether the peer is logged in and the connection is not closing."""
    sent_bytes: int
    received_bytes: int
    frame_bytes_max: int
    unacked_max: int
    """How many messages a channel may hold."""
    envelopes: AmqpEnvelopes
    loop_time: Callable[[], float]
    channels: dict[int, Any]
    """By number; always the same dict."""
    seat: Any
    """Its place in the quotas, from the login to the end."""


class ChannelEnd:
    """One channel."""

    number: int
    consuming: Any
    publishing: Any
    transaction: Any
    """Set by tx.select."""
    _publish: Any
    """A publish whose content has still to come."""
    _waiting: Any
    """Events that wait for their turn."""
    _busy: bool
    _closing: bool

    @property
    def is_plain(self) -> bool:
        """Whether no frame waits, so that the next one takes effect at once."""
        return not (
            self._busy
            or self._closing
            or self.transaction is not None
            or self._publish is not None
            or self._waiting
        )


class HeldEnd:
    """The unacknowledged messages of one channel, the oldest first."""

    __slots__ = ("runs", "size", "tags")

    runs: list[UnsettledRun]
    tags: list[int]
    """The first tag of each run."""
    size: int


class UnsettledRun:
    """Messages of one queue that went out together."""

    __slots__ = ("consumer", "count", "place", "queue", "since", "tag")

    def __init__(
        self, tag: int, count: int, queue: Any, place: int, consumer: Any, since: float
    ) -> None:
        self.tag = tag
        """The tag of the first message."""
        self.count = count
        self.queue = queue
        self.place = place
        """The place of the first message."""
        self.consumer = consumer
        self.since = since
        """The loop's time when they were sent."""

    @property
    def places(self) -> range:
        """The places of all of them."""
        return range(self.place, self.place + self.count)

    def cut(self, tag: int) -> UnsettledRun:
        """Keep the messages before a tag. Returns the rest as a run."""
        kept = tag - self.tag
        rest = UnsettledRun(
            tag, self.count - kept, self.queue, self.place + kept, self.consumer, self.since
        )
        self.count = kept
        return rest


class ConsumingEnd:
    """What one channel consumes."""

    connection: Any
    _held: Any
    number: int
    """The channel's."""
    next_tag: int
    """The tag of the next delivery."""
    _channel_prefetch: int
    _counted: int
    """Messages of its consumers that are not acknowledged."""
    _aside: int
    """Messages whose acknowledgement waits for a commit."""
    _is_flowing: bool
    """Whether the client wants deliveries."""
    _turns: Any
    _late: Any
    """The timer for messages that are not acknowledged in time."""

    def ack_short(self, tag: int, multiple: bool) -> bool:
        """Settle messages by an acknowledgement. Returns False when the long way has to settle
        what is left of them."""
        del tag, multiple
        return False


class AmqpConsumerEnd(ConsumerEnd):
    """One consumer of a channel."""

    __slots__ = ("owner", "prefetch", "queue", "unacked", "wire_tag")

    owner: Any
    queue: Any
    wire_tag: bytes
    prefetch: int
    """Messages that it may hold at once; 0: no bound of its own."""
    unacked: int
