"""A disk that loses what was not synced: files, sizes and names, whole or torn, by a seed.

Rules: the files are real ones (the engine maps them), and `os` is listened to. Beside each file
stands what a sync made durable and what was done since; beside each directory which names a sync
made durable. At a power cut each file keeps some of what was not synced, in any order, the last of
it perhaps torn; each directory keeps the first few of its changes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

Write = tuple[int, bytes]
Step = Write | int
"""Bytes at a position, or a new size."""
Remove = Callable[[str], None]

REAL: dict[str, Callable[..., Any]] = {
    name: getattr(os, name)
    for name in (
        "open", "close", "pwrite", "ftruncate", "posix_fallocate", "fdatasync", "fsync",
        "unlink", "replace", "rename", "mkdir", "rmdir",
    )
}  # fmt: skip
"""What is listened to."""


class Node:
    """A file: what is durable of it, and what was done since."""

    __slots__ = ("durable", "steps")

    def __init__(self) -> None:
        self.durable = bytearray()
        self.steps: list[Step] = []

    def settle(self) -> None:
        """A sync: all of it is durable."""
        for step in self.steps:
            _apply(self.durable, step)
        self.steps.clear()

    def forget_some(self, chance: random.Random) -> None:
        """The power goes: some of what was not synced is there all the same."""
        mode = chance.randrange(4)
        kept = self.steps if mode else []
        if mode == 1:
            kept = kept[: chance.randint(0, len(kept))]
        elif mode == 2:
            kept = [step for step in kept if chance.random() < 0.5]
        for number, step in enumerate(kept):
            if mode < 3 and number == len(kept) - 1 and not isinstance(step, int):
                step = (step[0], step[1][: chance.randint(0, len(step[1]))])  # noqa: PLW2901
            _apply(self.durable, step)
        self.steps.clear()


def _apply(data: bytearray, step: Step) -> None:
    if isinstance(step, int):
        del data[step:]
        data.extend(bytes(step - len(data)))
        return
    at, piece = step
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    data[at : at + len(piece)] = piece


class Disk:
    """The disk under a folder; `attached` lets it listen."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = str(root)
        self._chance = chance
        self._names: dict[str, Node | None] = {}
        """Every path that exists; a directory has no node."""
        self._durable: dict[str, Node | None] = {}
        self._changes: dict[str, list[tuple[str, Node | None, bool]]] = {}
        """Directory → names that came (True) or went since its last sync."""
        self._open: dict[int, str | Node] = {}
        self.fails_next = 0
        """How many of the next syncs fail."""

    # -- what the power cut leaves

    def cut_power(self) -> None:
        """Lose what was not synced, and lay out what is left."""
        left = dict(self._durable)
        for changes in self._changes.values():
            for path, node, came in changes[: self._chance.randint(0, len(changes))]:
                if came:
                    left[path] = node
                else:
                    left.pop(path, None)
        _remove_all(self.root, REAL["unlink"], REAL["rmdir"])
        self._names, self._durable = {}, {}
        nodes: set[int] = set()
        for path, node in sorted(left.items()):
            parent = path.rpartition("/")[0]
            if parent != self.root and parent not in self._names:
                continue  # the directory itself is lost
            if node is None:
                REAL["mkdir"](path)
            else:
                if id(node) in nodes:  # renamed, and the old name is still there
                    copy = Node()
                    copy.durable[:] = node.durable
                    node = copy  # noqa: PLW2901
                else:
                    node.forget_some(self._chance)
                nodes.add(id(node))
                with open(path, "wb") as file:  # noqa: PTH123 - thousands of them
                    file.write(node.durable)
            self._names[path] = self._durable[path] = node
        self._changes.clear()
        self._open.clear()
        self.fails_next = 0

    # -- what the engine does

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Listen to `os` for the length of a block."""
        with contextlib.ExitStack() as stack:
            for name in REAL:
                stack.enter_context(patch.object(os, name, self._listen(name)))
            stack.enter_context(patch.object(shutil, "rmtree", self._remove_tree))
            yield

    def _listen(self, name: str) -> Callable[..., Any]:
        real = REAL[name]
        if name == "open":
            return self._opens
        hear = getattr(self, f"_{name}")
        if name in ("fdatasync", "fsync"):
            return hear  # type: ignore[no-any-return]  # nothing is waited for

        def call(*arguments: Any, **more: Any) -> Any:
            result = real(*arguments, **more)
            hear(*arguments)
            return result

        return call

    def _opens(self, name: Any, flags: int, *mode: Any, **more: Any) -> int:
        path = str(name)
        existed = path in self._names
        fd: int = REAL["open"](name, flags, *mode, **more)
        if path.startswith(self.root):
            self._open_file(path, flags, fd, existed)
        return fd

    def _note(self, path: str, node: Node | None, came: bool) -> None:
        if came:
            self._names[path] = node
        else:
            self._names.pop(path, None)
        self._changes.setdefault(path.rpartition("/")[0], []).append((path, node, came))

    def _open_file(self, path: str, flags: int, fd: int, existed: bool) -> None:
        if flags & os.O_DIRECTORY:
            self._open[fd] = path
            return
        node = self._names.get(path)
        if not existed or node is None:
            node = Node()
            self._note(path, node, True)
        elif flags & os.O_TRUNC:
            node.steps.append(0)
        self._open[fd] = node

    def _close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def _pwrite(self, fd: int, data: Any, position: int) -> None:
        node = self._open.get(fd)
        if isinstance(node, Node):
            node.steps.append((position, bytes(data)))

    def _ftruncate(self, fd: int, size: int) -> None:
        node = self._open.get(fd)
        if isinstance(node, Node):
            node.steps.append(size)

    def _posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        node = self._open.get(fd)
        if isinstance(node, Node):
            node.steps.append((offset + size, b""))

    def _fsync(self, fd: int) -> None:
        if self.fails_next:
            self.fails_next -= 1
            raise OSError(errno.EIO, "the simulated disk failed")
        found = self._open.get(fd)
        if isinstance(found, Node):
            found.settle()
        elif found is not None:
            for path, node, came in self._changes.pop(found, ()):
                if came:
                    self._durable[path] = node
                else:
                    self._durable.pop(path, None)

    _fdatasync = _fsync

    def _unlink(self, path: Any) -> None:
        self._note(str(path), self._names.get(str(path)), False)

    def _replace(self, old: Any, new: Any) -> None:
        before, after = str(old), str(new)
        if before not in self._names:
            return
        inside = [path for path in self._names if path.startswith(before + "/")]
        node = self._names[before]
        self._note(after, node, True)
        self._note(before, node, False)
        for path in inside:  # a directory takes along what is in it
            moved = after + path[len(before) :]
            self._names[moved] = self._names.pop(path)
            if path in self._durable:
                self._durable[moved] = self._durable[path]

    _rename = _replace

    def _mkdir(self, path: Any, *_mode: Any) -> None:
        if str(path).startswith(self.root) and str(path) != self.root:
            self._note(str(path), None, True)

    def _rmdir(self, path: Any) -> None:
        self._note(str(path), None, False)

    def _remove_tree(self, path: Any) -> None:
        _remove_all(str(path), os.unlink, os.rmdir)
        Path(path).rmdir()


def _remove_all(folder: str, unlink: Remove, rmdir: Remove) -> None:
    """Remove what is in a folder, its last first."""
    with os.scandir(folder) as rows:
        found = sorted((row.path, row.is_dir()) for row in rows)
    for path, is_folder in reversed(found):
        if is_folder:
            _remove_all(path, unlink, rmdir)
            rmdir(path)
        else:
            unlink(path)
