"""Commands on named views as messages: what `onelog view` sends, and what runs them.

Rules: as for commands on users: the same message runs in a server, which gets it over its control
socket, and on the data directory of a stopped one; `base/commands.py` has the form.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.broker.views import NamedView, NamedViews

SUBJECT: Final = "view"


class CreateView(msgspec.Struct, frozen=True, kw_only=True, tag="view.create"):
    """Give a filter a name."""

    name: str
    filter: str


class DeleteView(msgspec.Struct, frozen=True, kw_only=True, tag="view.delete"):
    """Remove a name."""

    name: str


class ListViews(msgspec.Struct, frozen=True, kw_only=True, tag="view.list"):
    """Show every named view."""


ViewCommand = CreateView | DeleteView | ListViews


class ViewAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a command."""

    views: tuple[NamedView, ...] = ()
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


async def run_view_command(views: NamedViews, message: bytes) -> bytes:
    """Run the command of a message. Returns the answer as a message, also after an error."""
    return await run_decoded(message, ViewCommand, partial(_run, views))


async def _run(views: NamedViews, command: ViewCommand) -> ViewAnswer:
    match command:
        case CreateView():
            await views.create(command.name, command.filter)
        case DeleteView():
            await views.delete(command.name)
        case ListViews():
            return ViewAnswer(views=tuple(views.all()))
    return ViewAnswer()


def decode_view_answer(message: bytes) -> ViewAnswer:
    """The answer of a message. Raises the error that it reports."""
    return decoded(message, ViewAnswer)
