"""What a node knows of itself: the file `node.json` in its data directory.

Rules:
- The data uuid is made with the data directory and never changes: the same node id with another
  uuid is another disk, and whatever was on the old one is gone.
- The file is replaced whole, and durable before anybody counts on it.
- A clean stop is written down with the number of the registration that it ended. A node that was
  killed after a later registration is not clean, whatever an older stop wrote (KAFKA-15586).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import StorageError

FILE: Final = "node.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    data_uuid: str
    cluster_id: str = ""
    """The cluster that the data belongs to; empty: it never registered."""
    registrations: int = 0
    """How often the node registered with this data, as far as the file knows."""
    epoch: int = 0
    """The node epoch of the last registration that is known here."""
    is_clean: bool = False
    """Whether the process that had this registration closed everything."""


def load_identity(data_dir: Path) -> NodeIdentity | None:
    """The identity of a data directory; None: it has none yet. Blocks. Raises StorageError."""
    file = data_dir / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=NodeIdentity)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise StorageError(
            f"{file}, which says who this node is, cannot be read: {error}. Restore it; without it"
            " the node cannot tell whether its data is what the cluster counts on"
        ) from None


def save_identity(data_dir: Path, identity: NodeIdentity) -> None:
    """Replace the file; durable when it returns. Blocks."""
    part = data_dir / f"{FILE}.part"
    try:
        with part.open("wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        part.replace(data_dir / FILE)
        folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StorageError(f"{data_dir / FILE} cannot be written: {error.strerror}") from error


def new_identity() -> NodeIdentity:
    """The identity of a data directory that is made now."""
    return NodeIdentity(data_uuid=uuid.uuid4().hex)


def boot_id() -> str:
    """Which start of the machine this is; empty where the system does not say. Blocks shortly."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
