"""One request of a control API, as its handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from onelog.protocols.kafka.apis import Api
from onelog.protocols.kafka.codec import Body

if TYPE_CHECKING:
    from onelog.protocols.kafka.connection import Connection
    from onelog.protocols.kafka.hub import Hub


class Request:
    """A typed request and its connection."""

    __slots__ = ("api", "body", "client_id", "codes", "connection", "correlation_id", "version")

    def __init__(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str,
        body: Any,
        connection: Connection,
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body
        self.connection = connection
        self.codes: list[int] = []
        """The error codes of an answer that the handler encoded itself: the audit trail asks."""


Handler = Callable[["Hub", Request], Awaitable[Body | bytes | None]]
"""Serves one request; None sends no answer, bytes are an encoded body."""
