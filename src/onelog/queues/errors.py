"""What queues refuse, beside the errors of `base`.

Rules: each class says what is wrong, not how a protocol reports it. A protocol has a row for each
in its own table (AMQP: `protocols/amqp/errors.py`); where it has none, the row of the parent class
counts.
"""

from __future__ import annotations

from onelog.base.errors import Conflict, InvalidRequest, NotFound


class NotDeclared(NotFound):
    """The virtual host has no queue or exchange of this name."""


class QueueLocked(Conflict):
    """The queue belongs to another connection as long as that one stays."""


class NotSupported(InvalidRequest):
    """A queue of this type cannot do that."""


class UnknownExchangeType(InvalidRequest):
    """There is no such type of exchange."""
