"""Does `pub --via kafka` on a cluster lose nothing, double nothing and keep the order?

The nodes are clients without a network, before one partition that checks numbers as ours do.
"""

from __future__ import annotations

from collections import deque

import pytest

from onelog.base.errors import DuplicateSequence, OnelogError
from onelog.cli.talk.kafka import KafkaTalker
from onelog.cli.talk.link import BrokerAddress
from onelog.cli.talk.messages import Message
from onelog.kafka_client import Access, leaders
from onelog.kafka_client.messages import Metadata, Part, Produced, Producer, Topic
from onelog.kernel import scan_batches
from onelog.log.producers import Producers
from onelog.protocols.kafka.errors import code_of
from onelog.record.batch import decode

NOT_LEADER = 6
DUPLICATE = 46
Batches = dict[Part, bytes]


class Partition:
    """A log, and how it answers."""

    def __init__(self) -> None:
        self.log: list[bytes | None] = []
        self.says: deque[int] = deque()
        """Codes for the next batches, which are not appended then; 0: it is taken."""
        self.has_come = False
        self._producers = Producers()

    def append(self, batch: bytes) -> Produced:
        code = self.says.popleft() if self.says else 0
        if code:
            return Produced(code, -1, None)
        info = scan_batches(batch, 0, False)[0]
        try:
            repeated = self._producers.check(info)
        except OnelogError as error:
            return Produced(int(code_of(error)), -1, str(error))
        if repeated is not None:
            return Produced(0, repeated.base_offset, None)
        base = len(self.log)
        self.log.append(decode(batch, info, check_crc=False).record(0)[3])
        self._producers.note_batch(info._replace(base_offset=base, last_offset=base), 0)
        return Produced(0, base, None)


class Node:
    """A client of some nodes."""

    def __init__(self, access: Access, partition: Partition) -> None:
        self.access, self._partition = access, partition
        self._answers: deque[dict[Part, Produced]] = deque()

    def connect(self) -> None:
        """It is."""

    def close(self) -> None:
        """It has nothing."""

    def metadata(self, names: list[str], **_options: object) -> Metadata:
        nodes = {1: ("a", 1), 2: ("b", 2)}
        return Metadata(nodes, [Topic(name, 0, {0: 1}, False) for name in names])

    def init_producer(self, _transaction: None, _timeout_ms: int) -> Producer:
        return Producer(77, 0)

    def produce(self, batches: Batches) -> dict[Part, Produced]:
        assert not self._answers, "answers to what was posted come first"
        return {part: self._partition.append(batch) for part, batch in batches.items()}

    def post(self, batches: Batches) -> None:
        self._answers.append(
            {part: self._partition.append(batch) for part, batch in batches.items()}
        )

    def posted(self) -> dict[Part, Produced]:
        return self._answers.popleft()

    def has_come(self) -> bool:
        return self._partition.has_come


@pytest.fixture
def partition(monkeypatch: pytest.MonkeyPatch) -> Partition:
    made = Partition()
    monkeypatch.setattr(leaders, "Client", lambda access: Node(access, made))
    return made


def talker() -> KafkaTalker:
    return KafkaTalker(BrokerAddress(host="a", port=1))


def publish(talking: KafkaTalker, *payloads: bytes) -> None:
    for payload in payloads:
        talking.publish(Message(topic="t", payload=payload))


def test_nothing_takes_the_place_of_a_first_batch_that_was_refused(partition: Partition) -> None:
    partition.says = deque([NOT_LEADER])
    talking = talker()
    publish(talking, b"0", b"1", b"2")
    talking.flush()
    assert partition.log == [b"0", b"1", b"2"]


def test_a_later_batch_that_was_refused_is_sent_again_in_order(partition: Partition) -> None:
    partition.says = deque([0, 0, NOT_LEADER])
    talking = talker()
    publish(talking, *(b"%d" % number for number in range(9)))
    talking.flush()
    assert partition.log == [b"%d" % number for number in range(9)]


def test_a_duplicate_that_the_partition_does_not_know_is_no_success(partition: Partition) -> None:
    partition.says = deque([0, DUPLICATE])
    talking = talker()
    publish(talking, b"0", b"1")
    with pytest.raises(DuplicateSequence):
        talking.flush()


def test_an_answer_that_has_come_is_read_before_the_next_message(partition: Partition) -> None:
    partition.says = deque([0, NOT_LEADER])
    partition.has_come = True
    talking = talker()
    publish(talking, b"0", b"1")
    assert partition.log == [b"0"]
    publish(talking, b"2")
    assert partition.log == [b"0", b"1", b"2"]
