"""Answers a shell that wants to complete a command line.

Rules: what may follow is read from the tree of commands itself, so nothing is written twice. Live
names come from the server, within `TIMEOUT_S` and `NAMES_MAX` of them; without a server there are
none, and no error. A name that does not print is not offered.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from cyclopts import App
from cyclopts.exceptions import CycloptsError

from onelog.base.errors import OnelogError
from onelog.cli.api.rows import ApiCommand
from onelog.cli.api.table import COMMANDS, LIVE
from onelog.cli.client import AdminClient
from onelog.cli.places import Place

TIMEOUT_S: Final = 1.0
NAMES_MAX: Final = 200
_MAKES: Final = frozenset({"create", "add"})
"""Verbs whose name does not exist yet."""
_TOPICS: Final = frozenset({"pub", "sub", "tail", "replay", "event follow", "message publish"})
"""Commands whose first argument is a topic."""
_SPECIAL: Final = re.compile(r"""([\s'"\\$`!*?\[\]{}()<>|&;#~])""")


def complete(app: App, shell: str, words: Sequence[str]) -> list[str]:
    """What may stand where the cursor is: whole words, as the shell takes them."""
    if shell == "bash":
        return _for_bash(app)
    *before, current = words or [""]
    return list(_candidates(app, before, current))


def _for_bash(app: App) -> list[str]:
    """Bash gives the line; what it takes replaces the part after the last break of a word."""
    line = os.environ.get("COMP_LINE", "")
    point = os.environ.get("COMP_POINT", "")
    given = line.encode()[: int(point)].decode(errors="ignore") if point.isdigit() else line
    words, is_quoted = _words(given)
    *before, current = words[1:] or [""]
    breaks = os.environ.get("COMP_WORDBREAKS", "")
    cut = 0 if is_quoted else max((current.rfind(char) + 1 for char in breaks), default=0)
    found = []
    for text in _candidates(app, before, current):
        rest = text[cut:]
        found.append(rest if is_quoted else _SPECIAL.sub(r"\\\1", rest))
    return found


def _words(line: str) -> tuple[list[str], bool]:
    """The words of a line up to the cursor, the last one unfinished; whether that is quoted."""
    for quote in ("", "'", '"'):
        try:
            lexer = shlex.shlex(line + quote, posix=True, punctuation_chars=False)
            lexer.whitespace_split, lexer.commenters = True, ""
            words = list(lexer)
        except ValueError:
            continue
        ends_word = not quote and (not line or line[-1].isspace())
        return ([*words, ""] if ends_word else words), bool(quote)
    return [""], False


def _candidates(app: App, before: Sequence[str], current: str) -> Iterator[str]:
    node, path, rest = _walk(app, before)
    found: Iterable[str] = ()
    if node.default_command is None:
        found = () if rest else _commands(node)
    else:
        found = _arguments(node, path, rest, current)
    yield from sorted({text for text in found if text.startswith(current) and text.isprintable()})[
        :NAMES_MAX
    ]


def _walk(app: App, words: Sequence[str]) -> tuple[App, list[str], list[str]]:
    """The command that the words lead to, its path, and the words after it."""
    node = app
    path: list[str] = []
    for number, word in enumerate(words):
        if (node.default_command is not None and path) or word not in node:
            return node, path, list(words[number:])
        node = node[word]
        path.append(word)
    return node, path, []


def _commands(node: App) -> Iterator[str]:
    for name in node:
        if not name.startswith("-") and node[name].show:
            yield name


def _arguments(node: App, path: list[str], rest: list[str], current: str) -> Iterable[str]:
    try:
        arguments = node.assemble_argument_collection()
    except (CycloptsError, ValueError):
        return ()
    named = {name: one for one in arguments for name in one.names if name.startswith("-")}
    positions = 0
    waiting: Any = None
    for word in rest:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and word != "-":
            one = named.get(word)
            waiting = one if one is not None and not one.is_flag() else None
        else:
            positions += 1
    if waiting is not None:
        return _values(waiting, path, rest, current, None)
    if current.startswith("--") and "=" in current:
        name, _, _value = current.partition("=")
        one = named.get(name)
        part = current.partition("=")[2]
        found = () if one is None else _values(one, path, rest, part, None)
        return (f"{name}={text}" for text in found)
    if current.startswith("-"):
        return [*named, "--help"]
    place = next((one for one in arguments if one.index == positions), None)
    return () if place is None else _values(place, path, rest, current, positions)


def _values(
    one: Any, path: list[str], rest: list[str], current: str, position: int | None
) -> Iterable[str]:
    choices: tuple[str, ...] | None = one.get_choices(force=True)
    if choices:
        return choices
    if Path in (one.hint, *get_args(one.hint)) or "--data" in one.names or "--ca-file" in one.names:
        return _files(current)
    listed = _list_for(one, path, position)
    return () if listed is None else _live(listed, rest, current)


def _files(current: str) -> Iterator[str]:
    folder, _, part = current.rpartition("/")
    base = Path(f"{folder}/" if "/" in current else ".").expanduser()
    try:
        for entry in base.iterdir():
            if entry.name.startswith(part) and (part or not entry.name.startswith(".")):
                prefix = f"{folder}/" if "/" in current else ""
                yield f"{prefix}{entry.name}" + ("/" if entry.is_dir() else "")
    except OSError:
        return


def _list_for(one: Any, path: list[str], position: int | None) -> ApiCommand | None:
    """The list whose names an argument may be."""
    words = " ".join(path)
    name = (one.names[0] if one.names else "").lstrip("-").lower()
    if position is None:
        wanted = LIVE.get(name) if name in ("stream", "topic", "user") else None
    elif words in _TOPICS and position == 0:
        wanted = LIVE["topic"]
    else:
        row = next((row for row in COMMANDS if row.words == words), None)
        names = () if row is None else row.positional_names
        if position < len(names):
            wanted = LIVE.get(names[position])
        elif position == 0 and len(path) == 2 and path[1] not in _MAKES:
            wanted = LIVE.get("topic" if name in ("topic", "filter") else path[0])
        else:
            wanted = LIVE["topic"] if name in ("topic", "filter") else None
    return next((row for row in COMMANDS if row.words == wanted), None)


def _live(row: ApiCommand, rest: list[str], current: str) -> list[str]:
    """Names that the server knows; none when it does not answer at once."""
    column = _NAMES.get(row.words) or row.columns.split()[0].partition(":")[0]
    try:
        client = AdminClient(_place(rest).target())
        client.answer_s = client.connect_s = TIMEOUT_S
        query: dict[str, Any] = {"limit": NAMES_MAX}
        if row.words not in _UNSEARCHED:
            query["search"] = current
        try:
            return [str(item[column]) for item in client.get(row.path, query)["items"]]
        finally:
            client.close()
    except (OnelogError, KeyError, TypeError):
        return []


_NAMES: Final = {"view list": "name", "user list": "name", "token list": "id", "acl list": "id"}
"""The column with the name, of lists that another module shows."""
_UNSEARCHED: Final = frozenset({"token list"})


def _place(rest: list[str]) -> Place:
    """The server that the line names so far."""
    given: dict[str, str] = {}
    sets: list[str] = []
    for word, after in zip(rest, [*rest[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        value = value if equals else after
        if name in ("--url", "--ca-file", "--data", "-d", "--config", "-c"):
            given[name] = value
        elif name == "--set":
            sets.append(value if not equals else word.partition("=")[2])
    config = given.get("--config", given.get("-c"))
    return Place(
        url=given.get("--url", ""),
        ca_file=given.get("--ca-file", ""),
        data=given.get("--data", given.get("-d")),
        config=None if config is None else Path(config),
        assignments=tuple(sets),
    )
