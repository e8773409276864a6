"""A member of etcd as a child of this process: started, started again, and taken along at the end.

Rules:
- Its data lies in the data directory, which this process has locked. It ends with this process,
  also when that is killed.
- A child that ends by itself is started again, after a pause that doubles each time and begins anew
  once the child has lived for a while. A trouble stands meanwhile. The node itself lives on: it
  asks all endpoints, and its own member is one of them.
- Its lines go into the log of this process, bounded in length.
- The members that it is made with count only for an empty data directory; etcd itself remembers
  them after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import ConfigError
from onelog.metadata.etcd_members import version_problem
from onelog.observe import Troubles, get_logger

ENDED: Final = "etcd-child"
"""Standing: the member that this node runs does not run."""

PAUSE_MIN_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0
STEADY_S: Final = 60.0
"""A child that lived so long is started again at once."""
STOP_S: Final = 10.0
"""How long a child may take to end before it is killed."""
PROGRESS_S: Final = 2.0
"""How often it tells watches that it lives."""
_KEPT_REVISIONS: Final = 10_000
"""History that watches can go back."""
_QUOTA_BYTES: Final = 2 * 1024 * 1024 * 1024
_LINE_BYTES_MAX: Final = 4096
_VERSION_S: Final = 10.0
_VERSION: Final = re.compile(r"etcd Version: (\d+\.\d+\.\d+)")
_RENAMED: Final = (3, 6)
"""From this version on, the option of progress notices is no experiment."""
_PR_SET_PDEATHSIG: Final = 1
_LEVELS: Final = {"warn": "warning", "error": "error", "panic": "error", "fatal": "error"}

_log = get_logger("etcd")
_libc = ctypes.CDLL(None, use_errno=True)


class ChildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A member of etcd that is run here."""

    binary: str
    name: str
    token: str
    """The name of the cluster: members with another one are strangers."""
    data_dir: Path
    listen: str
    peer: str
    initial: tuple[tuple[str, str], ...]
    """Name and address of each member that etcd is made with."""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    extra: tuple[str, ...] = ()


def command_line(settings: ChildSettings, binary: str, version: str) -> list[str]:
    """How the child is started."""
    is_new = tuple(map(int, version.split(".")[:2])) >= _RENAMED
    progress = f"--{'' if is_new else 'experimental-'}watch-progress-notify-interval"
    initial = ",".join(f"{name}={url}" for name, url in settings.initial)
    line = [
        *(binary, "--name", settings.name, "--data-dir", str(settings.data_dir)),
        *("--listen-client-urls", settings.listen, "--advertise-client-urls", settings.listen),
        *("--listen-peer-urls", settings.peer, "--initial-advertise-peer-urls", settings.peer),
        *("--initial-cluster", initial, "--initial-cluster-token", settings.token),
        *("--auto-compaction-mode", "revision"),
        *("--auto-compaction-retention", str(_KEPT_REVISIONS)),
        *("--quota-backend-bytes", str(_QUOTA_BYTES)),
        *(progress, f"{PROGRESS_S:g}s"),
        *("--logger", "zap", "--log-outputs", "stderr"),
    ]
    files = ("cert-file", "key-file", "trusted-ca-file")
    values = (settings.cert_file, settings.key_file, settings.ca_file)
    for prefix, address in (("", settings.listen), ("peer-", settings.peer)):
        if address.startswith("https:"):
            for name, value in zip(files, values, strict=True):
                line += (f"--{prefix}{name}", value)
            line.append(f"--{prefix}client-cert-auth")
    return [*line, *settings.extra]


def find_binary(name: str) -> str:
    """The program. Raises ConfigError."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ConfigError(
            f"cluster.etcd.binary = {name!r} is not here: install it (Debian: apt-get install"
            " etcd-server), name its path, or leave cluster.etcd.spawn out and name the endpoints"
            " of an etcd that runs elsewhere"
        )
    return found


async def version_of(binary: str) -> str:
    """The version of the program, which may be used. Raises ConfigError."""
    try:
        async with asyncio.timeout(_VERSION_S):
            process = await asyncio.create_subprocess_exec(
                binary,
                "--version",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            text, _ = await process.communicate()
    except (OSError, TimeoutError) as error:
        raise ConfigError(f"cluster.etcd.binary = {binary!r} cannot be run: {error}") from None
    found = _VERSION.search(text.decode("utf-8", "replace"))
    if found is None:
        raise ConfigError(f"cluster.etcd.binary = {binary!r} does not say that it is etcd")
    problem = version_problem(found[1])
    if problem is not None:
        raise ConfigError(f"cluster.etcd.binary = {binary!r} is not used: {problem}")
    return found[1]


class EtcdChild:
    """The child, and the task that watches over it."""

    def __init__(self, settings: ChildSettings, troubles: Troubles) -> None:
        self._settings = settings
        self._troubles = troubles
        self._binary = find_binary(settings.binary)
        self._version = ""
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Begin to run it. Raises ConfigError when the program may not be used."""
        self._version = await version_of(self._binary)
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name="etcd-child")

    async def close(self) -> None:
        """End it, by force if it takes too long. Idempotent."""
        self._closing = True
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                _log.warning("etcd did not stop in time and is killed", pid=process.pid)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_MIN_S
        while True:
            began = loop.time()
            why = await self._live()
            if self._closing:
                return
            if loop.time() - began >= STEADY_S:
                pause_s = PAUSE_MIN_S
            text = f"etcd ended ({why}); it starts again in {pause_s:g} s"
            self._troubles.stand(ENDED, self._settings.name, text, blocks=False)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _live(self) -> str:
        """One life of the child. Returns why it ended."""
        settings = self._settings
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it is gone already
                os._exit(1)

        try:
            await asyncio.to_thread(settings.data_dir.mkdir, 0o700, parents=True, exist_ok=True)
            process = await asyncio.create_subprocess_exec(
                *command_line(settings, self._binary, self._version),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES_MAX,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            return str(error)
        self._process = process
        self.starts += 1
        _log.info("etcd started", pid=process.pid, name=settings.name, listen=settings.listen)
        try:
            assert process.stderr is not None
            last = await self._log_lines(process.stderr)
            code = await process.wait()
        finally:
            self._process = None
        return f"{'signal' if code < 0 else 'exit'} {abs(code)}{': ' if last else ''}{last}"

    async def _log_lines(self, lines: asyncio.StreamReader) -> str:
        """Take its lines into our log until it ends. Returns the last one of weight."""
        last = ""
        while True:
            try:
                line = await lines.readline()
            except ValueError:  # longer than the bound: the rest of it is the next one
                continue
            if not line:
                return last
            row = _decode_line(line)
            if row.level in _LEVELS:
                last = row.msg[:200]
                # A member that waits for others, or for a disk, complains often.
                getattr(_log, _LEVELS[row.level])("etcd says", text=row.msg[:500], error=row.error)
            else:
                _log.debug("etcd says", text=row.msg[:500])
                if row.msg.startswith("ready to serve client requests"):
                    self._troubles.clear(ENDED, self._settings.name)


class _Line(msgspec.Struct):
    """A line of its log."""

    level: str = "info"
    msg: str = ""
    error: str = ""


_lines: Final = msgspec.json.Decoder(_Line)


def _decode_line(line: bytes) -> _Line:
    try:
        return _lines.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return _Line(level="warn", msg=line.decode("utf-8", "replace").strip())
