"""Three real nodes and etcd on one machine, whose processes and links can be disturbed.

Rules:
- Each node is `onelog serve` in a process of its own, with its own data directory. Client ports are
  new at each start, but for what `same_place` asks for. Inner addresses and those of etcd lead
  through a proxy, so every directed pair of nodes, and each node's way to etcd, can be cut.
- A client may be made at any time, also while no node serves: librdkafka asks the places that it
  begins with again and again. One that begins without any waits for ever, and does not say so.
- Times are short: a registration lasts two seconds, a lagging copy is left out after one.
- What a test broke is healed by `heal`; `close` ends every process that was started here.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic

from onelog.cluster.link.address import LinkAddress
from tests.support.etcd import EtcdCluster
from tests.support.faulty_nodes import SIGNAL, Plan, hits, in_force, onelog_with_faults, write_plan
from tests.support.forks import Fork, onelog
from tests.support.link_proxy import LinkProxy
from tests.support.ports import free_ports

START_S = 60.0
STOP_S = 40.0
ETCD = 100
"""The number of etcd in the proxy; its own members are not told apart."""
PROTOCOLS = ("mqtt", "kafka", "amqp", "admin")


def chosen_ports(settings: Sequence[str]) -> dict[str, int]:
    """The ports of listeners that settings choose."""
    found = (re.fullmatch(r"listeners\.(\w+)\.port=([1-9]\d*)", row) for row in settings)
    return {row[1]: int(row[2]) for row in found if row is not None}


class NodeProcess:
    """One node over all of its processes."""

    def __init__(self, cluster: ThreeNodes, number: int, inner: int, chosen: Sequence[str]) -> None:
        self._cluster = cluster
        self._plans = 0
        self.number = number
        self.folder = cluster.folder / f"node-{number}"
        self.ports: dict[str, int] = {}
        self.lines: list[str] = []
        self._chosen = [
            *(f"listeners.{name}.port=0" for name in PROTOCOLS),
            "listeners.amqp_management.enabled=false",
            f"node.id={number}",
            f'node.rack="r{number}"',
            f"listeners.inner.port={inner}",
            *chosen,
        ]
        self._process: Fork | None = None
        self._ready = threading.Event()

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def kafka(self) -> str:
        """Where Kafka clients find it."""
        return f"127.0.0.1:{self.ports['kafka']}"

    def start(self, *more: str) -> None:
        """Begin a process, this time with more settings; it is ready later. Ports that they choose
        are known at once."""
        assert not self.is_up
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ready, self.ports = threading.Event(), chosen_ports(more)
        rows = [f"--set={row}" for row in (*self._chosen, *more)]
        data = self.folder / "data"
        given, errors = ("serve", f"--data={data}", *rows), self.folder / "errors.log"
        if self._cluster.is_faulty:
            self._process = Fork(onelog_with_faults, str(self.folder), *given, errors=errors)
        else:
            self._process = Fork(self._cluster.runs, *given, errors=errors)
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process: Fork) -> None:
        with process.stdout:
            for row in process.stdout:
                line = row.decode(errors="replace")
                self.lines.append(line)
                found = re.search(r"\b(mqtt|kafka|amqp|admin)\b.*?:(\d+)", line)
                if found:
                    self.ports.setdefault(found[1], int(found[2]))
                if line.strip().startswith("kernel"):
                    self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        """Until it serves clients."""
        assert self._ready.wait(START_S), f"node {self.number} is not ready:\n{self.output}"
        assert self.is_up, f"node {self.number} ended:\n{self.output}"

    @property
    def output(self) -> str:
        """The last of what it said."""
        errors = self.folder / "errors.log"
        told = errors.read_text(errors="replace") if errors.exists() else ""
        return ("".join(self.lines) + told)[-4000:]

    # -- nemeses

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)

    def pause(self) -> None:
        """Let the process stand still, with all its connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Stop it as operators do: it hands over first."""
        if self.is_up:
            assert self._process is not None
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_S)

    def suffer(self, plan: Plan) -> None:
        """Let something be wrong with its disk or clock: now, or from its next start on."""
        assert self._cluster.is_faulty
        self._plans += 1
        write_plan(self.folder, msgspec.structs.replace(plan, serial=self._plans))
        if self.is_up:
            assert self._process is not None
            self._process.send_signal(SIGNAL)
            self._cluster.until(lambda: in_force(self.folder) == self._plans, 20, "no such fault")

    def hits(self, point: str) -> int:
        """How often it passed a point of its plans."""
        return hits(self.folder, point)

    @property
    def same_place(self) -> str:
        """A setting for the next start: clients that know no other node find it again."""
        return f"listeners.kafka.port={self.ports['kafka']}"

    def restart(self, *more: str) -> None:
        """Begin anew on the same data."""
        self.start(*more)
        self.wait_ready()


class ThreeNodes:
    """The nodes 1 to 3, etcd, and the proxy between them."""

    def __init__(
        self,
        folder: Path,
        *chosen: str,
        etcd_members: int = 1,
        is_faulty: bool = False,
        runs: Callable[..., None] = onelog,
    ) -> None:
        """`is_faulty`: something may be wrong with disks and clocks (`NodeProcess.suffer`). `runs`
        is what a node without faults runs."""
        self.folder, self.is_faulty, self.runs = folder, is_faulty, runs
        self.proxy = LinkProxy()
        (folder / "etcd").mkdir(parents=True)
        self.etcd = EtcdCluster(folder / "etcd", etcd_members)
        self._chosen = chosen
        self.nodes: list[NodeProcess] = []
        self.start_s = 0.0
        """How long the start of everything took."""

    def __enter__(self) -> ThreeNodes:
        begin = time.monotonic()
        self.proxy.__enter__()
        try:
            self.etcd.start()
            for number, port in zip((1, 2, 3), free_ports(3), strict=True):
                self.nodes.append(self._make(number, port))
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.wait_ready()
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - begin
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, number: int, port: int) -> NodeProcess:
        inner = self.proxy.front(number, LinkAddress(host="127.0.0.1", port=port))
        urls = []
        for member in self.etcd.members:
            upstream = LinkAddress(host="127.0.0.1", port=member.port)
            front = self.proxy.front(ETCD, upstream, source=number)
            urls.append(f"http://127.0.0.1:{front.port}")
        return NodeProcess(
            self,
            number,
            port,
            (
                f'listeners.inner.advertised="127.0.0.1:{inner.port}"',
                'cluster.mode="etcd"',
                f"cluster.etcd.endpoints={json.dumps(urls)}",
                "cluster.etcd.deadline_ms=2000",
                "cluster.node_ttl_ms=2000",
                "cluster.lag_ms=1000",
                *self._chosen,
            ),
        )

    def close(self) -> None:
        """End everything."""
        for node in self.nodes:
            with contextlib.suppress(Exception):
                node.go_on()
            node.kill()
        self.etcd.close()
        self.proxy.__exit__()

    def node(self, number: int) -> NodeProcess:
        """The node of an id."""
        return self.nodes[number - 1]

    # -- nemeses

    def isolate(self, number: int, *, etcd: bool = False) -> None:
        """Cut a node off from the others, and from etcd if it is on the wrong side."""
        for node in self.nodes:
            if node.number != number:
                self.proxy.part(number, node.number)
        if etcd:
            self.proxy.part(number, ETCD)

    def part(self, one: int, other: int) -> None:
        """Cut two nodes off from each other."""
        self.proxy.part(one, other)

    def cut(self, source: int, target: int) -> None:
        """Cut one direction."""
        self.proxy.cut(source, target)

    def cut_etcd(self, number: int) -> None:
        """Cut a node off from etcd only."""
        self.proxy.part(number, ETCD)

    def heal(self) -> None:
        """Let every link be whole."""
        self.proxy.heal()

    # -- what clients see

    @property
    def bootstrap(self) -> str:
        """Where Kafka clients begin."""
        places = [node.kafka for node in self.nodes if "kafka" in node.ports]
        assert places, "no node has a place yet: start one at its `same_place`"
        return ",".join(places)

    def admin(self) -> AdminClient:
        """A client for metadata."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 5000})

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic on all three nodes, and wait for its leaders."""
        admin = self.admin()  # it must live as long as its calls
        made = admin.create_topics(
            [NewTopic(topic, partitions, -1)], request_timeout=20, operation_timeout=20
        )
        made[topic].result(30)
        self.until(partial(self.is_synced, topic), START_S, f"{topic} has no leaders")

    def rows(self, topic: str) -> dict[int, Any]:
        """Partition → leader, replicas and in-sync replicas, as some node says."""
        return self.admin().list_topics(topic, timeout=10).topics[topic].partitions

    def leader(self, topic: str, partition: int) -> NodeProcess:
        """Who leads a partition."""
        self.until(lambda: self.rows(topic)[partition].leader > 0, 20, "there is no leader")
        return self.node(self.rows(topic)[partition].leader)

    def controller(self) -> NodeProcess:
        """Which node decides for all, as a node that runs says."""
        for node in self.nodes:
            with contextlib.suppress(OSError, KeyError):  # it does not run, or does not serve yet
                found = int(self.seen(node.number)["controller"])
                if found > 0 and self.node(found).is_up:
                    return self.node(found)
        raise AssertionError("no node knows a controller")

    def is_synced(self, topic: str, copies: int = 3) -> bool:
        """Whether all copies of a topic are in sync."""
        rows = self.rows(topic).values()
        return bool(rows) and all(row.leader > 0 and len(row.isrs) == copies for row in rows)

    def until(self, holds: Callable[[], bool], seconds: float, words: str) -> None:
        """Wait for something that clients see."""
        end, last = time.monotonic() + seconds, None
        while True:
            try:
                if holds():
                    return
            except Exception as error:  # noqa: BLE001 - no node may be there at the moment
                last = error
            assert time.monotonic() < end, f"{words} after {seconds:.0f} s: {last}"
            time.sleep(0.1)

    def seen(self, number: int) -> dict[str, Any]:
        """What a node's admin API says of the cluster."""
        url = f"http://127.0.0.1:{self.node(number).ports['admin']}/api/v1/cluster"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())

    # -- the end

    def stop_all(self) -> None:
        """Stop every node, one after the other, so that their data can be read."""
        for node in self.nodes:
            node.terminate()
