"""A broker that speaks Kafka on a data directory, in a process of its own that dies young.

Each process is a copy of one that has everything imported already, so a death costs milliseconds.
Nothing is saved by a timer: only what the broker saves before it answers survives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from onelog.assembly import open_broker
from onelog.base import faults
from onelog.base.clock import SystemClock
from onelog.broker import BrokerSettings
from onelog.config import Config
from onelog.config.kafka import Kafka, KafkaGroups
from onelog.config.listeners import KafkaListener, Listeners
from onelog.protocols.kafka.server import KafkaServer
from onelog.security.authenticator import Authenticator, SecuritySettings
from tests.support.forks import begin, forks

DEADLINE_S = 30.0
SETTINGS = BrokerSettings(
    checkpoint_interval_s=3600.0, maintenance_interval_s=3600.0, flush_interval_s=3600.0
)


def _serve(data: str, port: int, spec: str, ready: Connection) -> None:
    asyncio.run(_run(Path(data), port, spec, ready))


async def _run(data: Path, port: int, spec: str, ready: Connection) -> None:
    faults.arm_from_environment(spec)
    data.mkdir(exist_ok=True)
    clock = SystemClock()
    config = Config(
        listeners=Listeners(kafka=KafkaListener(port=port)),
        kafka=Kafka(groups=KafkaGroups(initial_rebalance_delay_ms=0)),
    )
    broker = await open_broker(data, SETTINGS, clock)
    authenticator = await Authenticator.open(broker.store, clock, SecuritySettings())
    server = KafkaServer(config, clock)
    server.bind()
    await server.start(broker, authenticator)
    ready.send(server.listeners[0][0].port)
    await asyncio.Event().wait()


class KafkaChild:
    """The process; `start` it again after it died: it keeps its port."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = 0
        self._process: ForkServerProcess | None = None

    def start(self, spec: str = "") -> bool:
        """Whether it lived until it could be spoken to."""
        ours, theirs = forks.Pipe(duplex=False)
        process = begin(_serve, str(self.data), self.port, spec, theirs)
        theirs.close()
        self._process = process
        try:
            assert ours.poll(DEADLINE_S), "the broker is not ready in time"
            self.port = ours.recv()
        except EOFError:
            return False
        finally:
            ours.close()
        return True

    def wait(self) -> int | None:
        """How it ended."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.join(DEADLINE_S)
        return process.exitcode

    def kill(self) -> None:
        """As kill -9 does."""
        if self._process is not None and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it died by itself
                os.kill(self._process.pid, signal.SIGKILL)
            self.wait()
