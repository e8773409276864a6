"""Is a body of exactly the configured size taken, and one byte more refused?"""

from __future__ import annotations

import asyncio

import pytest

from onelog.config.amqp import AmqpLimits
from tests.conformance.amqp_raw import Raw, Refused
from tests.support.amqp import Node, serving

MIB = 1024 * 1024


async def round_trip(node: Node, size: int, exchange: str) -> int:
    def run() -> int:
        with Raw(node.port) as raw:
            channel = raw.open().channel()
            queue = channel.queue("q", durable=True)
            if exchange:
                channel.exchange("fanout", exchange, durable=True)
                channel.bind(queue, exchange)
            channel.publish(exchange, "q", bytes(size), headers={"a": "b" * 1000})
            found = channel.get(queue)
            assert found is not None
            return len(found.body)

    async with asyncio.timeout(60):
        return await asyncio.to_thread(run)


@pytest.mark.parametrize("exchange", ["", "x"])
async def test_a_body_of_exactly_the_limit_is_taken(tmp_path, exchange):
    limit = AmqpLimits().message_bytes
    async with serving(tmp_path) as node:
        assert await round_trip(node, limit, exchange) == limit
        with pytest.raises(Refused, match=f"message size {limit + 1} is larger than configured"):
            await round_trip(node, limit + 1, exchange)


async def test_a_limit_that_is_raised_counts_for_streams_that_are_there(tmp_path):
    """The suites of RabbitMQ's clients send 20 MiB: amqp.limits.message_bytes."""
    async with serving(tmp_path) as node:
        assert await round_trip(node, 1, "x") == 1
    async with serving(tmp_path, AmqpLimits(message_bytes=32 * MIB)) as node:
        for exchange in ("", "x"):
            assert await round_trip(node, 20 * MIB, exchange) == 20 * MIB
