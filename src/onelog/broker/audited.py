"""What the audit trail says of a request: its fields without secrets, and commands that are noted.

Rules: a field is shown only if it is a plain value and its name says nothing of a secret or of a
message's content (`is_secret`): a field that is left out by mistake costs less than one that is
shown. A command that only reads is not noted; any other verb is, also one that is new here.
"""

from __future__ import annotations

import pwd
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from onelog.base.commands import Commands, Failure
from onelog.broker.audit import AuditSink, AuditTrail
from onelog.broker.audit_event import AuditEvent, Detail, Outcome, decode_event, encode_event
from onelog.metadata.store import MetadataStore

READING_VERBS: Final = frozenset({"list", "show", "test", "pass"})
"""Verbs of commands that change nothing; what is done with a pass, the admin API notes."""
_REFUSED: Final = frozenset({"NotAuthorized", "NotAuthenticated"})
_SECRET: Final = re.compile(
    r"pass|secret|token|credential|salt|hash|text|base64|value|payload|body"
)
_HINTED: Final = frozenset({"password"})
NOT_SHOWN: Final = "(not shown)"
"""What stands for one of `_HINTED`: that it was set is worth a record, what it is is not."""
_FOREIGN: Final = frozenset({"options"})
"""Fields in the words of other systems (`azure_storage_account_key`): nobody knows which of them
are secret."""
_NAMES: Final = ("name", "names", "id", "ids", "user", "label", "topic", "filter")
"""Fields that name the thing which a command is about, the best first."""


def is_secret(name: str) -> bool:
    """Whether a field is never shown."""
    return name == "key" or _SECRET.search(name.lower()) is not None


def shown_fields(fields: Mapping[str, Any]) -> dict[str, Detail]:
    """The fields of a request that the trail shows."""
    found: dict[str, Detail] = {}
    for name, value in fields.items():
        if name in _HINTED and isinstance(value, str):
            found[name] = NOT_SHOWN
            continue
        if is_secret(name) or name in _FOREIGN or value is None:
            continue
        if isinstance(value, str | int | bool):
            found[name] = value
        elif isinstance(value, list | tuple) and all(isinstance(row, str) for row in value):
            found[name] = list(value)
        elif isinstance(value, dict):
            found |= {f"{name}.{key}": row for key, row in shown_fields(value).items()}
    return found


class AuditedCommands:
    """Runs commands of the control socket, and notes those that change something."""

    def __init__(self, commands: Commands, sink: AuditSink) -> None:
        self._commands = commands
        self._sink = sink

    async def run(self, message: bytes, uid: int) -> bytes:
        """Run the command of a message that a process of this system user sent; its answer."""
        answer = await self._commands.run(message)
        event = command_event(message, answer, "control", uid)
        if event is not None:
            self._sink.write(event)
        return answer


def command_event(message: bytes, answer: bytes, door: str, uid: int) -> AuditEvent | None:
    """What a command did, by its message and its answer; None: it changes nothing."""
    try:
        fields = msgspec.json.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        fields = {}
    fields = fields if isinstance(fields, dict) else {}
    action = str(fields.pop("type", "") or "command.unknown")
    if action.partition(".")[2] in READING_VERBS:
        return None
    outcome, error, reason = _outcome(answer)
    detail = shown_fields(fields)
    return AuditEvent(
        door=door,
        actor=system_user(uid),
        action=action if _ACTION.fullmatch(action) else "command.unknown",
        resource=resource_of(fields),
        outcome=outcome,
        error=error,
        reason=reason,
        detail={name: value for name, value in detail.items() if name != "name"},
    )


_ACTION: Final = re.compile(r"[a-z][a-z0-9_-]{0,40}\.[a-z][a-z0-9_-]{0,40}")


def _outcome(answer: bytes) -> tuple[Outcome, str, str]:
    try:
        failure = msgspec.json.decode(answer, type=Failure)
    except msgspec.MsgspecError:
        return "ok", "", ""  # an answer without an error
    if not failure.error:
        return "ok", "", ""
    return "refused" if failure.error in _REFUSED else "failed", failure.error, failure.message


def resource_of(fields: Mapping[str, Any]) -> str:
    """The name of the thing that a request is about, as its fields say; empty: none does."""
    for name in _NAMES:
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value:
            return ",".join(map(str, value))
    return ""


def system_user(uid: int) -> str:
    """How the trail calls a user of the machine."""
    try:
        return f"system:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"system:{uid}"


# -- commands that run while no server does

_KEPT: Final = "audit/"


async def keep_event(store: MetadataStore, event: AuditEvent) -> None:
    """Keep an event in the store until a server writes it to the trail."""
    key = f"{_KEPT}{event.time_ms:015d}-{secrets.token_hex(4)}"
    await store.put(key, encode_event(event))


async def take_kept(store: MetadataStore, trail: AuditTrail) -> None:
    """Write the events that were kept, the oldest first, and forget them when they are durable."""
    found = (await store.range(_KEPT)).entries
    for entry in found:
        trail.take(decode_event(entry.value))
    if found:
        await trail.flush()
    for entry in found:
        await store.delete(entry.key)
