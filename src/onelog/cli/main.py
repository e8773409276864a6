"""The commands of `onelog` and the exit codes they end with.

Rules: an error is one clear line on stderr, never a traceback, unless it is a bug of ours. The
errors of a configuration are one line each. Exit codes: 0 done, 1 failed, 2 the command line or the
configuration is wrong, 130 Ctrl-C. The program that reads our output may stop reading at any time.
The caller passes the server in, because the command line stands below the composition root.
"""

from __future__ import annotations

import os
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
from onelog.cli.completion import add_completion
from onelog.cli.doctor import add_doctor
from onelog.cli.example import example_toml
from onelog.cli.messaging import add_messaging
from onelog.cli.options import Assignments, ConfigFile, DataDir, load_options
from onelog.cli.pipeline import build_pipelines
from onelog.cli.reaching import RunOffline
from onelog.cli.spark import build_spark
from onelog.cli.sql import add_sql
from onelog.cli.streams import build_streams
from onelog.cli.tokens import build_tokens
from onelog.cli.users import build_users
from onelog.cli.views import build_views
from onelog.config import ConfigProblems, Loaded, file_problems

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

Serve = Callable[[Loaded, Callable[[ServerInfo], None]], None]


def run(arguments: Sequence[str], serve: Serve, run_offline: RunOffline | None = None) -> int:
    """Run one command line; the exit code."""
    try:
        build(serve, run_offline)(
            arguments, exit_on_error=False, print_error=True, result_action="return_value"
        )
    except CycloptsError:
        return EXIT_USAGE
    except ConfigError as error:
        for line in error.lines if isinstance(error, ConfigProblems) else (str(error),):
            render.print_error(line)
        return EXIT_USAGE
    except OnelogError as error:
        render.print_error(str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        # Nobody reads any more. Python would say so once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_OK


def build(serve: Serve, run_offline: RunOffline | None = None) -> App:
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
    def status(*, config: ConfigFile = None, assignments: Assignments = ()) -> None:
        """Show a running server: health, listeners, streams."""
        admin = load_options(config, None, assignments).config.listeners.admin
        render.print_status(client.fetch_status(admin.host, admin.port, admin.tls.cert_file))

    app.command(_build_config())
    app.command(build_users(run_offline))
    app.command(build_tokens(run_offline))
    app.command(build_access(run_offline))
    app.command(build_streams(run_offline))
    app.command(build_views(run_offline))
    app.command(build_pipelines())
    app.command(build_spark())
    add_sql(app)
    add_messaging(app)
    add_doctor(app)
    add_completion(app)
    return app


def _version() -> str:
    """The version, and a warning if the kernel is not compiled from its sources."""
    from onelog.kernel.condition import kernel_warning  # noqa: PLC0415 - only for this command

    render.print_warning(kernel_warning())
    return onelog.__version__


def _build_config() -> App:
    app = App(name="config", help="Show, check or write the configuration.")

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
