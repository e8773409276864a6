"""The broker that is measured: one that runs, or a throw-away one for the length of a block.

Rules: the throw-away broker is `onelog serve` in a process of its own, with data in a temporary
directory, on ports that the system chooses, and with no configuration but that. It ends with the
block, however the block ends, and its data with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from onelog.base.errors import ConfigError, Unavailable
from onelog.cli.options import Assignments, ConfigFile
from onelog.cli.talk.address import address_of
from onelog.cli.talk.link import BrokerAddress

Protocol = Literal["mqtt", "kafka", "amqp"]
Durability = Literal["memory", "os", "fsync"]
START_S: Final = 60.0
STOP_S: Final = 20.0
PROTOCOLS: Final = ("mqtt", "kafka", "amqp")

Flag = Parameter(negative=(), show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Target:
    """A broker that runs; unless it is named, a throw-away one is started."""

    host: Annotated[
        str, Parameter(help="Host of a running broker; default: a throw-away broker is started.")
    ] = ""
    port: Annotated[int, Parameter(help="Port of a running broker.")] = 0
    user: Annotated[str, Parameter(name=["--user", "-u"], help="Name of the user.")] = ""
    password_file: Annotated[
        Path | None, Parameter(help="File with the password in its first line.")
    ] = None
    tls: Annotated[bool, Flag, Parameter(help="Speak TLS.")] = False
    ca_file: Annotated[
        str, Parameter(help="PEM file: authorities for the broker's certificate.")
    ] = ""
    config: ConfigFile = None
    assignments: Assignments = ()

    @property
    def is_named(self) -> bool:
        """Whether any option says which broker."""
        return self != NOWHERE

    def address(self, protocol: Protocol) -> BrokerAddress:
        """Where it listens. Raises ConfigError."""
        return address_of(self, protocol)


NOWHERE: Final = Target()


class Server:
    """A throw-away broker that serves one protocol."""

    def __init__(
        self, protocol: Protocol, durability: Durability, folder: Path | None = None
    ) -> None:
        self._folder = folder
        """Below which its data lies; None: where the system has temporary files."""
        self._protocol = protocol
        self._durability = durability
        self._stack = contextlib.ExitStack()
        self.pid = 0
        self.address = BrokerAddress(host="127.0.0.1", port=0)
        self.is_in_memory = False
        """Whether the data lies in a file system that has no disk."""

    def __enter__(self) -> Server:
        with self._stack as stack:
            try:
                made = tempfile.TemporaryDirectory(prefix="onelog-bench-", dir=self._folder)
            except OSError as error:
                raise ConfigError(f"--folder {self._folder}: {error.strerror}") from error
            folder = Path(stack.enter_context(made))
            self.is_in_memory = in_memory(folder)
            process = self._start(folder)
            stack.callback(_stop, process)
            self.pid = process.pid
            self.address = BrokerAddress(host="127.0.0.1", port=self._port(process))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _start(self, folder: Path) -> subprocess.Popen[str]:
        (folder / "onelog.toml").touch()
        others = [f"listeners.{name}.enabled=false" for name in PROTOCOLS if name != self._protocol]
        values = (
            f"listeners.{self._protocol}.port=0",
            "listeners.admin.port=0",
            *others,
            f'defaults.stream.durability="{self._durability}"',
            'log.level="error"',
        )
        flags = [part for value in values for part in ("--set", value)]
        place = ("--config", str(folder / "onelog.toml"), "--data", str(folder / "data"))
        kept = ("ONELOG_PURE",)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ONELOG_") or name in kept
        }
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - it is this program
                [sys.executable, "-m", "onelog", "serve", *place, *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours: the block ends, and with it the broker
            )

    def _port(self, process: subprocess.Popen[str]) -> int:
        """The port that the broker says it listens on."""
        late = threading.Timer(START_S, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                found = re.search(rf"\b{self._protocol}://\S*:(\d+)", line)
                if found:
                    return int(found.group(1))
        finally:
            late.cancel()
        raise Unavailable("the throw-away broker did not start; try `onelog serve`")


def in_memory(folder: Path) -> bool:
    """Whether a folder lies in a file system that has no disk: a sync costs nothing there."""
    kinds: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _device, place, kind, *_rest = line.split(" ")
            kinds[place] = kind
    for above in (folder.resolve(), *folder.resolve().parents):
        if str(above) in kinds:
            return kinds[str(above)] in ("tmpfs", "ramfs")
    return False


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
