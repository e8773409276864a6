"""The `onelog` command: the CLI with the server behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.admin.contract import ServerInfo
from onelog.cli import run
from onelog.config import Loaded

if TYPE_CHECKING:
    from onelog.backup.repository import Progress
    from onelog.backup.restored import Restored, RestoreRequest
    from onelog.cluster.moving import MovedMetadata


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:], _serve, _run_offline, _restore, _init_cluster))


def _serve(loaded: Loaded, on_ready: Callable[[ServerInfo], None]) -> None:
    # Only `serve` needs the engines; every other command starts faster without them.
    from onelog.app import serve  # noqa: PLC0415

    serve(loaded, on_ready)


def _run_offline(data_dir: Path, command: bytes) -> bytes:
    from onelog.assembly import run_offline  # noqa: PLC0415

    return run_offline(data_dir, command)


def _restore(request: RestoreRequest, progress: Progress) -> Restored:
    from onelog.assembly import restore_backup  # noqa: PLC0415

    return restore_backup(request, progress)


def _init_cluster(loaded: Loaded) -> MovedMetadata:
    from onelog.cluster_assembly import init_cluster  # noqa: PLC0415

    return init_cluster(loaded.config)


if __name__ == "__main__":
    main()
