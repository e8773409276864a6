"""Operations that make and remove exchanges, queues and bindings of AMQP.

Rules: operators may, with the rights that a client would need (`protocols/amqp/shaping.py`); what
they make is judged as them. Declaring what is there already, and is the same, is no error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    NOTHING,
    OPERATOR,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.broker.showing import (
    BindingRow,
    BindingWish,
    ExchangeRow,
    ExchangeWish,
    QueueDesk,
    QueueRow,
    QueueShaping,
    QueueWish,
)

TAG = "amqp"
_Name = Annotated[str, Meta(min_length=1, max_length=255)]
_Key = Annotated[str, Meta(max_length=255)]
_Arguments = Annotated[dict[_Key, Any], Meta(max_length=64)]


class NewExchange(ApiInput, frozen=True, kw_only=True):
    """An exchange to be declared."""

    type: Literal["direct", "fanout", "topic", "headers"] = "direct"
    durable: bool = True
    auto_delete: bool = False
    """Whether it goes with its last binding."""
    internal: bool = False
    """Whether no client may publish to it."""
    arguments: _Arguments = msgspec.field(default_factory=dict)


class NewQueue(ApiInput, frozen=True, kw_only=True):
    """A queue to be declared."""

    durable: bool = True
    auto_delete: bool = False
    """Whether it goes with its last consumer."""
    arguments: _Arguments = msgspec.field(default_factory=dict)
    """As AMQP has them: x-queue-type, x-message-ttl and the like."""


class NewBinding(ApiInput, frozen=True, kw_only=True):
    """A binding to be made."""

    source: _Name
    destination: _Name
    destination_type: Literal["queue", "exchange"] = "queue"
    routing_key: _Key = ""
    arguments: _Arguments = msgspec.field(default_factory=dict)


class ExchangeGone(ApiInput, frozen=True, kw_only=True):
    """How an exchange is deleted."""

    if_unused: Annotated[bool, Meta(description="Only if no binding leads from it.")] = False


class BindingGone(ApiInput, frozen=True, kw_only=True):
    """Which binding goes."""

    source: _Name
    destination: _Name
    destination_type: Literal["queue", "exchange"] = "queue"
    routing_key: _Key = ""
    key: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Of the list: where several bindings have the routing key.",
        ),
    ] = ""


class TopologyOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """What is asked where."""
        exchange, bindings = "/amqp/exchanges/{vhost}/{exchange}", "/amqp/bindings/{vhost}"
        return [
            ApiOperation(
                method="PUT", path=exchange, role=OPERATOR, tag=TAG,
                summary="Declare an exchange; one that is the same is no error.",
                body=NewExchange, answer=ExchangeRow, handler=self.declare_exchange,
            ),
            ApiOperation(
                method="DELETE", path=exchange, role=OPERATOR, tag=TAG,
                summary="Delete an exchange and its bindings.", query=ExchangeGone,
                answer=NOTHING, status=204, handler=self.delete_exchange,
            ),
            ApiOperation(
                method="PUT", path="/amqp/queues/{vhost}/{queue}", role=OPERATOR, tag=TAG,
                summary="Declare a queue; one that is the same is no error.",
                body=NewQueue, answer=QueueRow, handler=self.declare_queue,
            ),
            ApiOperation(
                method="POST", path=bindings, role=OPERATOR, tag=TAG,
                summary="Bind a queue or an exchange to an exchange.",
                body=NewBinding, answer=BindingRow, status=201, handler=self.bind,
            ),
            ApiOperation(
                method="DELETE", path=bindings, role=OPERATOR, tag=TAG,
                summary="Remove a binding.", query=BindingGone,
                answer=NOTHING, status=204, handler=self.unbind,
            ),
        ]  # fmt: skip

    @property
    def _shaping(self) -> QueueShaping:
        return cast("QueueDesk", self._desk.desk("amqp")).shaping

    async def declare_exchange(self, call: ApiCall[NoQuery, NewExchange]) -> ExchangeRow:
        """Make an exchange."""
        wish = ExchangeWish(name=call.names["exchange"], **msgspec.structs.asdict(call.body))
        vhost, who = call.names["vhost"], call.caller.principal
        return await self._shaping.declare_exchange(vhost, wish, who)

    async def delete_exchange(self, call: ApiCall[ExchangeGone, None]) -> None:
        """Delete an exchange."""
        vhost, name = call.names["vhost"], call.names["exchange"]
        await self._shaping.delete_exchange(
            vhost, name, call.caller.principal, if_unused=call.query.if_unused
        )

    async def declare_queue(self, call: ApiCall[NoQuery, NewQueue]) -> QueueRow:
        """Make a queue."""
        wish = QueueWish(name=call.names["queue"], **msgspec.structs.asdict(call.body))
        return await self._shaping.declare_queue(call.names["vhost"], wish, call.caller.principal)

    async def bind(self, call: ApiCall[NoQuery, NewBinding]) -> BindingRow:
        """Make a binding."""
        wish = BindingWish(**msgspec.structs.asdict(call.body))
        return await self._shaping.bind(call.names["vhost"], wish, call.caller.principal)

    async def unbind(self, call: ApiCall[BindingGone, None]) -> None:
        """Remove a binding."""
        asked, vhost = call.query, call.names["vhost"]
        wish = BindingWish(
            source=asked.source,
            destination=asked.destination,
            destination_type=asked.destination_type,
            routing_key=asked.routing_key,
        )
        await self._shaping.unbind(vhost, wish, asked.key, call.caller.principal)
