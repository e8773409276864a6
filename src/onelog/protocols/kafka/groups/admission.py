"""Whether a group accepts a member that asks to join: its bounds and its protocols decide."""

from __future__ import annotations

from onelog.config.kafka import KafkaGroups
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.groups.answers import Joining
from onelog.protocols.kafka.groups.members import Members


def refusal(
    asked: Joining,
    members: Members,
    protocol_type: str | None,
    settings: KafkaGroups,
    *,
    is_preparing: bool,
) -> ErrorCode:
    """Why a member may not join; `none`: it may."""
    if not _has_room(asked, members, settings, is_preparing=is_preparing):
        return ErrorCode.group_max_size_reached
    if not _speaks(asked, members, protocol_type):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none


def _has_room(
    asked: Joining, members: Members, settings: KafkaGroups, *, is_preparing: bool
) -> bool:
    limit = settings.members
    member = members.by_id.get(asked.member_id)
    size_bytes = members.size_bytes - (0 if member is None else member.size_bytes)
    if size_bytes + asked.size_bytes > settings.group_bytes:
        return False
    if not asked.member_id and len(members.invited) >= limit:
        return False
    if is_preparing:  # the first ones get the places
        return members.joining < limit or (member is not None and member.joining is not None)
    return member is not None or len(members) < limit


def _speaks(asked: Joining, members: Members, protocol_type: str | None) -> bool:
    """Whether the member offers a protocol that all others offer too."""
    names = {name for name, _metadata in asked.protocols}
    if not names or not asked.protocol_type:
        return False
    if not len(members):
        return True
    static_id = members.by_instance.get(asked.instance_id or "", asked.member_id)
    member = members.by_id.get(asked.member_id or static_id)
    return asked.protocol_type == protocol_type and members.speak(names, member)
