"""A message that comes alone is on its way to its subscribers before its publisher is answered.

What is sent is visible, and so durable at its stream's level (I4): the tick sends behind the write.
"""

from __future__ import annotations

import asyncio
import select
import socket
from pathlib import Path

import pytest

from onelog.broker import LOCAL, Message
from onelog.kernel import COMPILED, pass_of
from tests.support.mqtt import Connect, Subscribe, Subscription, encode_packet, serving

WAIT_S = 30.0


class Asked:
    """A call that looks, when it is answered, whether the subscriber has something to read."""

    results = None

    def __init__(self, subscriber: socket.socket) -> None:
        self._subscriber = subscriber
        self.has_it: bool | None = None

    def finish(self, count: int, error: Exception | None) -> None:
        assert (count, error) == (1, None)
        # The loop waits here: nobody but the tick itself can have sent it.
        self.has_it = bool(select.select([self._subscriber], [], [], WAIT_S)[0])


def subscribed(port: int) -> socket.socket:
    """A subscriber of `t/#` with a plain socket; blocks."""
    made = socket.create_connection(("127.0.0.1", port), WAIT_S)
    made.sendall(encode_packet(Connect(version=4, client_id="s"), 4))
    assert made.recv(4, socket.MSG_WAITALL)[0] == 0x20
    made.sendall(encode_packet(Subscribe(1, (Subscription("t/#", 1),)), 4))
    assert made.recv(5, socket.MSG_WAITALL)[0] == 0x90
    return made


@pytest.mark.skipif(not COMPILED, reason="only the compiled kernel sends within the tick")
async def test_a_lone_message_is_sent_before_its_publisher_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, backend="epoll") as node:
        publisher = node.broker.publisher
        with await asyncio.to_thread(subscribed, node.port) as subscriber:
            # The first message of a partition makes its file, and takes the long way.
            publisher.publish([Message("t/1", b"first")], None, principal=LOCAL)
            assert (await asyncio.to_thread(subscriber.recv, 4096)).endswith(b"first")
            asked = Asked(subscriber)
            pass_of(asyncio.get_running_loop()).run(
                lambda: publisher.publish([Message("t/1", b"alone")], asked, principal=LOCAL)
            )
            assert asked.has_it
            assert subscriber.recv(4096).endswith(b"alone")
