"""DescribeAcls, CreateAcls and DeleteAcls: OneLog has no access lists, and answers so.

Rules: the answer is SECURITY_DISABLED, as from a Kafka without an authorizer, so that a tool knows
that there is nothing to compare or copy, and does not take the answer for an empty list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.request import Request

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_DISABLED: Final[Body] = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "there are no access lists here: every user who is let in may do everything",
}


async def describe_acls(hub: Hub, request: Request) -> Body:
    """There is no list."""
    del hub, request
    return _DISABLED


async def create_acls(hub: Hub, request: Request) -> Body:
    """Refuse each."""
    del hub
    return {"results": [_DISABLED] * len(request.body.creations)}


async def delete_acls(hub: Hub, request: Request) -> Body:
    """Refuse each."""
    del hub
    return {"filter_results": [_DISABLED] * len(request.body.filters)}
