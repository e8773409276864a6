"""A binding waits for its exchange's stream: what if an end of it is deleted meanwhile?"""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from onelog.queues.errors import NotDeclared
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord
from onelog.queues.settings import QueueRecord
from tests.support.amqp import serving

TO_QUEUE = Destination("queue", "q")
TO_EXCHANGE = Destination("exchange", "y")


@pytest.mark.parametrize(
    ("destination", "gone"),
    [(TO_QUEUE, "x"), (TO_QUEUE, "q"), (TO_EXCHANGE, "x"), (TO_EXCHANGE, "y")],
)
async def test_a_binding_whose_end_was_deleted_meanwhile_is_refused(tmp_path, destination, gone):
    """It was an internal error, or stayed as a binding to nowhere, for the next of that name."""
    async with serving(tmp_path) as node:
        vhost = node.hub.queues.vhosts.add("/")
        for name in ("x", "y"):
            record = ExchangeRecord(name=name, type="fanout", durable=True)
            await vhost.declare_exchange(record, passive=False)
        queue = await vhost.declare_queue(
            QueueRecord(name="q", durable=True), owner=None, passive=False
        )
        may_go_on = asyncio.Event()

        async def make(_exchange: str) -> None:
            await may_go_on.wait()

        with patch.object(vhost.streams, "make", make):
            binding = Binding(source="x", destination=destination, routing_key="")
            work = asyncio.create_task(vhost.bind(binding))
            await asyncio.sleep(0)
            if gone == "q":
                await vhost.delete_queue(queue)
            else:
                await vhost.delete_exchange(gone, if_unused=False)
            may_go_on.set()
            with pytest.raises(NotDeclared, match=f"'{gone}'"):
                await work
        assert [row for row in vhost.router.bindings() if row.source == "x"] == []
