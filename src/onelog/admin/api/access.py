"""Operations on access rules: list, search, add, replace, remove; and the tester.

Rules: rules are written as `onelog acl` writes them. They apply to open connections when the answer
is sent. The last rule goes only for one who says that everything may be open then.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    ADMIN,
    NOTHING,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import Page, SearchQuery, choose, contains, full_page
from onelog.base.errors import Conflict, NotFound
from onelog.security.access.commands import AddRule, TestRules, ask, asked_rule
from onelog.security.access.judging import Verdict
from onelog.security.access.listing import AccessList
from onelog.security.access.rules import RULE_SELECTORS_MAX, Rule

TAG = "access"

Selector = Annotated[str, Meta(min_length=1, max_length=600)]
RuleName = Annotated[str, Meta(max_length=64)]
Resource = Annotated[str, Meta(min_length=1, max_length=65_600)]


class AccessState(msgspec.Struct, frozen=True, kw_only=True):
    """The access list as a whole."""

    open: bool
    """Whether everybody who is let in may do everything, because there is no rule."""
    rules: int
    unreadable: list[str]
    """Names of rules that cannot be read: nothing is allowed until they are removed."""


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule."""

    id: str
    effect: Literal["allow", "deny"]
    who: tuple[str, ...]
    actions: tuple[str, ...]
    resource: str
    """`topic:FILTER`, `prefix:TEXT`, `cursor:PATTERN` or `server:PATTERN`."""
    note: str
    text: str
    """The rule in one line."""


class RuleFields(ApiInput, frozen=True, kw_only=True):
    """What a rule says."""

    effect: Literal["allow", "deny"]
    who: Annotated[tuple[Selector, ...], Meta(min_length=1, max_length=RULE_SELECTORS_MAX)]
    """`user:NAME`, `group:NAME`, `certificate:NAME`, `claim:NAME=VALUE`, `anonymous` or
    `everyone`."""
    actions: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=20)], ...],
        Meta(min_length=1, max_length=10),
    ]
    """`publish`, `subscribe`, `create`, `configure`, `delete`, `consume`, `describe`, `admin`; or
    `all` alone."""
    resource: Resource
    """`topic:FILTER`, `prefix:TEXT`, `cursor:PATTERN` (as in `cursor:group/*`) or `server`."""
    note: Annotated[str, Meta(max_length=200)] = ""


class NewRule(RuleFields, frozen=True, kw_only=True):
    """A rule to be made."""

    id: RuleName = ""
    """Empty: the next number."""


class RemoveQuery(ApiInput, frozen=True, kw_only=True):
    """How a rule goes."""

    may_open: Annotated[
        bool, Meta(description="Whether it may be the last rule: without rules, all is open.")
    ] = False


class AccessQuestion(ApiInput, frozen=True, kw_only=True):
    """May somebody do something?"""

    who: Selector
    """`user:NAME`, `certificate:NAME` or `anonymous`."""
    action: Annotated[str, Meta(min_length=1, max_length=20)]
    resource: Resource
    """`topic:TOPIC`, `topic:FILTER`, `cursor:NAME` (as in `cursor:group/billing`) or `server`."""
    client_id: Annotated[str, Meta(max_length=65_535)] = ""
    """The MQTT client id, where rules have `%c`."""
    claims: Annotated[tuple[Selector, ...], Meta(max_length=100)] = ()
    """`NAME=VALUE` of its token."""


class AccessAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, and the rule that decides."""

    allowed: bool
    rule: AccessRule | None
    """null: no rule says it; `reason` says why it is so."""
    reason: str


class GroupShown(msgspec.Struct, frozen=True, kw_only=True):
    """A group of users: users are in it, or a rule names it."""

    name: str
    users: list[str]
    rules: list[str]
    """The rules that name it."""


class AccessOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        many, one = "/access/rules", "/access/rules/{rule}"
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/access", role=VIEWER, tag=TAG,
                summary="Whether there are access rules, or everything is open.",
                answer=AccessState, handler=self.state,
            ),
            ApiOperation(
                method="GET", path=many, role=ADMIN, tag=TAG,
                summary="Access rules in their order; searched by name, who, resource and note.",
                query=SearchQuery, answer=Page[AccessRule], handler=self.rules,
            ),
            ApiOperation(
                method="POST", path=many, role=ADMIN, tag=TAG,
                summary="Make a rule; it applies at once, to open connections too.", body=NewRule,
                answer=AccessRule, status=201, handler=self.add,
            ),
            ApiOperation(
                method="GET", path=one, role=ADMIN, tag=TAG, summary="One rule.",
                answer=AccessRule, handler=self.rule,
            ),
            ApiOperation(
                method="PUT", path=one, role=ADMIN, tag=TAG,
                summary="Replace a rule in one step.", body=RuleFields, answer=AccessRule,
                handler=self.replace,
            ),
            ApiOperation(
                method="DELETE", path=one, role=ADMIN, tag=TAG,
                summary="Remove a rule; it no longer applies when this is answered.",
                query=RemoveQuery, answer=NOTHING, status=204, handler=self.remove,
            ),
            ApiOperation(
                method="POST", path="/access/test", role=ADMIN, tag=TAG,
                summary="May X do Y on Z, and which rule says so? Changes nothing.",
                body=AccessQuestion, answer=AccessAnswered, handler=self.test,
            ),
            ApiOperation(
                method="GET", path="/access/groups", role=ADMIN, tag=TAG,
                summary="Groups of users by name: who is in them, which rules name them.",
                query=SearchQuery, answer=Page[GroupShown], handler=self.groups,
            ),
        ]  # fmt: skip
        return rows

    @property
    def _access(self) -> AccessList:
        return self._desk.broker.access

    async def state(self, _call: ApiCall[NoQuery, None]) -> AccessState:
        """The access list as a whole."""
        access = self._access
        return AccessState(
            open=not access.checks_delivery,
            rules=len(access.rules),
            unreadable=list(access.unreadable),
        )

    async def rules(self, call: ApiCall[SearchQuery, None]) -> Page[AccessRule]:
        """A page of rules."""
        query = call.query
        found = await choose(
            self._desk.share,
            self._access.rules,
            query,
            lambda row: row.order,
            kind=tuple[int, str],
            wanted=lambda row: contains(query.search, row.id, row.text, row.note),
        )
        # The key of a page is the rule's own order, which a shown row has not.
        page = full_page(query, found, lambda row: row.order)
        return Page(items=[_shown(row) for row in page.items], next_cursor=page.next_cursor)

    async def rule(self, call: ApiCall[NoQuery, None]) -> AccessRule:
        """One rule."""
        return _shown(self._find(call.names["rule"]))

    def _find(self, name: str) -> Rule:
        for row in self._access.rules:
            if row.id == name:
                return row
        raise NotFound(f"there is no rule {name[:80]!r}; GET /api/v1/access/rules lists them")

    async def add(self, call: ApiCall[NoQuery, NewRule]) -> AccessRule:
        """Make a rule."""
        if call.caller.proof == "anonymous":
            # Afterwards nobody could change the list over the API.
            raise Conflict(
                "from the first rule on, only an administrator who logs in changes anything here:"
                " make one first (POST /api/v1/users with the role admin, or"
                " `onelog user add NAME --administrator`), or use `onelog acl add`"
            )
        return _shown(await self._access.add(_rule(call.body, call.body.id)))

    async def replace(self, call: ApiCall[NoQuery, RuleFields]) -> AccessRule:
        """Replace a rule."""
        name = call.names["rule"]
        made = _rule(call.body, self._find(name).id)
        (kept,) = await self._access.change((made,), (name,))
        return _shown(kept)

    async def remove(self, call: ApiCall[RemoveQuery, None]) -> None:
        """Take a rule away."""
        name, access = call.names["rule"], self._access
        left = len(access.rules) + len(access.unreadable)
        if name not in access.unreadable:
            self._find(name)
        if left == 1 and not call.query.may_open:
            raise Conflict(
                f"{name!r} is the last access rule, and without rules everything is open: add"
                " another rule first, or ask with ?may_open=true"
            )
        await access.change(remove=(name,), may_open=call.query.may_open)

    async def test(self, call: ApiCall[NoQuery, AccessQuestion]) -> AccessAnswered:
        """Judge whether somebody may do something."""
        body, access = call.body, self._access
        verdict = ask(
            access,
            TestRules(
                who=body.who,
                action=body.action,
                resource=body.resource,
                client_id=body.client_id,
                claims=body.claims,
            ),
        )
        return AccessAnswered(
            allowed=verdict.allowed,
            rule=None if verdict.rule is None else _shown(verdict.rule),
            reason=_reason(access, verdict, body.who),
        )

    async def groups(self, call: ApiCall[SearchQuery, None]) -> Page[GroupShown]:
        """A page of groups."""
        users: dict[str, list[str]] = {}
        rules: dict[str, list[str]] = {}
        for user in await self._desk.opened.authenticator.users.infos():
            for name in user.groups:
                users.setdefault(name, []).append(user.name)
            await self._desk.share.breathe()
        for rule in self._access.rules:
            for selector in rule.who:
                kind, _, name = selector.partition(":")
                if kind == "group":
                    rules.setdefault(name, []).append(rule.id)
            await self._desk.share.breathe()
        query = call.query
        names = await choose(
            self._desk.share,
            [*users, *(name for name in rules if name not in users)],
            query,
            lambda name: name,
            kind=str,
            wanted=lambda name: contains(query.search, name),
        )
        rows = [
            GroupShown(name=name, users=users.get(name, []), rules=rules.get(name, []))
            for name in names
        ]
        return full_page(query, rows, lambda row: row.name)


def _rule(given: RuleFields, name: str) -> Rule:
    return asked_rule(
        AddRule(
            effect=given.effect,
            who=given.who,
            actions=",".join(given.actions),
            resource=given.resource,
            name=name,
            note=given.note,
        )
    )


def _shown(rule: Rule) -> AccessRule:
    return AccessRule(
        id=rule.id,
        effect=rule.effect,
        who=rule.who,
        actions=tuple(str(action) for action in rule.actions),
        resource=rule.resource,
        note=rule.note,
        text=rule.text,
    )


def _reason(access: AccessList, verdict: Verdict, who: str) -> str:
    if verdict.rule is not None:
        return f"rule {verdict.rule.id} says so: {verdict.rule.text}"
    if access.unreadable:
        return f"rule {access.unreadable[0]} cannot be read, so nothing is allowed"
    if verdict.allowed:
        return (
            f"{who} is an administrator, and no rule takes the server away"
            if access.checks_delivery
            else "there are no rules: everybody who is let in may do everything"
        )
    return "no rule allows it"
