"""The commands of `onelog` and the exit codes they end with.

Rules: an error is one clear line on stderr, never a traceback, unless it is a bug of ours. The
errors of a configuration are one line each. `failures.py` has the exit codes. The program that
reads our output may stop reading at any time. The caller passes the server in, because the command
line stands below the composition root.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cyclopts import App, CycloptsError

import onelog
from onelog.admin.contract import ServerInfo
from onelog.base.errors import ConfigError, OnelogError
from onelog.cli import client, render
from onelog.cli.access import build_access
from onelog.cli.api.building import add_api_commands
from onelog.cli.api.showing import WATCH_S, AsJson
from onelog.cli.api.table import NOUNS
from onelog.cli.audit import add_audit
from onelog.cli.backup import add_backup
from onelog.cli.bench import build_bench
from onelog.cli.cluster import InitCluster, add_cluster
from onelog.cli.cluster_commands import add_cluster_commands
from onelog.cli.completion import add_completion
from onelog.cli.doctor import add_doctor
from onelog.cli.events import add_events
from onelog.cli.example import example_toml
from onelog.cli.failures import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, exit_code
from onelog.cli.logins import add_logins
from onelog.cli.messaging import add_messaging
from onelog.cli.options import Assignments, ConfigFile, DataDir, load_options
from onelog.cli.pipeline import build_pipelines
from onelog.cli.places import HERE, Place
from onelog.cli.printable import json_text
from onelog.cli.quotas import build_bans, build_quotas
from onelog.cli.reaching import RestoreBackup, RunOffline
from onelog.cli.spark import build_spark
from onelog.cli.sql import add_sql
from onelog.cli.streams import build_streams
from onelog.cli.tokens import build_tokens
from onelog.cli.top import add_top
from onelog.cli.users import build_users
from onelog.cli.views import build_views
from onelog.config import ConfigProblems, Loaded, file_problems

COMPLETE: Final = "__complete"
"""What the scripts of `onelog completion` ask."""
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")

Serve = Callable[[Loaded, Callable[[ServerInfo], None]], None]


def run(
    arguments: Sequence[str],
    serve: Serve,
    run_offline: RunOffline | None = None,
    restore: RestoreBackup | None = None,
    init_cluster: InitCluster | None = None,
) -> int:
    """Run one command line; the exit code."""
    try:
        if arguments[:1] == [COMPLETE]:
            return _complete(build(serve, run_offline, restore, init_cluster), arguments[1:])
        build(serve, run_offline, restore, init_cluster)(
            with_interval(arguments),
            exit_on_error=False,
            print_error=True,
            result_action="return_value",
        )
        sys.stdout.flush()  # here, where it may fail because nobody reads any more
    except CycloptsError:
        return EXIT_USAGE
    except ConfigError as error:
        for line in error.lines if isinstance(error, ConfigProblems) else (str(error),):
            render.print_error(line)
        return EXIT_USAGE
    except OnelogError as error:
        render.print_error(str(error))
        return exit_code(error)
    except BrokenPipeError:
        _forget_output()  # nobody reads any more
    except OSError as error:  # the disk is full to which the output goes, a file is not ours
        _forget_output()
        render.print_error(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_OK


def _forget_output() -> None:
    """Python would write what is left, and say once more that it cannot, when it ends."""
    with contextlib.suppress(OSError):  # the output of a program that runs us has no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complete(app: App, arguments: Sequence[str]) -> int:
    # Only this needs it, and every other command starts faster without.
    from onelog.cli.completing import complete  # noqa: PLC0415

    shell, *words = arguments or ("",)
    sys.stdout.write("".join(f"{text}\n" for text in complete(app, shell, words)))
    return EXIT_OK


def with_interval(arguments: Sequence[str]) -> list[str]:
    """The arguments, where a `--watch` that no number follows has its usual interval."""
    found: list[str] = []
    for number, word in enumerate(arguments):
        after = arguments[number + 1] if number + 1 < len(arguments) else ""
        is_bare = word == "--watch" and not _SECONDS.fullmatch(after)
        found.append(f"--watch={WATCH_S:g}" if is_bare else word)
    return found


def build(
    serve: Serve,
    run_offline: RunOffline | None = None,
    restore: RestoreBackup | None = None,
    init_cluster: InitCluster | None = None,
) -> App:
    """The command tree."""
    app = App(
        name="onelog",
        help="OneLog: one append-only log, read and written by every messaging protocol.",
        version=_version,
        error_console=render.ERRORS,
    )

    @app.command(name="serve")
    def serve_command(
        *, config: ConfigFile = None, data: DataDir = None, assignments: Assignments = ()
    ) -> None:
        """Run the broker in the foreground until SIGTERM or Ctrl-C."""
        serve(load_options(config, data, assignments), render.print_ready)

    @app.command
    def version() -> None:
        """Print the version."""
        render.OUT.print(_version())

    @app.command
    def status(*, json: AsJson = False, place: Place = HERE) -> None:
        """Show a running server: health, listeners, streams."""
        found = client.fetch_status(place.target())
        if json:
            sys.stdout.write(json_text(found) + "\n")
        else:
            render.print_status(found)

    app.command(_build_config())
    add_logins(app)
    add_events(app)
    add_top(app)
    app.command(build_users(run_offline))
    app.command(build_tokens(run_offline))
    app.command(build_access(run_offline))
    app.command(build_quotas(run_offline))
    app.command(build_bans(run_offline))
    app.command(build_streams(run_offline))
    app.command(build_views(run_offline))
    add_audit(app, run_offline)
    add_backup(app, run_offline, restore)
    add_cluster(app, init_cluster)
    add_cluster_commands(app)
    app.command(build_pipelines())
    app.command(build_spark())
    add_sql(app)
    add_messaging(app)
    app.command(build_bench())
    add_doctor(app)
    add_completion(app)
    add_api_commands(app)
    return app


def _version() -> str:
    """The version, and a warning if the kernel is not compiled from its sources."""
    from onelog.kernel.condition import kernel_warning  # noqa: PLC0415 - only for this command

    render.print_warning(kernel_warning())
    return onelog.__version__


def _build_config() -> App:
    app = App(name="config", help=NOUNS["config"])

    @app.command
    def show(
        *, config: ConfigFile = None, data: DataDir = None, assignments: Assignments = ()
    ) -> None:
        """Print every effective value and its origin."""
        render.print_config(load_options(config, data, assignments))

    @app.command
    def check(
        *, config: ConfigFile = None, data: DataDir = None, assignments: Assignments = ()
    ) -> None:
        """Check the configuration without starting anything, and the files that it names."""
        loaded = load_options(config, data, assignments)
        wrong = [loaded.tell(row) for row in file_problems(loaded.config)]
        if wrong:
            raise ConfigProblems(wrong)
        changed = sum(source != "default" for source in loaded.sources.values())
        render.OUT.print(
            f"configuration ok: {loaded.file or 'no file'}, {changed} of {len(loaded.sources)} "
            "keys set",
        )

    @app.command
    def init(file: Path = Path("onelog.toml")) -> None:
        """Write a commented example file with every key at its default.

        Parameters
        ----------
        file
            The file to write; an existing file is not changed.
        """
        try:
            with file.open("x", encoding="utf-8") as out:
                out.write(example_toml())
        except FileExistsError:
            raise ConfigError(f"{file} exists already; nothing was written") from None
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
        render.OUT.print(f"wrote {file}; every key in it is commented out")

    return app
