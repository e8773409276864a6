"""kcat, the command line client, behind the face of `kafka_clients`: a process for each call.

Rules: a header or a codec is for a whole call, so records with different headers are sent by
different calls; kcat sets no time.
"""

from __future__ import annotations

import itertools
import re
import shutil
import signal
import subprocess
import threading

from tests.conformance.kafka_clients import ALL_CODECS, DEADLINE_S, Header, Record

FORMAT = "%t %p %o %T %K %S\n%k%s\n%h\n"
HEAD = re.compile(rb"(\S+) (-?\d+) (-?\d+) (-?\d+) (-?\d+) (-?\d+)\n")
KEY_END, VALUE_END = b"\x1e", b"\x1f"


def available() -> bool:
    return shutil.which("kcat") is not None


def parsed(output: bytes) -> list[tuple[str, Record]]:
    """What kcat printed with FORMAT."""
    rows: list[tuple[str, Record]] = []
    at = 0
    while at < len(output):
        head = HEAD.match(output, at)
        assert head, output[at : at + 80]
        topic, partition, offset, stamp, key_size, value_size = head.groups()
        at = head.end()
        parts: list[bytes | None] = []
        for size in (int(key_size), int(value_size)):
            parts.append(None if size < 0 else output[at : at + size])
            at += max(size, 0)
        end = output.index(b"\n", at + 1)
        headers = tuple(header(text) for text in output[at + 1 : end].split(b",") if text)
        at = end + 1
        record = Record(parts[1], parts[0], headers, int(stamp), int(partition), int(offset))
        rows.append((topic.decode(), record))
    return rows


def shape(record: Record) -> tuple[tuple[Header, ...], bool, bool]:
    """What is the same for all records of a call: headers, whether keys are given, whether empty
    means null."""
    keyed = record.key is not None
    return record.headers, keyed, record.value is None


def header(shown: bytes) -> Header:
    name, _, value = shown.partition(b"=")
    return name.decode(), None if value == b"NULL" else value


class KcatMember:
    """A member of a group: `kcat -G`."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self.took: list[tuple[int, int]] = []
        self.assigned: list[int] = []
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._rows, self._events)
        ]
        for thread in self._threads:
            thread.start()

    def _rows(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            partition, offset = line.split()
            self.took.append((int(partition), int(offset)))

    def _events(self) -> None:
        """kcat says on stderr what it is assigned: `… (assigned): topic [0], topic [1]`."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if b"rebalanced" in line:
                found = re.findall(rb"\[(\d+)\]", line) if b"assigned" in line else []
                self.assigned = sorted(map(int, found))

    def leave(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class Kcat:
    codecs = ALL_CODECS
    scenarios = frozenset({"groups", "transactions"})

    def __init__(self, port: int) -> None:
        self._address = f"127.0.0.1:{port}"
        self._members: dict[str, KcatMember] = {}

    def _command(self, *arguments: str) -> list[str]:
        return ["kcat", "-b", self._address, "-q", *arguments]

    def _run(self, *arguments: str, given: bytes = b"") -> bytes:
        done = subprocess.run(
            self._command(*arguments),
            input=given,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout

    def produce(self, topic: str, records: list[Record], codec: str) -> list[int]:
        for (headers, keyed, null), run in itertools.groupby(records, shape):
            named = [part for name, value in headers for part in ("-H", f"{name}={text(value)}")]
            lines = [
                ((row.key or b"") + KEY_END if keyed else b"") + (row.value or b"") for row in run
            ]
            self._run(
                *("-P", "-t", topic, "-p", "0", "-z", codec, "-X", "linger.ms=20"),
                *("-D", VALUE_END.decode(), *named),
                *(("-K", KEY_END.decode()) if keyed else ()),
                *(("-Z",) if null else ()),
                given=b"".join(line + VALUE_END for line in lines),
            )
        return []

    def read(self, counts: dict[str, int], *, committed: bool) -> dict[str, list[Record]]:
        level = "read_committed" if committed else "read_uncommitted"
        found: dict[str, list[Record]] = {}
        for topic, count in counts.items():
            output = self._run(
                *("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-e"),
                *("-f", FORMAT, "-X", f"isolation.level={level}", "-X", "check.crcs=true"),
            )
            found[topic] = [record for _topic, record in parsed(output)]
            assert len(found[topic]) == count, (topic, len(found[topic]))
        return found

    def transact(self, name: str, topic: str, values: list[bytes], *, commit: bool) -> None:
        """All of its input is one transaction; interrupted, it just ends."""
        assert commit, "kcat cannot abort"
        given = b"".join(value + b"\n" for value in values)
        self._run("-P", "-t", topic, "-p", "0", "-X", f"transactional.id={name}", given=given)

    def join(self, member: str, group: str, topic: str) -> None:
        settings = (
            "auto.offset.reset=earliest", "session.timeout.ms=6000", "heartbeat.interval.ms=300",
            "auto.commit.interval.ms=100", "partition.assignment.strategy=range",
        )  # fmt: skip
        flags = [part for setting in settings for part in ("-X", setting)]
        command = ["kcat", "-b", self._address, "-u", *flags, "-f", "%p %o\n", "-G", group, topic]
        self._members[member] = KcatMember(command)

    def assigned(self, member: str) -> list[int]:
        return self._members[member].assigned

    def took(self, member: str) -> list[tuple[int, int]]:
        return list(self._members[member].took)

    def leave(self, member: str) -> None:
        self._members.pop(member).leave()

    def close(self) -> None:
        for member in list(self._members):
            self.leave(member)


def text(value: bytes | None) -> str:
    assert value is not None, "kcat sends no null header"
    return value.decode()
