"""Commands on access rules: the messages that `onelog acl` sends, and the code that runs them.

Rules: the same message runs in a server, which gets it over its control socket, and on the data
directory of a stopped one; `base/commands.py` has the form.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.base.errors import InvalidName, InvalidRequest
from onelog.security.access.judging import Verdict
from onelog.security.access.listing import AccessList
from onelog.security.access.rules import (
    ACTIONS,
    ANONYMOUS,
    Rule,
    Target,
    check_rule,
    make_rule,
    parse_resource,
)
from onelog.security.identity import ANONYMOUS_NAME
from onelog.security.principals import Action, Principal

SUBJECT: Final = "acl"


class AddRule(msgspec.Struct, frozen=True, kw_only=True, tag="acl.add"):
    """Keep a rule, given as people write it."""

    effect: str
    who: tuple[str, ...]
    actions: str
    resource: str
    name: str = ""
    """Its id; empty: the next number."""
    note: str = ""


class RemoveRules(msgspec.Struct, frozen=True, kw_only=True, tag="acl.remove"):
    """Take rules away, all of them or none."""

    names: tuple[str, ...]


class ListRules(msgspec.Struct, frozen=True, kw_only=True, tag="acl.list"):
    """Show every rule."""


class TestRules(msgspec.Struct, frozen=True, kw_only=True, tag="acl.test"):
    """Ask whether somebody may do something, and which rule says so."""

    __test__ = False  # for pytest: this is no test

    who: str
    """`user:NAME`, `certificate:NAME` or `anonymous`."""
    action: str
    resource: str
    client_id: str = ""
    claims: tuple[str, ...] = ()


AccessCommand = AddRule | RemoveRules | ListRules | TestRules


class AccessAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a command."""

    rules: tuple[Rule, ...] = ()
    unreadable: tuple[str, ...] = ()
    verdict: Verdict | None = None
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


async def run_access_command(access: AccessList, message: bytes) -> bytes:
    """Run the command of a message; the message of its answer, also when it failed."""
    return await run_decoded(message, AccessCommand, partial(_run, access))


async def _run(access: AccessList, command: AccessCommand) -> AccessAnswer:
    match command:
        case AddRule():
            return AccessAnswer(rules=(await access.add(asked_rule(command)),))
        case RemoveRules():
            await access.change(remove=command.names)
            return AccessAnswer()
        case ListRules():
            return AccessAnswer(rules=access.rules, unreadable=access.unreadable)
        case TestRules():
            return AccessAnswer(verdict=ask(access, command), unreadable=access.unreadable)


def asked_rule(command: AddRule) -> Rule:
    """The rule that a command asks for. Raises InvalidName or InvalidRequest."""
    # An id is chosen when the rule is kept; until then any will do.
    rule = make_rule(
        command.effect,
        command.who,
        command.actions,
        command.resource,
        name=command.name or "0",
        note=command.note,
    )
    return msgspec.structs.replace(rule, id=command.name)


def ask(access: AccessList, command: TestRules) -> Verdict:
    """The answer to a question as people write it. Raises InvalidName or InvalidRequest."""
    target, resource = parse_resource(command.resource)
    if target is Target.PREFIX:
        raise InvalidRequest("ask for topic:TOPIC or topic:FILTER; only rules have prefixes")
    actions = {str(action): action for action in ACTIONS[target]}
    action = actions.get(command.action)
    if action is None:
        raise InvalidRequest(
            f"{command.action[:80]!r} is no action on a {target}: use {', '.join(actions)}"
        )
    _check_question(target, action, resource)
    return access.explain(
        principal_named(command.who, command.client_id, command.claims),
        action,
        resource,
        target.kind,
    )


def _check_question(target: Target, action: Action, resource: str) -> None:
    """Refuse a topic or name that nothing can have."""
    check_rule(
        Rule(
            id="0",
            effect="allow",
            who=(ANONYMOUS,),
            actions=(action,),
            target=target,
            pattern=resource,
        )
    )


def principal_named(who: str, client_id: str = "", claims: tuple[str, ...] = ()) -> Principal:
    """The principal of `user:NAME`, `certificate:NAME` or `anonymous`. Raises InvalidName."""
    kind, _, name = who.partition(":")
    if who == ANONYMOUS:
        return Principal(ANONYMOUS_NAME, "test", client_id)
    if kind not in ("user", "certificate") or not name:
        raise InvalidName(
            f"{who[:80]!r} names nobody who could ask: use user:NAME, certificate:NAME or anonymous"
        )
    return Principal(name, "test", client_id, kind == "certificate", claims)


def decode_access_answer(message: bytes) -> AccessAnswer:
    """The answer of a message. Raises the error that it reports."""
    return decoded(message, AccessAnswer)
