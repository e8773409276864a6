"""DescribeAcls, CreateAcls and DeleteAcls: the one access list, by Kafka's tools.

Rules:
- An administrator of the access list changes ACLs (`admin` on the server); the first one is for
  administrators among the users. That is asked once for a request, because its first ACL may take
  the right away.
- An ACL that is there already is not made again. A rule that says more than the ACLs that are
  deleted keeps the rest.
- Where the program that runs the broker decides by itself, there is no list: SECURITY_DISABLED, as
  a Kafka without an authorizer says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onelog.base.errors import OnelogError
from onelog.broker import Action
from onelog.protocols.kafka.admin.acl_forms import ANY_HOST, Acl, Choice, acls_of, rule_of, without
from onelog.protocols.kafka.admin.resources import check_cluster, check_keeper
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.turns import RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub
    from onelog.security.access.listing import AccessList
    from onelog.security.access.rules import Rule

PART = "access"
"""What administrators of the list need the right to."""
AT_ONCE = 100
"""ACLs that are made by one write: the store has a bound for it."""


def _access(hub: Hub, request: Request, *, to_see: bool = False) -> AccessList:
    """The list, for a client that may see or change it. Raises KafkaError."""
    access = hub.broker.access
    if hub.broker.authorizer is not access:
        raise KafkaError(
            ErrorCode.security_disabled, "the program that runs this broker decides who may do what"
        )
    if to_see:
        check_cluster(hub, request, PART, to_see=True)
    else:
        check_keeper(hub, request, PART)
    return access


def _told(error: OnelogError | None) -> Body:
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": code_of(error), "error_message": str(error)}


def _row(acl: Acl) -> Body:
    return {
        "principal": acl.principal,
        "host": ANY_HOST,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def _place(acl: Acl) -> Body:
    return {
        "resource_type": int(acl.resource),
        "resource_name": acl.name,
        "pattern_type": int(acl.pattern),
    }


# -- describing


async def describe_acls(hub: Hub, request: Request) -> Body:
    """The ACLs that a filter chooses, by resource."""
    try:
        access = _access(hub, request, to_see=True)
    except KafkaError as error:
        return _told(error)
    wanted = Choice.of(request.body)
    found: dict[tuple[int, str, int], dict[Acl, None]] = {}
    async for rule in RequestTurns().timed(access.rules):
        for acl, _selector, _actions in acls_of(rule):
            if wanted.takes(acl):
                found.setdefault(acl[:3], {})[acl] = None
    resources = [
        {**_place(next(iter(acls))), "acls": [_row(acl) for acl in acls]} for acls in found.values()
    ]
    return {**_told(None), "resources": resources}


# -- creating


async def create_acls(hub: Hub, request: Request) -> Body:
    """Each ACL is a rule of its own; those that can be made are made `AT_ONCE` together."""
    creations = request.body.creations
    try:
        access = _access(hub, request)
    except KafkaError as error:
        return {"results": [_told(error)] * len(creations)}
    turns = RequestTurns()
    known = {acl async for rule in turns.timed(access.rules) for acl, *_rest in acls_of(rule)}
    new: dict[Acl, Rule] = {}
    results: list[OnelogError | None] = []
    async for row in turns.timed(creations):
        try:
            acl, rule = rule_of(row)
        except OnelogError as error:
            results.append(error)
            continue
        results.append(None)
        if acl not in known:
            new[acl] = rule
    made = tuple(new.values())
    try:
        for at in range(0, len(made), AT_ONCE):
            await access.change(made[at : at + AT_ONCE])
    except OnelogError as error:
        results = [row or error for row in results]
    return {"results": [_told(row) for row in results]}


# -- deleting


async def delete_acls(hub: Hub, request: Request) -> Body:
    """The ACLs that each filter chooses go."""
    filters = request.body.filters
    try:
        access = _access(hub, request)
    except KafkaError as error:
        return {"filter_results": [{**_told(error), "matching_acls": []}] * len(filters)}
    results = []
    async for row in RequestTurns().over(filters):
        try:
            gone = await _delete(access, Choice.of(row))
            matching = [{**_told(None), **_place(acl), **_row(acl)} for acl in gone]
            results.append({**_told(None), "matching_acls": matching})
        except OnelogError as error:
            results.append({**_told(error), "matching_acls": []})
    return {"filter_results": results}


async def _delete(access: AccessList, wanted: Choice) -> list[Acl]:
    """Take the ACLs away that are chosen, some of them by each write: the store has a bound for it.

    What allows goes first: between two writes nobody may do more than before or after.
    """
    gone: dict[Acl, None] = {}
    steps: list[tuple[Rule, list[Rule]]] = []
    for rule in access.rules:
        said = dict(_chosen(rule, wanted))
        if said and rule.resource == "cursor:*":
            raise KafkaError(
                ErrorCode.policy_violation,
                f"the rule {rule.id} ({rule.text}) is about queues and sessions, too; change it by"
                " `onelog acl`",
            )
        if said:
            gone.update(dict.fromkeys(said))
            parts = {part for each in said.values() for part in each}
            steps.append((rule, list(without(rule, parts))))
    if steps and len(steps) == len(access.rules) and not any(kept for _rule, kept in steps):
        raise KafkaError(  # as `change` says it, but before any is gone
            ErrorCode.invalid_request,
            "these are the last access rules, and without rules everything is open; add another"
            " rule first, or remove them by `onelog acl remove`",
        )
    steps.sort(key=lambda step: step[0].effect != "allow")
    while steps:
        some, steps = steps[: AT_ONCE // 2], steps[AT_ONCE // 2 :]
        kept = [rule for _rule, rules in some for rule in rules]
        await access.change(kept, [rule.id for rule, _rules in some], may_open=False)
    return list(gone)


def _chosen(rule: Rule, wanted: Choice) -> Iterator[tuple[Acl, list[tuple[str, Action]]]]:
    for acl, selector, actions in acls_of(rule):
        if wanted.takes(acl):
            yield acl, [(selector, action) for action in actions]
