"""The access list: the rules of the metadata store, and the answers of every protocol's questions.

Rules:
- The rules are a projection of the store (`metadata/projection.py`): they are changed by the watch
  only, and apply as soon as a command on them returns. While the store cannot be reached, the last
  known rules count.
- A rule that changes is taken in by itself. A change of more rules than a transaction of the store
  takes is written in parts: first what comes, then what goes. So between two parts nobody may do
  what he may do neither before nor after, and the list is not empty in between.
- Answers are remembered, up to `ANSWERS_MAX`, until a rule or a user changes. Then `on_change`
  is called, so that protocols forget what they remember.
- `LOCAL`, the broker itself, may do everything: nobody locks himself out of `onelog acl`. A user
  who is an administrator has the rights to the server that no rule takes away.
- Without rules everything is open but the audit trail: only administrators read it then.
- Where a rule cannot be read, only `LOCAL` may do anything: that rule might forbid it (I9).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidName,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OnelogError,
)
from onelog.base.limits import ACCESS_RULES_MAX
from onelog.base.topics import AUDIT_ROOT, is_audit
from onelog.metadata.parts import in_parts
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Delete, Entry, MetadataStore, Op, Put
from onelog.observe import Sample, Troubles
from onelog.security.access.judging import AccessJudge, Verdict, selectors_of
from onelog.security.access.rules import Rule, check_rule
from onelog.security.identity import ANONYMOUS_NAME
from onelog.security.principals import LOCAL, Action, Kind, Principal

PREFIX: Final = "access/"
ANSWERS_MAX: Final = 200_000
"""Answers that are remembered, of all principals together."""
DROPPED_AT_ONCE: Final = 5_000
"""Forgotten answers that are freed in one pass of the loop."""
UNREADABLE: Final = "access-rule"
"""Standing: a rule cannot be read, so nothing is allowed."""
LISTENER: Final = "access-listener"
"""Incidents: a protocol raised when rules changed."""
PART_RULES: Final = 64
"""Rules of a part, where a change is written in parts: each is soon taken in."""
_TRIES: Final = 10
_READS: Final = frozenset({Action.SUBSCRIBE, Action.DELIVER, Action.DESCRIBE})

Answers = dict[tuple[Principal, str, Action, Kind], bool]


class UserGroups(Protocol):
    """Who knows the users: the authenticator."""

    def groups_of(self, name: str) -> Sequence[str]:
        """The groups of a user."""
        ...

    def is_administrator(self, name: str) -> bool:
        """Whether a user is an administrator."""
        ...

    def on_change(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call a listener with the name of each user that changes."""
        ...


class AccessList:
    """Who may do what. Made by `open`, ended by `close`. An `Authorizer` of the door."""

    def __init__(
        self, store: MetadataStore, clock: Clock, troubles: Troubles | None = None
    ) -> None:
        self._troubles = troubles or Troubles(clock)
        self._rows = Projection(store, PREFIX, _decode, self._troubles, self._changed)
        self._judge = AccessJudge()
        self._unreadable: set[str] = set()
        self._is_open = True
        self._known: Answers = {}
        self._stale: list[Answers] = []
        """Answers that were forgotten, and are not freed yet."""
        self.on_change: list[Callable[[], None]] = []
        """Called when answers may have changed."""
        self.groups_of: Callable[[str], Sequence[str]] = lambda _name: ()
        """The groups of a user, by name."""
        self.is_administrator: Callable[[str], bool] = lambda _name: False
        """Whether a user is an administrator, by name."""

    def know_users(self, users: UserGroups) -> None:
        """AccessJudge by the groups of these users, and anew when one of them changes."""
        self.groups_of = users.groups_of
        self.is_administrator = users.is_administrator
        users.on_change(lambda _name: self.forget())

    async def open(self) -> None:
        """Load the rules and follow their changes."""
        await self._rows.open()

    async def close(self) -> None:
        """Follow no more; the store stays open. Idempotent."""
        await self._rows.close()

    # -- the door's questions

    @property
    def checks_delivery(self) -> bool:
        """Whether deliveries are to be asked for: not while there is no rule."""
        return not self._is_open

    @property
    def tells_clients_apart(self) -> bool:
        """Whether an answer may depend on the client id."""
        return self._judge.tells_clients_apart

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        """Whether the principal may do this to a topic, filter, cursor or the server."""
        if self._is_open:
            return not resource.startswith(AUDIT_ROOT) or self._may_audit(
                principal, action, resource, kind
            )
        asked = (principal, resource, action, kind)
        answer = self._known.get(asked)
        if answer is None:
            if len(self._known) >= ANSWERS_MAX:
                self._forget()
            answer = self.explain(principal, action, resource, kind).allowed
            self._known[asked] = answer
        return answer

    def denies(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        """Whether a rule forbids this; of a topic: for it, or for a part of a filter."""
        if self.allows(principal, action, resource, kind):
            return False
        found = self.explain(principal, action, resource, kind)
        return bool(self._unreadable) or found.rule is not None

    def explain(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> Verdict:
        """The same, and the rule that says so."""
        if principal == LOCAL:
            return Verdict(True)
        if not self._may_audit(principal, action, resource, kind):
            return Verdict(False)
        if self._is_open:
            return Verdict(True)
        if self._unreadable:
            return Verdict(False)
        selectors = selectors_of(principal, self.groups_of(principal.name))
        try:
            found = self._judge.judge(principal, selectors, action, resource, kind)
        except InvalidName:  # a topic that no rule can name
            return Verdict(False)
        if kind is Kind.SERVER and found.rule is None and principal.name != ANONYMOUS_NAME:
            return Verdict(self.is_administrator(principal.name))
        return found

    def _may_audit(self, principal: Principal, action: Action, resource: str, kind: Kind) -> bool:
        """Whether nothing forbids what rules do not decide: the audit trail is written by nobody,
        and read by administrators while there are no rules."""
        if kind is not Kind.TOPIC or not is_audit(resource) or principal == LOCAL:
            return True
        if action not in _READS:
            return False
        return not self._is_open or self.is_administrator(principal.name)

    def forget(self) -> None:
        """Answers may have changed: a user did."""
        self._forget()
        self._troubles.tell(LISTENER, self.on_change)

    def _forget(self) -> None:
        known, self._known = self._known, {}
        if len(known) > DROPPED_AT_ONCE:
            self._stale.append(known)
            asyncio.get_running_loop().call_soon(self._drop_some)

    def _drop_some(self) -> None:
        """Free answers that count no more, some in each pass: many would hold the loop."""
        if not self._stale:
            return
        answers = self._stale[-1]
        for _ in range(min(DROPPED_AT_ONCE, len(answers))):
            answers.popitem()
        if not answers:
            self._stale.pop()
        asyncio.get_running_loop().call_soon(self._drop_some)

    # -- the rules

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule, in its order."""
        return self._judge.rules

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The ids of rules that cannot be read."""
        return tuple(sorted(self._unreadable))

    async def add(self, rule: Rule) -> Rule:
        """Keep a rule, durably; it applies when this returns. An empty id gets a number."""
        return (await self.change(add=(rule,)))[0]

    async def remove(self, name: str) -> None:
        """Take a rule away, durably; it no longer applies when this returns. Raises NotFound."""
        await self.change(remove=(name,))

    async def change(
        self, add: Sequence[Rule] = (), remove: Iterable[str] = (), *, may_open: bool = True
    ) -> tuple[Rule, ...]:
        """Take rules away and keep others; those that were kept.

        All of it or nothing, if one transaction of the store takes it, else in parts.
        Raises NotFound for a rule that is not there, and AlreadyExists for an id that is taken.
        Without `may_open`, raises InvalidRequest if no rule would be left: that opens everything,
        and one who takes a right away does not expect it.
        """
        gone = tuple(dict.fromkeys(remove))
        for _try in range(_TRIES):
            kept = await self._numbered(add, gone)
            if gone and not kept and not may_open and len(self._rows) == len(gone):
                raise InvalidRequest(
                    "these are the last access rules, and without rules everything is open; add"
                    " another rule first, or remove them by `onelog acl remove`"
                )
            renewed = {rule.id for rule in kept}
            ops: list[Op] = [Put(PREFIX + rule.id, msgspec.json.encode(rule)) for rule in kept]
            ops += [Delete(PREFIX + name) for name in gone if name not in renewed]
            written = 0
            try:
                for part in _parts(ops):
                    await self._rows.write(part)
                    written += len(part)
            except Conflict:  # another changed the same rules meanwhile
                if not written:
                    continue
                raise Conflict(
                    f"another command changed the same rules, after {written} of {len(ops)} rules"
                    " were written; look at the list and try again"
                ) from None
            return kept
        raise Conflict("other commands change the rules all the time; try again")

    async def _numbered(self, add: Sequence[Rule], gone: tuple[str, ...]) -> tuple[Rule, ...]:
        """The rules to keep, each with its id; raises where that cannot be."""
        for name in gone:
            if self._rows.get(PREFIX + name) is None:
                raise NotFound(f"there is no rule {name[:80]!r}; `onelog acl list` shows all rules")
        odd = [int(name) for name in self._unreadable if name.isdigit()]
        numbers = itertools.count(max((self._judge.highest_number, *odd)) + 1)
        going = set(gone)  # a rule that goes may come again, changed
        kept: dict[str, Rule] = {}
        for at, rule in enumerate(add, 1):
            known = rule if rule.id else msgspec.structs.replace(rule, id=str(next(numbers)))
            is_there = self._rows.get(PREFIX + known.id) is not None
            if known.id in kept or (is_there and known.id not in going):
                raise AlreadyExists(f"there is a rule {known.id!r} already; remove it first")
            kept[known.id] = check_rule(known)
            if not at % PART_RULES:
                await asyncio.sleep(0)
        if kept and len(self._rows) + len(kept) - len(gone) > ACCESS_RULES_MAX:
            raise LimitExceeded(f"there are {ACCESS_RULES_MAX} access rules at most; remove some")
        return tuple(kept.values())

    def samples(self) -> tuple[Sample, ...]:
        """Numbers for the metrics."""
        return (Sample("onelog_access_rules", "Access rules.", "gauge", len(self._judge)),)

    # -- what the store says

    def _changed(self, changes: Sequence[Change[Rule | None]]) -> None:
        for key, before, after in changes:
            if before is not None:
                self._judge.remove(before)
            if after is not None:
                self._judge.add(after)
            self._note_unreadable(key.removeprefix(PREFIX), is_readable=after is not None)
        self._is_open = not self._judge and not self._unreadable
        self._forget()
        self._troubles.tell(LISTENER, self.on_change)

    def _note_unreadable(self, name: str, *, is_readable: bool) -> None:
        if is_readable or self._rows.get(PREFIX + name) is None:
            if name in self._unreadable:
                self._unreadable.discard(name)
                self._troubles.clear(UNREADABLE, name)
        elif name not in self._unreadable:
            self._unreadable.add(name)
            self._troubles.stand(
                UNREADABLE,
                name,
                f"the access rule {name} cannot be read, so everything is denied; `onelog acl"
                f" remove {name}` removes it",
                blocks=False,
            )


def _parts(ops: list[Op]) -> Iterator[list[Op]]:
    """What is written together: everything, if one transaction takes it."""
    parts = list(in_parts(ops))
    for part in parts:
        size = len(part) if len(parts) == 1 else PART_RULES
        yield from (part[at : at + size] for at in range(0, len(part), size))


def _decode(entry: Entry) -> Rule | None:
    """The rule of an entry; None: it cannot be read."""
    try:
        return check_rule(msgspec.json.decode(entry.value, type=Rule))
    except (msgspec.MsgspecError, OnelogError):
        return None
