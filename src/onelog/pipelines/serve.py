"""`onelog spark serve`: a Spark that stays, so that pipelines and SQL need not start one.

Rules: the Spark belongs to this data directory: broker and lakehouse are in its environment, and
the address with its token is in a file that only its owner can read. It listens on loopback.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from onelog.base.errors import ConfigError
from onelog.pipelines.attempts import interrupt, told_to_stop
from onelog.pipelines.needs import need_connect
from onelog.pipelines.sparks import connect_server, environment, kept_catalog
from onelog.pipelines.workspace import Workspace
from onelog.spark.masters import Kind, kind_of, shown


def serve_spark(
    master: str, port: int, workspace: Workspace, on_start: Callable[[str, Path], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C; `on_start` gets the address and the log."""
    need_connect()
    if not 0 < port < 65_536:
        raise ConfigError(f"--port {port} is not a port")
    if kind_of(master) is Kind.CONNECT:
        raise ConfigError(f"--master {shown(master)}: this Spark Connect server runs already")
    file = workspace.token_file(port)
    log = file.with_name("spark.log")
    kept = kept_catalog(file.parent)
    workspace.lakehouse.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    with (
        told_to_stop(interrupt),
        environment(workspace.environment()),
        connect_server(master, "onelog spark serve", log, port=port, config=kept) as server,
    ):
        _write_secret(file, server.address)
        try:
            with told_to_stop(stop.set):  # PySpark has put its own handler there meanwhile
                on_start(f"sc://localhost:{port}", log)
                stop.wait()
        finally:
            with contextlib.suppress(FileNotFoundError):
                file.unlink()


def _write_secret(file: Path, text: str) -> None:
    fresh = file.with_name(f"{file.name}.new")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    fresh.replace(file)
