"""connection.blocked and connection.unblocked: what a client hears while it is not read.

Rules: several reasons may hold at once. A client that announced the capability gets a message when
the first reason comes, and when the last one is gone. Any other client sees only that nothing is
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection


def tell_blocked(connection: Connection, by: str, why: str) -> None:
    """Publishes of the peer are not taken for this reason."""
    if not connection.blocked_by:
        connection.hub.counters.blocked += 1
        if connection.is_able("connection.blocked"):
            connection.send(0, commands.Connection.Blocked(reason=why[:200]))
    connection.blocked_by |= {by}


def tell_unblocked(connection: Connection, by: str) -> None:
    """This reason is gone."""
    before, connection.blocked_by = connection.blocked_by, connection.blocked_by - {by}
    if before and not connection.blocked_by and connection.is_able("connection.blocked"):
        connection.send(0, commands.Connection.Unblocked())
