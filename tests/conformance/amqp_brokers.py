"""RabbitMQ from Debian beside ours, for the AMQP scenarios: its own node, ports, cookie, files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.conformance.mqtt_brokers import Server
from tests.support.ports import free_ports

START_S = 90.0
LACKS_RABBITMQ = "RabbitMQ is missing: run 'apt-get install rabbitmq-server' as root"


class RabbitMq(Server):
    """RabbitMQ with Debian's settings, but for ports and places."""

    name = "rabbitmq"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._dist_port, self._epmd_port = free_ports(2)

    @property
    def port(self) -> int:
        return self.ports["amqp"]

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
            "HOME": str(folder),  # where Erlang keeps its cookie
            "RABBITMQ_NODENAME": f"onelog{self._dist_port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.ports["amqp"]),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }

    def start(self) -> RabbitMq:
        script = find_rabbitmq()
        assert script is not None
        self.ports.setdefault("amqp", free_ports(1)[0])
        (self.folder / "plugins").write_text("[].\n")
        # Memory is the machine's and not the tests': no alarm by it.
        (self.folder / "rabbitmq.conf").write_text(
            "vm_memory_high_watermark.relative = 0.9\ndisk_free_limit.absolute = 1MB\n"
        )
        environment = self._environment()
        with (self.folder / "out").open("ab") as out:
            # Erlang would leave its port mapper behind: it is ours to start and to stop.
            self._epmd = subprocess.Popen(
                ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"],
                env=environment,
                stdout=out,
                stderr=out,
            )
            self.process = subprocess.Popen(
                [str(script)], env=environment, cwd=self.folder, stdout=out, stderr=out
            )
        deadline = time.monotonic() + START_S
        while b"completed with" not in (self.folder / "out").read_bytes():
            assert self.process.poll() is None, (self.folder / "out").read_text()
            assert time.monotonic() < deadline, "RabbitMQ did not start"
            time.sleep(0.05)  # it says only in its output that it is ready
        socket.create_connection(("127.0.0.1", self.port), 5).close()
        return self

    def stop(self, number: int = 15) -> int:
        process = self.process
        code = super().stop(number) if process is not None else 0
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait(10)
            self._epmd = None
        return code


def find_rabbitmq() -> Path | None:
    """Its own start script: the one in the path changes to another user."""
    if shutil.which("epmd") is None:
        return None
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return found[-1] if found else None
