"""Makes commands of the rows of the table.

Rules: a command is a function whose signature is written from its row, so that help, errors and
completion are those of every other command.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter as Argument
from inspect import Signature
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from onelog.cli.api.rows import NAME_DEFAULTS, ApiCommand, Option
from onelog.cli.api.running import run_change, run_list, run_one
from onelog.cli.api.showing import ONCE, WHOLE, AsJson, ListShown, OneShown
from onelog.cli.api.table import COMMANDS, NOUNS
from onelog.cli.places import HERE, Place

_TYPES: Final[dict[str, Any]] = {
    "text": str,
    "commas": str,
    "duration": str,
    "bytes": str,
    "time": str,
    "number": int,
    "flag": bool,
    "texts": tuple[str, ...],
    "headers": tuple[str, ...],
    "table": tuple[str, ...],
    "off": bool,
}


_ABSENT: Final[dict[str, Any]] = {
    "flag": False,
    "off": False,
    "texts": (),
    "headers": (),
    "table": (),
}
"""What an option is when it is not given; the others: None."""


def add_api_commands(app: App) -> None:
    """Add every command of the table that no other module makes."""
    for row in COMMANDS:
        if row.by_hand:
            continue
        *before, verb = row.words.split()
        parent = noun(app, before[0]) if before else app
        parent.command(_function(row), name=verb)


def noun(app: App, name: str) -> App:
    """The group of commands of a noun; it is made when it is not there."""
    if name not in app:
        app.command(App(name=name, help=NOUNS[name]))
    return app[name]


def _function(row: ApiCommand) -> Callable[..., None]:
    def command(*positional: Any, place: Place = HERE, **given: Any) -> None:
        given |= dict(zip(order, positional, strict=False))
        shown = given.pop("shown", None)
        json = given.pop("json", False)
        names = {name: given.pop(name, NAME_DEFAULTS.get(name, "")) for name in row.names}
        if row.is_list:
            run_list(row, names, given, shown or WHOLE, place)
        elif row.method == "GET":
            run_one(row, names, given, shown or ONCE, place)
        else:
            run_change(row, names, given, json, place)

    arguments = _arguments(row)
    order = [one.name for one in arguments if one.kind is Argument.POSITIONAL_ONLY]
    command.__signature__ = Signature(arguments)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    command.__doc__ = row.about
    command.__name__ = row.words.replace(" ", "_")
    return command


def _arguments(row: ApiCommand) -> list[Argument]:
    positional = [
        Argument(name, Argument.POSITIONAL_ONLY, annotation=str) for name in row.positional_names
    ]
    positional += [_argument(option) for option in row.options if option.positional]
    named = [
        Argument(
            name,
            Argument.KEYWORD_ONLY,
            default=NAME_DEFAULTS[name],
            annotation=Annotated[str, Parameter(help="Its virtual host.")],
        )
        for name in row.names
        if name in NAME_DEFAULTS
    ]
    named += [_argument(option) for option in row.options if not option.positional]
    if row.is_list:
        named.append(Argument("shown", Argument.KEYWORD_ONLY, default=WHOLE, annotation=ListShown))
    elif row.method == "GET":
        named.append(Argument("shown", Argument.KEYWORD_ONLY, default=ONCE, annotation=OneShown))
    else:
        named.append(Argument("json", Argument.KEYWORD_ONLY, default=False, annotation=AsJson))
    named.append(Argument("place", Argument.KEYWORD_ONLY, default=HERE, annotation=Place))
    return positional + named


def _argument(option: Option) -> Argument:
    kind: Any = Literal[option.choices] if option.choices else _TYPES[option.kind]
    default: Any = Argument.empty
    if not option.required:
        default = _ABSENT.get(option.kind)
        kind = kind | None if default is None else kind
    told = Parameter(
        name=None if option.positional else f"--{option.name}",
        help=option.about,
        show_default=False,
        negative=(),
    )
    where = Argument.POSITIONAL_ONLY if option.positional else Argument.KEYWORD_ONLY
    return Argument(option.field, where, default=default, annotation=Annotated[kind, told])
