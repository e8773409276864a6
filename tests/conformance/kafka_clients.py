"""Real Kafka clients behind one small face, so that each scenario is written once.

Rules: a client runs in its own way (threads, asyncio, a process); the face blocks. What a client
answers with an error raises `Refused` with Kafka's code. Members of groups run in the background
and remember what they were given.
"""

from __future__ import annotations

import base64
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

DEADLINE_S = 30.0
ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """What is sent; a record that is read has its place, too."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int = -1

    def content(self) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
        return self.value, self.key, self.headers


class Refused(Exception):
    """The broker's answer, or the client's, was an error."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class KafkaClient(Protocol):
    """The face. `codecs` and `scenarios` say what this client can do at all."""

    codecs: frozenset[str]
    scenarios: frozenset[str]

    def produce(self, topic: str, records: list[Record], codec: str) -> list[int]: ...
    def read(self, counts: dict[str, int], *, committed: bool) -> dict[str, list[Record]]: ...
    def transact(self, name: str, topic: str, values: list[bytes], *, commit: bool) -> None: ...
    def transform(
        self, name: str, group: str, source: str, target: str, count: int, *, commit: bool
    ) -> None: ...
    def join(self, member: str, group: str, topic: str) -> None: ...
    def assigned(self, member: str) -> list[int]: ...
    def took(self, member: str) -> list[tuple[int, int]]: ...
    def leave(self, member: str) -> None: ...
    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None: ...
    def partitions(self, topic: str) -> int: ...
    def configs(self, topic: str) -> dict[str, str | None]: ...
    def configure(self, topic: str, name: str, value: str) -> None: ...
    def grow(self, topic: str, partitions: int) -> None: ...
    def delete(self, topic: str) -> None: ...
    def topics(self) -> list[str]: ...
    def close(self) -> None: ...


ALL_CODECS = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})
ALL_SCENARIOS = frozenset({"groups", "transactions", "aborts", "transform", "admin"})


def eventually(
    what: Callable[[], T], holds: Callable[[T], bool], deadline_s: float = DEADLINE_S
) -> T:
    """Ask a client until its answer is right; clients have no other way to tell."""
    deadline = time.monotonic() + deadline_s
    while True:
        answer = what()
        if holds(answer):
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {deadline_s} s"
        time.sleep(0.02)


class Member:
    """A member of a group in a thread of its own: `poll` gives what came, `close` leaves."""

    def __init__(
        self,
        poll: Callable[[], Iterable[tuple[int, int]]],
        assigned: Callable[[], list[int]],
        close: Callable[[], None],
    ) -> None:
        self._poll, self._assigned, self._close = poll, assigned, close
        self._stopping = threading.Event()
        self.took: list[tuple[int, int]] = []
        self.assigned: list[int] = []
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.took.extend(self._poll())
                self.assigned = sorted(self._assigned())
            self._close()
        except Exception as error:  # noqa: BLE001  (shown by the next question)
            self._failed = error

    def check(self) -> Member:
        assert self._failed is None, f"the member failed: {self._failed!r}"
        return self

    def leave(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        self.check()
        assert not self._thread.is_alive(), "the member does not end"


class MembersInThreads:
    """The part of the face that is the same for every client with blocking members."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def assigned(self, member: str) -> list[int]:
        return self._members[member].check().assigned

    def took(self, member: str) -> list[tuple[int, int]]:
        return list(self._members[member].check().took)

    def leave(self, member: str) -> None:
        self._members.pop(member).leave()

    def close(self) -> None:
        for member in list(self._members):
            self.leave(member)


# -- a client is a process, told what to do by lines of JSON


def bytes_in(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def bytes_out(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def record_in(row: Mapping[str, Any]) -> Record:
    return Record(
        bytes_in(row["value"]),
        bytes_in(row["key"]),
        tuple((name, bytes_in(value)) for name, value in row["headers"]),
        None if row["timestamp"] is None else int(row["timestamp"]),
        row["partition"],
        int(row.get("offset", -1)),
    )


def record_out(record: Record) -> dict[str, Any]:
    return {
        "value": bytes_out(record.value),
        "key": bytes_out(record.key),
        "headers": [[name, bytes_out(value)] for name, value in record.headers],
        "timestamp": record.timestamp_ms,
        "partition": record.partition,
        "offset": record.offset,
    }


class LineClient:
    """A client process: one line asks, one line answers."""

    scenarios = ALL_SCENARIOS

    def __init__(self, command: list[str], codecs: frozenset[str] = ALL_CODECS) -> None:
        self.codecs = codecs
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._complaints: list[str] = []
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self._complaints.extend(self._process.stderr)

    def ask(self, what: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        line = self._answers.get(timeout=DEADLINE_S * 2)
        assert line is not None, f"the client ended: {''.join(self._complaints)}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer.get("code", -1), answer["error"])
        return answer["answer"]

    def produce(self, topic: str, records: list[Record], codec: str) -> list[int]:
        rows = [record_out(record) for record in records]
        offsets = self.ask("produce", topic=topic, records=rows, codec=codec)
        return [int(offset) for offset in offsets]

    def read(self, counts: dict[str, int], *, committed: bool) -> dict[str, list[Record]]:
        rows = self.ask("read", counts=counts, committed=committed)
        return {topic: [record_in(row) for row in rows[topic]] for topic in counts}

    def transact(self, name: str, topic: str, values: list[bytes], *, commit: bool) -> None:
        texts = [bytes_out(value) for value in values]
        self.ask("transact", name=name, topic=topic, values=texts, commit=commit)

    def transform(
        self, name: str, group: str, source: str, target: str, count: int, *, commit: bool
    ) -> None:
        more = {"group": group, "source": source, "target": target, "count": count}
        self.ask("transform", name=name, commit=commit, **more)

    def join(self, member: str, group: str, topic: str) -> None:
        self.ask("join", member=member, group=group, topic=topic)

    def assigned(self, member: str) -> list[int]:
        return sorted(self.ask("assigned", member=member))

    def took(self, member: str) -> list[tuple[int, int]]:
        return [(row[0], int(row[1])) for row in self.ask("took", member=member)]

    def leave(self, member: str) -> None:
        self.ask("leave", member=member)

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        self.ask("create", topic=topic, partitions=partitions, configs=configs)

    def partitions(self, topic: str) -> int:
        return int(self.ask("partitions", topic=topic))

    def configs(self, topic: str) -> dict[str, str | None]:
        return dict(self.ask("configs", topic=topic))

    def configure(self, topic: str, name: str, value: str) -> None:
        self.ask("configure", topic=topic, name=name, value=value)

    def grow(self, topic: str, partitions: int) -> None:
        self.ask("grow", topic=topic, partitions=partitions)

    def delete(self, topic: str) -> None:
        self.ask("delete", topic=topic)

    def topics(self) -> list[str]:
        return list(self.ask("topics"))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
