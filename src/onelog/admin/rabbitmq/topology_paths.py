"""Paths of virtual hosts, exchanges, queues and bindings."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, get_args
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.rabbitmq.contract import AckMode, Encoding, End, ExchangeType
from onelog.admin.rabbitmq.desk import Desk, Table, who_asks
from onelog.admin.rabbitmq.listing import answer, many, one
from onelog.admin.rabbitmq.requests import (
    BadRequest,
    arguments,
    exchange_part,
    flag,
    json_body,
    need,
    number,
    part,
    query_flag,
    text,
)
from onelog.base.errors import NotAuthorized, NotFound

_NUMBERS: Final[dict[str, int]] = {"delivery_mode": 2, "priority": 255, "timestamp": 2**64 - 1}
"""Properties that are numbers, and how large they get."""
_TEXTS: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_TEXT_BYTES_MAX: Final = 255


def made(is_new: bool) -> Response:
    """The answer to a declaration."""
    return Response(status_code=201 if is_new else 204)


def done() -> Response:
    """The answer to what has none."""
    return Response(status_code=204)


class TopologyPaths:
    """Handlers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def table(self) -> Table:
        """The paths, and the function for each."""
        one_exchange, one_queue = "/exchanges/{vhost}/{name}", "/queues/{vhost}/{name}"
        between = "/bindings/{vhost}/e/{source}/{kind}/{destination}"
        return {
            "/vhosts": {"GET": self.vhosts},
            "/vhosts/{vhost}": {
                "GET": self.vhost,
                "PUT": self.make_vhost,
                "DELETE": self.delete_vhost,
            },
            "/exchanges": {"GET": self.exchanges},
            "/exchanges/{vhost}": {"GET": self.exchanges},
            one_exchange: {
                "GET": self.exchange,
                "PUT": self.declare_exchange,
                "DELETE": self.delete_exchange,
            },
            f"{one_exchange}/publish": {"POST": self.publish},
            f"{one_exchange}/bindings/source": {"GET": self.bindings_from},
            f"{one_exchange}/bindings/destination": {"GET": self.bindings_to_exchange},
            "/queues": {"GET": self.queues},
            "/queues/{vhost}": {"GET": self.queues},
            one_queue: {
                "GET": self.queue,
                "PUT": self.declare_queue,
                "DELETE": self.delete_queue,
            },
            f"{one_queue}/contents": {"DELETE": self.purge},
            f"{one_queue}/get": {"POST": self.get},
            f"{one_queue}/bindings": {"GET": self.bindings_to_queue},
            "/bindings": {"GET": self.bindings},
            "/bindings/{vhost}": {"GET": self.bindings},
            between: {"GET": self.bindings_between, "POST": self.bind},
            f"{between}/{{key}}": {"GET": self.binding, "DELETE": self.unbind},
        }

    # -- virtual hosts

    async def vhosts(self, request: Request) -> Response:
        """Every virtual host."""
        return await many(request, self._desk.amqp.vhosts(), paged=True)

    async def vhost(self, request: Request) -> Response:
        """One virtual host."""
        return one(request, await self._desk.amqp.vhost(part(request, "vhost")))

    async def make_vhost(self, request: Request) -> Response:
        """Make a virtual host, or describe it anew."""
        body = await json_body(request)
        if flag(body, "tracing"):
            raise BadRequest("tracing is not possible here")
        description, tags = text(body, "description"), body.get("tags", "")
        if isinstance(tags, str):
            tags = [row.strip() for row in tags.split(",") if row.strip()]
        if not isinstance(tags, list) or not all(isinstance(row, str) for row in tags):
            raise BadRequest("not_string", "tags")
        name = part(request, "vhost")
        return made(await self._desk.amqp.make_vhost(name, description, tuple(tags)))

    async def delete_vhost(self, request: Request) -> Response:
        """Let a virtual host go with all that is in it."""
        await self._desk.amqp.delete_vhost(part(request, "vhost"))
        return done()

    # -- exchanges

    async def exchanges(self, request: Request) -> Response:
        """Exchanges, of one virtual host or of all."""
        return await many(request, self._desk.amqp.exchanges(self._vhost(request)), paged=True)

    def _vhost(self, request: Request) -> str | None:
        """The virtual host of a list; None: all. Raises NotFound before the list begins."""
        if "vhost" not in request.path_params:
            return None
        return self._desk.amqp.known_vhost(part(request, "vhost"))

    async def exchange(self, request: Request) -> Response:
        """One exchange."""
        return one(
            request, self._desk.amqp.exchange(part(request, "vhost"), exchange_part(request))
        )

    async def declare_exchange(self, request: Request) -> Response:
        """Make an exchange."""
        body = await json_body(request)
        kind = body.get("type", "direct")
        if kind not in get_args(ExchangeType):
            raise BadRequest(f"invalid exchange type '{kind}'")
        flags = {name: flag(body, name) for name in ("durable", "auto_delete", "internal")}
        is_new = await self._desk.amqp.declare_exchange(
            part(request, "vhost"), exchange_part(request), kind, flags, arguments(body)
        )
        return made(is_new)

    async def delete_exchange(self, request: Request) -> Response:
        """Delete an exchange."""
        await self._desk.amqp.delete_exchange(
            part(request, "vhost"),
            exchange_part(request),
            if_unused=query_flag(request, "if-unused"),
        )
        return done()

    async def publish(self, request: Request) -> Response:
        """Publish one message."""
        body = await json_body(request)
        need(body, "properties", "routing_key", "payload", "payload_encoding")
        who = who_asks(request)
        vhost = self._desk.amqp.known_vhost(part(request, "vhost"))
        try:
            routed = await self._desk.amqp.publish(
                vhost,
                exchange_part(request),
                _short(text(body, "routing_key"), "routing_key"),
                _properties(body["properties"] or {}),
                _payload(body),
                (who.name, who.principal),
            )
        except NotFound as error:
            raise BadRequest(f"404 NOT_FOUND - {error}") from None
        except NotAuthorized as error:
            raise BadRequest(f"403 ACCESS_REFUSED - {error}") from None
        return answer({"routed": routed})

    # -- queues

    async def queues(self, request: Request) -> Response:
        """Queues, of one virtual host or of all."""
        return await many(request, self._desk.amqp.queues(self._vhost(request)), paged=True)

    async def queue(self, request: Request) -> Response:
        """One queue."""
        return one(request, self._desk.amqp.queue(part(request, "vhost"), part(request, "name")))

    async def declare_queue(self, request: Request) -> Response:
        """Make a queue."""
        body = await json_body(request)
        flags = {name: flag(body, name) for name in ("durable", "auto_delete")}
        is_new = await self._desk.amqp.declare_queue(
            part(request, "vhost"), part(request, "name"), flags, arguments(body)
        )
        return made(is_new)

    async def delete_queue(self, request: Request) -> Response:
        """Delete a queue."""
        await self._desk.amqp.delete_queue(
            part(request, "vhost"),
            part(request, "name"),
            if_unused=query_flag(request, "if-unused"),
            if_empty=query_flag(request, "if-empty"),
        )
        return done()

    async def purge(self, request: Request) -> Response:
        """Settle all that waits in a queue."""
        self._desk.amqp.purge(part(request, "vhost"), part(request, "name"))
        return done()

    async def get(self, request: Request) -> Response:
        """Messages from the head of a queue."""
        body = await json_body(request)
        need(body, "count", "ackmode", "encoding")
        count, mode, encoding = number(body, "count"), body["ackmode"], body["encoding"]
        if mode not in get_args(AckMode):
            raise BadRequest("unknown_ackmode", mode)
        if encoding not in get_args(Encoding):
            raise BadRequest("Unsupported encoding. Please use auto or base64.")
        truncate = number(body, "truncate") if "truncate" in body else None
        rows = await self._desk.amqp.get(
            part(request, "vhost"), part(request, "name"), count, mode, encoding, truncate
        )
        return answer(rows)

    # -- bindings

    async def bindings(self, request: Request) -> Response:
        """Bindings, of one virtual host or of all."""
        return await many(request, self._desk.amqp.bindings(self._vhost(request)))

    async def _bindings_of(self, request: Request, source: str | None, to: End | None) -> Response:
        vhost = part(request, "vhost")
        return await many(request, self._desk.amqp.bindings_of(vhost, source=source, to=to))

    async def bindings_from(self, request: Request) -> Response:
        """What leaves an exchange."""
        return await self._bindings_of(request, exchange_part(request), None)

    async def bindings_to_exchange(self, request: Request) -> Response:
        """What leads to an exchange."""
        return await self._bindings_of(request, None, ("exchange", exchange_part(request)))

    async def bindings_to_queue(self, request: Request) -> Response:
        """What leads to a queue."""
        return await self._bindings_of(request, None, ("queue", part(request, "name")))

    async def bindings_between(self, request: Request) -> Response:
        """What leads from an exchange to something."""
        return await self._bindings_of(request, exchange_part(request, "source"), _end(request))

    async def bind(self, request: Request) -> Response:
        """Bind two ends."""
        body = await json_body(request)
        key = await self._desk.amqp.bind(
            part(request, "vhost"),
            exchange_part(request, "source"),
            _end(request),
            _short(text(body, "routing_key"), "routing_key"),
            arguments(body),
        )
        # Relative to the path, which ends with the destination; escaped once more, for a path.
        location = f"{request.path_params['destination']}/{quote(key, safe='~')}"
        return Response(status_code=201, headers={"location": location})

    async def binding(self, request: Request) -> Response:
        """One binding."""
        return one(
            request,
            self._desk.amqp.binding(
                part(request, "vhost"),
                exchange_part(request, "source"),
                _end(request),
                part(request, "key"),
            ),
        )

    async def unbind(self, request: Request) -> Response:
        """Remove a binding."""
        await self._desk.amqp.unbind(
            part(request, "vhost"),
            exchange_part(request, "source"),
            _end(request),
            part(request, "key"),
        )
        return done()


def _end(request: Request) -> End:
    kind = request.path_params["kind"]
    if kind == "q":
        return "queue", part(request, "destination")
    if kind == "e":
        return "exchange", exchange_part(request, "destination")
    raise NotFound("a binding leads to q, a queue, or e, an exchange")


def _short(value: str, name: str) -> str:
    if len(value.encode("utf-8", "surrogatepass")) > _TEXT_BYTES_MAX:
        raise BadRequest("longer_than_255_bytes", name)
    return value


def _properties(given: Any) -> dict[str, Any]:
    """Properties of a message, each of its kind. Raises BadRequest."""
    if not isinstance(given, dict):
        raise BadRequest("not_an_object", "properties")
    for name, most in _NUMBERS.items():
        value = given.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest("not_int", name)
        if not 0 <= value <= most:
            raise BadRequest("out_of_range", name)
    for name in _TEXTS:
        _short(text(given, name), name)
    headers = given.get("headers") or {}
    if not isinstance(headers, dict):
        raise BadRequest("not_an_object", "headers")
    return {**given, "headers": headers}


def _payload(body: dict[str, Any]) -> bytes:
    payload, encoding = body["payload"], body["payload_encoding"]
    if not isinstance(payload, str):
        raise BadRequest("payload_not_string")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise BadRequest("unsupported_encoding", encoding)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("not_base64", payload[:100]) from None
