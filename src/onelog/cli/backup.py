"""`onelog backup …` and `onelog restore`: copies of a running broker, and a broker from a copy.

Rules: the running server makes a backup; this command asks for it and shows how far it is. What
lies in a folder or bucket is listed, checked and pruned from here, with no server, or by the server
of `--url`; it is restored from here. Progress goes to standard error; with `--json` standard output
has one JSON object in a line, and a list is one document.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, cast

import msgspec
from cyclopts import App, Parameter
from rich.text import Text

from onelog.base.errors import ConfigError, StorageError
from onelog.cli import render
from onelog.cli.api.showing import WHOLE, ListShown, Rows, show_list
from onelog.cli.api.table import NOUNS
from onelog.cli.places import Place, connected
from onelog.cli.reaching import RestoreBackup, RunOffline, reach
from onelog.cli.tables import columns
from onelog.cli.users import DEFAULT_DATA, DataOptions

if TYPE_CHECKING:
    from onelog.backup.repository import Progress
    from onelog.backup.restored import Restored
    from onelog.backup.stored import StoredAnswer, StoredQuestion, VerifyStored
    from onelog.broker.backup_commands import BackupCommand
    from onelog.broker.backups import BackupRun

A = TypeVar("A", bound="StoredAnswer")

_COLUMNS: Final = columns("id point_ms streams:count size_bytes new_bytes")
_EMPTY_URL: Final = "the URL is empty: name a folder, such as /srv/backups, or a bucket"
_ASK_S: Final = 0.3
"""How often the server is asked how far a backup is."""
_UNITS_MS: Final = {"h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}

Options = Annotated[
    tuple[str, ...],
    Parameter(
        name="--option",
        negative=(),
        show_default=False,
        help="An option of the object storage, such as aws_region=eu-central-1. Repeatable.",
    ),
]
Json = Annotated[
    bool,
    Parameter(name="--json", negative=(), show_default=False, help="Print JSON, one line each."),
]
BackupId = Annotated[
    str, Parameter(name="--id", help="Which backup; `onelog backup list` shows the ids.")
]


def _quiet(_done: int, _total: int) -> None:
    """Nobody looks how far it is."""


def add_backup(app: App, run_offline: RunOffline | None, restore: RestoreBackup | None) -> None:
    """The commands of `onelog backup`, and `onelog restore`."""
    backup = App(name="backup", help=NOUNS["backup"])
    _add_server_commands(backup, run_offline)
    _add_store_commands(backup)
    app.command(backup)
    _add_restore(app, restore)


def _add_server_commands(app: App, run_offline: RunOffline | None) -> None:
    def ask(options: DataOptions, command: BackupCommand) -> tuple[BackupRun, ...]:
        from onelog.broker.backup_commands import decode_backup_answer  # noqa: PLC0415

        assert run_offline is not None, "the command line was built without a store"
        answer, _ = reach(run_offline, options, msgspec.json.encode(command))
        return decode_backup_answer(answer).runs

    @app.command
    def create(
        url: str,
        /,
        *,
        option: Options = (),
        bytes_per_s: int = 0,
        wait: bool = True,
        json: Json = False,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Back up the running broker: onelog backup create /srv/backups, or s3://bucket/prefix.

        Parameters
        ----------
        url
            A folder by its path, or a bucket and a prefix. Only what is new is sent to it.
        bytes_per_s
            How fast the broker's files are read at most; 0: as fast as it goes.
        wait
            Show how far it is until it is done. With --no-wait the server goes on alone.
        """
        from onelog.broker.backup_commands import StartBackup  # noqa: PLC0415

        place = _seen_from(options, url)
        command = StartBackup(url=place, options=_options(option), bytes_per_s=bytes_per_s)
        (run,) = ask(options, command)
        if wait:
            run = _await_run(partial(ask, options), run, json=json)
        _tell_created(run, json=json)

    @app.command
    def status(*, json: Json = False, options: DataOptions = DEFAULT_DATA) -> None:
        """Show the backups that the running server made since its start, and how far they are."""
        from onelog.broker.backup_commands import ShowBackup  # noqa: PLC0415

        _tell_runs(ask(options, ShowBackup()), json=json)

    @app.command
    def cancel(backup_id: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """End a backup that is under way; the next one uses what was sent already."""
        from onelog.broker.backup_commands import CancelBackup  # noqa: PLC0415

        ask(options, CancelBackup(id=backup_id))
        _say(f"cancelled backup {backup_id}")


def _await_run(
    ask: Callable[[BackupCommand], tuple[BackupRun, ...]], run: BackupRun, *, json: bool
) -> BackupRun:
    """Show how far a backup is until it ends; Ctrl-C ends it."""
    from onelog.broker.backup_commands import CancelBackup, ShowBackup  # noqa: PLC0415

    shown = _Shown(json=json)
    try:
        while run.is_active:
            shown.show(run.done_bytes, run.size_bytes, run)
            time.sleep(_ASK_S)
            (run,) = ask(ShowBackup(id=run.id))
    except KeyboardInterrupt:
        ask(CancelBackup(id=run.id))
        raise
    finally:
        shown.end()
    return run


def _tell_created(run: BackupRun, *, json: bool) -> None:
    if json:
        _print_json(run)
    if run.state in ("failed", "cancelled"):
        raise StorageError(f"the backup {run.id} {run.state}: {run.message or 'by request'}")
    if not json:
        _say(_told(run))
        for line in run.left_out:
            render.print_warning(f"not in the backup: {line}")


def _tell_runs(runs: tuple[BackupRun, ...], *, json: bool) -> None:
    for run in runs:
        if json:
            _print_json(run)
        else:
            _say(f"{run.id}  {_told(run)}")
    if not runs and not json:
        _say("no backup was made since the server started; `onelog backup create` makes one")


def _add_store_commands(app: App) -> None:
    @app.command(name="list")
    def list_command(
        url: str,
        /,
        *,
        option: Options = (),
        shown: ListShown = WHOLE,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """List the backups in a folder or bucket, the oldest first.

        With --url (or ONELOG_URL) that server looks, at its folders and with its rights.
        """
        from onelog.backup.stored import ListStored, StoredBackups  # noqa: PLC0415

        question = ListStored(url=_seen_from(options, url), options=_options(option))

        def fetch() -> Rows:
            found = _look(options, question, StoredBackups)
            yield msgspec.to_builtins(found.items)
            for problem in found.problems:
                render.print_warning(problem)

        none = f"there is no backup in {url}; `onelog backup create {url}` makes one"
        show_list(fetch, _COLUMNS, shown, none)

    @app.command
    def verify(
        url: str,
        /,
        *,
        backup_id: BackupId = "",
        option: Options = (),
        json: Json = False,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Read everything that backups need and compare every checksum; all backups, or one.

        With --url (or ONELOG_URL) that server reads, its folders and with its rights.
        """
        from onelog.backup.stored import VerifyStored  # noqa: PLC0415

        place = _seen_from(options, url)
        _verify(options, VerifyStored(url=place, options=_options(option), id=backup_id), json)

    @app.command
    def prune(
        url: str,
        /,
        *,
        keep: int = 1,
        older_than: str = "",
        dry_run: bool = False,
        option: Options = (),
        json: Json = False,
        options: DataOptions = DEFAULT_DATA,
    ) -> None:
        """Delete old backups, and what only they needed.

        With --url (or ONELOG_URL) that server deletes, in its folders and with its rights.

        Parameters
        ----------
        keep
            The newest so many backups stay.
        older_than
            Only backups of before so long go: 12h, 30d or 8w.
        dry_run
            Only show what would go.
        """
        from onelog.backup.stored import PrunedBackups, PruneStored  # noqa: PLC0415

        question = PruneStored(
            url=_seen_from(options, url),
            options=_options(option),
            keep=keep,
            older_than_ms=_duration_ms(older_than) if older_than else None,
            dry_run=dry_run,
        )
        pruned = _look(options, question, PrunedBackups)
        if json:
            _print_json(pruned)
            return
        verb = "would delete" if dry_run else "deleted"
        freed = _bytes(pruned.size_bytes)
        _say(f"{verb} {len(pruned.backups)} backups, and {freed} that no backup needs")
        if pruned.kept_objects:
            _say(f"{pruned.kept_objects} objects that no backup needs go when they are a day old")


def _look(place: Place, question: StoredQuestion, kind: type[A], progress: Progress = _quiet) -> A:
    """Ask a store: from the server of a URL, else from here."""
    from onelog.backup.stored import answer  # noqa: PLC0415
    from onelog.cli.api.translating import ask_store  # noqa: PLC0415

    if not place.is_named:
        return cast("A", answer(question, progress))
    with connected(place) as client:
        return msgspec.convert(ask_store(client, msgspec.to_builtins(question)), kind)


def _verify(place: Place, question: VerifyStored, json: bool) -> None:
    from onelog.backup.stored import VerifiedBackups  # noqa: PLC0415

    shown = _Shown(json=json)
    try:
        checked = _look(place, question, VerifiedBackups, shown.show)
    finally:
        shown.end()
    if json:
        _print_json(checked)
    for problem in checked.problems:
        render.print_warning(problem)
    if checked.problems:
        raise StorageError(
            f"{len(checked.problems)} problems in {checked.backups} backups: make a new backup,"
            " which does not use what is missing; delete damaged objects by hand first"
        )
    if not json:
        what = f"{checked.objects} objects, {_bytes(checked.size_bytes)}"
        _say(f"{checked.backups} backups are whole: {what}, every checksum is right")


def _add_restore(app: App, restore: RestoreBackup | None) -> None:
    @app.command(name="restore")
    def restore_command(
        url: str,
        /,
        *,
        data: Annotated[
            str, Parameter(name=["--data", "--data-dir", "-d"], help="A new or empty directory.")
        ],
        backup_id: BackupId = "",
        to: Annotated[
            str,
            Parameter(help="Leave out later records; such as 2026-11-16T12:00:00Z."),
        ] = "",
        option: Options = (),
        json: Json = False,
    ) -> None:
        """Restore a backup into an empty data directory, and check all of it.

        Without --id: the newest backup, or with --to the first one that was made after that time.
        """
        from onelog.backup.restored import RestoreRequest  # noqa: PLC0415

        assert restore is not None, "the command line was built without engines"
        request = RestoreRequest(
            url=_whole(url),
            options=_options(option),
            data_dir=data,
            id=backup_id,
            upto_ms=_moment_ms(to) if to else None,
        )
        shown = _Shown(json=json)
        try:
            made = restore(request, shown.show)
        finally:
            shown.end()
        if json:
            _print_json(made)
        else:
            _tell_restored(made)


def _tell_restored(made: Restored) -> None:
    point = _date(made.backup.point_ms)
    _say(f"restored backup {made.backup.id} of {point} into {made.data_dir}: every checksum is"
         f" right, {len(made.partitions)} partitions open")  # fmt: skip
    cut = [row for row in made.partitions if row.end < row.next]
    if made.upto_ms is not None:
        _say(f"records after {_date(made.upto_ms)} are left out, in {len(cut)} partitions")
    for line in made.backup.left_out:
        render.print_warning(f"not in the backup: {line}")
    _say(f"start it with `onelog serve --data {made.data_dir}`")


class _Shown:
    """A line that says how far the work is, for people; lines of JSON for machines."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._terminal = sys.stderr.isatty()
        self._drawn = False
        self._said = -1

    def show(self, done: int, total: int, row: object = None) -> None:
        """Show how far it is."""
        percent = 100 * done // total if total else 0
        if self._json:
            if percent != self._said:
                self._said = percent
                _print_json(row or {"done_bytes": done, "size_bytes": total})
        elif self._terminal:
            bar = "━" * (percent * 30 // 100)
            text = f"\r{bar:<30} {percent:3} %  {_bytes(done)} of {_bytes(total)} "
            sys.stderr.write(text)
            sys.stderr.flush()
            self._drawn = True

    def end(self) -> None:
        """Nothing more is shown."""
        if self._drawn:
            sys.stderr.write("\r" + " " * 78 + "\r")
            self._drawn = False


def _told(run: BackupRun) -> str:
    sent = f"{_bytes(run.size_bytes)}, of which {_bytes(run.new_bytes)} were sent"
    match run.state:
        case "done":
            point = _date(run.point_ms or 0)
            return f"backup {run.id} in {run.url}: {sent}; all that was acknowledged before {point}"
        case "freezing" | "sending":
            return f"under way to {run.url}: {_bytes(run.done_bytes)} of {_bytes(run.size_bytes)}"
    return f"{run.state}: {run.message or 'by request'}"


def _seen_from(place: Place, url: str) -> str:
    """A store as the process that works on it names it: a server elsewhere knows no folder of
    here."""
    if not place.is_named:
        return _whole(url)
    if not url:
        raise ConfigError(_EMPTY_URL)
    return url


def _whole(url: str) -> str:
    """A folder by its whole path: the server may work elsewhere."""
    from onelog.backup.stores import check_scheme  # noqa: PLC0415

    if not url:
        raise ConfigError(_EMPTY_URL)
    check_scheme(url)
    return url if "://" in url else str(Path(url).absolute())


def _options(rows: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for row in rows:
        name, equals, value = row.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option {row!r}: write NAME=VALUE, as in aws_region=us-east-1")
        found[name] = value
    return found


def _duration_ms(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS_MS:
        raise ConfigError(f"--older-than {text!r}: write a number and h, d or w, such as 30d")
    return int(number) * _UNITS_MS[unit]


def _moment_ms(text: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError(
            f"--to {text!r}: write a time with its zone, such as 2026-11-16T12:00:00Z"
        )
    return int(moment.timestamp() * 1000)


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _date(stamp_ms: int) -> str:
    stamp = datetime.datetime.fromtimestamp(stamp_ms / 1000, datetime.UTC)
    return stamp.strftime("%Y-%m-%d %H:%M:%SZ")


def _print_json(row: object) -> None:
    sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    sys.stdout.flush()


def _say(line: str) -> None:
    render.OUT.print(Text(line), soft_wrap=True)
