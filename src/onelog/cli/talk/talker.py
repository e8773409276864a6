"""The interface of every client of the command line, and the choice by `--via`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

from onelog.cli.talk.link import BrokerAddress, Patience
from onelog.cli.talk.messages import Message, Wanted

Via = Literal["mqtt", "kafka", "amqp"]


class Talker(Protocol):
    """A connection that messages go through. Everything raises OnelogError."""

    def publish(self, message: Message) -> None:
        """Send a message; the answer may come later, at the latest with `flush`."""
        ...

    def flush(self) -> None:
        """Return when the broker has everything."""
        ...

    def receive(self, wanted: Wanted, patience: Patience) -> Iterator[Message]:
        """Messages as they come, until patience or what is wanted ends."""
        ...

    def settle(self) -> None:
        """The message that `receive` gave last is done with."""
        ...

    def close(self) -> None:
        """Say goodbye and hang up."""
        ...


def open_talker(
    via: Via, address: BrokerAddress, *, exchange: str | None = None, partition: int | None = None
) -> Talker:
    """Connect. Modules that only one protocol needs are imported when it is chosen."""
    if via == "mqtt":
        from onelog.cli.talk.mqtt import MqttTalker  # noqa: PLC0415

        return MqttTalker(address)
    if via == "kafka":
        from onelog.cli.talk.kafka import KafkaTalker  # noqa: PLC0415

        return KafkaTalker(address, partition)
    from onelog.cli.talk.amqp import AmqpTalker  # noqa: PLC0415

    return AmqpTalker(address, exchange)
