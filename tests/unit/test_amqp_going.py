"""What happens to a method whose connection goes before its work began?"""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest

from onelog.protocols.amqp import frames
from tests.conformance.amqp_raw import Basic, Exchange, Queue, Raw
from tests.support.amqp import serving


def method(what: Any) -> bytes:
    return frames.encode_method(1, what)


PUBLISH = method(Basic.Publish(exchange="amq.topic", routing_key="a")) + b"".join(
    bytes(piece) for piece in frames.encode_content(1, b"\0\0", b"body", 8192)
)


@pytest.mark.parametrize(
    "sent",
    [
        method(Queue.Declare(queue="q")),
        method(Queue.Delete(queue="q")),
        method(Queue.Bind(queue="q", exchange="amq.topic", routing_key="a")),
        method(Exchange.Declare(exchange="e", exchange_type="topic")),
        PUBLISH,
        PUBLISH + method(Queue.Declare(queue="q")),
    ],
    ids=["declare", "delete", "bind", "exchange", "publish", "publish-declare"],
)
async def test_work_that_never_began_is_put_away(tmp_path, sent):
    """The peer goes in the same pass of the loop in which its last bytes came."""
    async with serving(tmp_path) as node:

        def client() -> Raw:
            raw = Raw(node.port).open()
            raw.channel()
            return raw

        async with asyncio.timeout(30):
            raw = await asyncio.to_thread(client)
        (connection,) = node.hub.connections
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            connection.data_received(sent)
            tasks = set(connection._tasks)
            connection.connection_lost(None)
            assert tasks, "nothing had to wait"
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)
            tasks.clear()
            await asyncio.sleep(0)  # its callbacks
            gc.collect()
        assert [str(row.message) for row in told] == []
        raw.socket.close()
