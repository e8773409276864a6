"""`onelog audit`: who changed what and who failed to log in, from a running server.

Rules: where the server runs, the command asks over its control socket and needs no login; with
`--url` it asks the admin API, as an administrator. `--follow` waits in the server for the next
record; it never asks twice in vain for the same one.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from onelog.cli import render
from onelog.cli.durations import duration_ms
from onelog.cli.printable import json_text, visible
from onelog.cli.reaching import RunOffline, reach
from onelog.cli.users import DEFAULT_DATA, DataOptions

if TYPE_CHECKING:
    from onelog.broker.audit_reading import AuditPage, AuditRow, ListAudit


@Parameter(name="*")
@dataclass(frozen=True)
class ChoiceOptions:
    """Which records."""

    actor: Annotated[str, Parameter(name="--actor", help="Only of this user.")] = ""
    door: Annotated[
        str, Parameter(name="--door", help="Only by this door: mqtt, kafka, amqp, admin, control…")
    ] = ""
    action: Annotated[
        str,
        Parameter(name="--action", help="An action or its beginning: login.failed, user, stream."),
    ] = ""
    outcome: Annotated[
        Literal["ok", "refused", "failed"] | None,
        Parameter(name="--outcome", help="Only with this outcome."),
    ] = None
    resource: Annotated[str, Parameter(name="--resource", help="A text in the resource.")] = ""
    since: Annotated[
        str, Parameter(name="--since", help="How far back: 30m, 12h or 90d, for example.")
    ] = ""


Limit = Annotated[int, Parameter(name=["--limit", "-n"], help="How many, at most.")]
AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="One JSON object per line.")]
Follow = Annotated[
    bool, Parameter(name=["--follow", "-f"], negative=(), help="Go on with what comes.")
]
_ALL: Final = ChoiceOptions()


def add_audit(app: App, run_offline: RunOffline | None) -> None:
    """Add the command."""

    @app.command
    def audit(
        *,
        which: ChoiceOptions = _ALL,
        limit: Limit = 50,
        follow: Follow = False,
        json: AsJson = False,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Show who changed what and who failed to log in, the newest last."""
        from onelog.broker.audit_reading import (  # noqa: PLC0415 - only this command needs it
            LAST,
            WAIT_MS_MAX,
            AuditChoice,
            ListAudit,
        )

        since_ms = 0
        if which.since:
            now_ms = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
            since_ms = now_ms - duration_ms("--since", which.since)
        choice = AuditChoice(
            actor=which.actor,
            door=which.door,
            action=which.action,
            outcome=which.outcome,
            resource=which.resource,
            since_ms=since_ms,
        )
        asked = ListAudit(choice=choice, limit=limit)
        end = _ask(run_offline, options, ListAudit(start=LAST)).next
        assert end is not None
        rows = _newest(run_offline, options, asked, end)
        if not rows and not follow and not json:
            render.OUT.print(Text("the audit trail has no such record"))
        elif rows:
            _show(rows, as_json=json, heading=True)
        while follow:
            asked = ListAudit(choice=choice, start=end, wait_ms=WAIT_MS_MAX)
            page = _ask(run_offline, options, asked)
            _show(page.rows, as_json=json, heading=False)
            assert page.next is not None
            end = page.next


def _newest(
    run_offline: RunOffline | None, options: DataOptions, asked: ListAudit, end: int
) -> list[AuditRow]:
    """The newest records below an offset, the newest last."""
    found: list[AuditRow] = []
    before: int | None = end
    while before is not None and len(found) < asked.limit:
        left = asked.limit - len(found)
        asked = msgspec.structs.replace(asked, before=before)
        page = _ask(run_offline, options, msgspec.structs.replace(asked, limit=left))
        found += page.rows
        before = page.next
    return found[::-1]


def _ask(run_offline: RunOffline | None, options: DataOptions, command: ListAudit) -> AuditPage:
    from onelog.broker.audit_reading import decode_audit_answer  # noqa: PLC0415

    assert run_offline is not None, "the command line was built without a store"
    answer, _where = reach(run_offline, options, msgspec.json.encode(command))
    return decode_audit_answer(answer)


def _show(rows: Iterable[AuditRow], *, as_json: bool, heading: bool) -> None:
    if as_json:
        for row in rows:
            render.OUT.print(Text(json_text(row.event)), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_header=heading)
    for title in ("time", "door", "actor", "address", "action", "outcome"):
        table.add_column(title, no_wrap=True)
    table.add_column("resource", overflow="fold")
    for row in rows:
        event = row.event
        times = f" ({event.count} times)" if event.count > 1 else ""
        what = event.resource or event.reason
        cells = (
            _time(event.time_ms),
            event.door,
            event.actor or "-",
            event.address or "-",
            event.action,
            f"{event.outcome}{times}",
            what,
        )
        # A peer that failed to log in chose its name: nothing in it may draw a row of its own.
        shown = (Text(visible(cell)) for cell in cells)
        table.add_row(*shown, style="" if event.outcome == "ok" else "yellow")
    if table.row_count or heading:
        render.print_whole(table)  # what it was done to is in the last column


def _time(stamp_ms: int) -> str:
    stamp = datetime.datetime.fromtimestamp(stamp_ms / 1000, datetime.UTC)
    return stamp.strftime("%Y-%m-%d %H:%M:%SZ")
