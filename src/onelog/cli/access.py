"""`onelog acl …`: access rules, in a running server or in the data directory of a stopped one.

Rules: modules that only these commands need are imported when one of them runs, so that other
commands start faster. `acl test` ends with 0 if the answer is yes, and with 1 if it is no.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from msgspec import to_builtins

from onelog.cli.api.showing import WHOLE, ListShown, Rows, show_list
from onelog.cli.api.table import NOUNS
from onelog.cli.places import Place
from onelog.cli.printable import json_text
from onelog.cli.reaching import RunOffline, reach
from onelog.cli.render import say
from onelog.cli.tables import columns
from onelog.cli.users import DEFAULT_DATA, DataOptions

if TYPE_CHECKING:
    from onelog.security.access.commands import AccessAnswer, AccessCommand
    from onelog.security.access.judging import Verdict

Json = Annotated[
    bool,
    Parameter(name="--json", negative=(), show_default=False, help="Print JSON, for programs."),
]
_COLUMNS = columns("id effect who:name actions:name resource:name note")
_NO_RULES = (
    "there are no rules: everybody who is let in may do everything; `onelog acl add` makes a rule,"
    " and from then on what no rule allows is denied"
)
_DENIED = 1


def build_access(run_offline: RunOffline | None) -> App:
    """The commands of `onelog acl`."""
    app = App(name="acl", help=NOUNS["acl"])

    def perform(options: DataOptions, command: AccessCommand) -> tuple[AccessAnswer, str]:
        assert run_offline is not None, "the command line was built without a store"
        return _perform(run_offline, options, command)

    @app.command
    def add(
        effect: str,
        who: str,
        actions: str,
        resource: str,
        /,
        *,
        name: Annotated[str, Parameter(help="The rule's name; else it gets a number.")] = "",
        note: Annotated[str, Parameter(help="Why the rule is there.")] = "",
        json: Json = False,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Add a rule, as in: onelog acl add allow user:alice publish,subscribe topic:home/%u/#.

        Parameters
        ----------
        effect
            allow or deny; a rule that denies wins.
        who
            user:NAME, group:NAME, certificate:NAME, claim:NAME=VALUE, anonymous or everyone;
            several of them with commas between.
        actions
            publish, subscribe, create, configure, delete (topics); consume, delete (cursors); admin
            (server); several of them with commas between, or all.
        resource
            topic:FILTER, prefix:TEXT, cursor:PATTERN (as in cursor:group/*) or server. %u is the
            user's name, %c the MQTT client id.
        """
        from onelog.security.access.commands import AddRule  # noqa: PLC0415

        command = AddRule(
            effect=effect,
            who=tuple(who.split(",")),
            actions=actions,
            resource=resource,
            name=name,
            note=note,
        )
        answer, where = perform(options, command)
        (rule,) = answer.rules
        if json:
            _print_json(rule)
        else:
            say(f"added rule {rule.id} {where}: {rule.text}")

    @app.command
    def remove(name: str, /, *more: str, options: DataOptions = DEFAULT_DATA) -> None:
        """Remove rules by name or number; all of them or none."""
        from onelog.security.access.commands import ListRules, RemoveRules  # noqa: PLC0415

        names = (name, *more)
        _, where = perform(options, RemoveRules(names=names))
        say(f"removed rule {', '.join(names)} {where}")
        if not perform(options, ListRules())[0].rules:
            say("there are no rules now: everybody who is let in may do everything")

    @app.command(name="list")
    def list_command(*, shown: ListShown = WHOLE, options: DataOptions = DEFAULT_DATA) -> None:
        """List the rules."""
        from onelog.security.access.commands import ListRules  # noqa: PLC0415

        def fetch() -> Rows:
            answer, _where = perform(options, ListRules())
            yield _rows(answer)

        show_list(fetch, _COLUMNS, shown, _NO_RULES)

    @app.command
    def test(
        who: str,
        action: str,
        resource: str,
        /,
        *,
        client_id: Annotated[str, Parameter(help="The MQTT client id, for %c.")] = "",
        claim: Annotated[
            tuple[str, ...],
            Parameter(negative=(), show_default=False, help="NAME=VALUE of its token. Repeatable."),
        ] = (),
        json: Json = False,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Ask who may do what, as in: onelog acl test user:alice publish topic:home/alice/t.

        The answer names the rule that decides. The exit code is 0 for yes and 1 for no.
        """
        from onelog.security.access.commands import TestRules  # noqa: PLC0415

        command = TestRules(
            who=who, action=action, resource=resource, client_id=client_id, claims=claim
        )
        answer, where = perform(options, command)
        assert answer.verdict is not None
        if json:
            _print_json(answer.verdict)
        else:
            say(f"{_verdict(answer.verdict, answer)} {where}")
        if not answer.verdict.allowed:
            sys.exit(_DENIED)

    return app


def _verdict(verdict: Verdict, answer: AccessAnswer) -> str:
    if verdict.rule is not None:
        word = "yes" if verdict.allowed else "no"
        return f"{word}: rule {verdict.rule.id} says so ({verdict.rule.text})"
    if verdict.allowed:
        return "yes: there are no rules"
    if answer.unreadable:
        return f"no: rule {answer.unreadable[0]} cannot be read, so nothing is allowed"
    return "no: no rule allows it"


def _perform(
    run_offline: RunOffline, place: Place, command: AccessCommand
) -> tuple[AccessAnswer, str]:
    """Run a command where the rules are; the answer, and the place in words."""
    import msgspec  # noqa: PLC0415

    from onelog.security.access.commands import AddRule, decode_access_answer  # noqa: PLC0415

    message = msgspec.json.encode(command)
    # The first rule may come before the first start, so that the server is never open.
    answer, where = reach(run_offline, place, message, makes_data=isinstance(command, AddRule))
    return decode_access_answer(answer), where


def _rows(answer: AccessAnswer) -> list[dict[str, Any]]:
    rows = [
        {**to_builtins(rule), "resource": rule.resource, "note": rule.note} for rule in answer.rules
    ]
    wrong = "cannot be read: nothing is allowed until it is removed"
    return rows + [{"id": name, "effect": wrong} for name in answer.unreadable]


def _print_json(value: object) -> None:
    sys.stdout.write(json_text(value) + "\n")
