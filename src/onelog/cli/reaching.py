"""Where a command runs: in this process, on the data of a stopped server, or in the running one.

Rules: a command that names a URL runs there, by the admin API. Otherwise the process that holds the
lock of the data directory runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.errors import DataDirLocked, NotFound, Unavailable
from onelog.cli.failures import NotReachable
from onelog.cli.places import Place, connected

if TYPE_CHECKING:
    from onelog.backup.repository import Progress
    from onelog.backup.restored import Restored, RestoreRequest

RunOffline = Callable[[Path, bytes], bytes]
"""Runs a command on the data directory of a stopped server; raises DataDirLocked when it runs."""


RestoreBackup = Callable[["RestoreRequest", "Progress"], "Restored"]
"""Restores a backup into an empty data directory; it blocks."""


_MARKS: Final = ("metadata.db", "metadata-copy.db", "node.json")
"""One of them lies in every data directory that a server used: of its own, with its metadata in the
object store, with its metadata in etcd."""


class _Refusal(msgspec.Struct, frozen=True):
    """What every answer that is an error has (`base/commands.py`)."""

    error: str = ""
    message: str = ""


def reach(
    run_offline: RunOffline, place: Place | Path, message: bytes, *, makes_data: bool = False
) -> tuple[bytes, str]:
    """Run the command of a message where the data is; the answer, and the place in words."""
    if isinstance(place, Path):
        data_dir = place
    elif place.is_named:
        from onelog.cli.api.translating import translate  # noqa: PLC0415

        with connected(place) as client:
            return translate(client, message), f"at {place.named_url}"
    else:
        data_dir = place.data_dir
    is_empty = not any((data_dir / name).exists() for name in _MARKS)
    if is_empty and isinstance(place, Place) and place.is_kept_elsewhere:
        raise NotReachable(
            f"no server runs on {str(data_dir)!r}, and the configuration keeps users and rules"
            " elsewhere (cluster.mode, metadata.url): start it with `onelog serve`, then give this"
            " command again"
        )
    if is_empty and not makes_data:
        raise NotFound(
            f"there is no OneLog data in {str(data_dir)!r}; name the directory with --data DIR"
        )
    try:
        answer = run_offline(data_dir, message)
    except DataDirLocked:
        # Only these commands need it, and every other one starts faster without.
        from onelog.net.control import call  # noqa: PLC0415

        return call(data_dir, message), "in the running server"
    said = msgspec.json.decode(answer, type=_Refusal)
    if said.error == Unavailable.__name__:  # only a running server could do it
        raise NotReachable(said.message)
    return answer, f"in {data_dir}"
