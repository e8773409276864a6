"""The requests of a transaction one by one, at any version, without a client's own will."""

from __future__ import annotations

import json
from typing import Any

from kio.schema.errors import ErrorCode

from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.record.batch import build_batch
from tests.support.kafka_wire import Wire

E = ErrorCode
K = ApiKey
UNREADY = (E.not_coordinator, E.coordinator_not_available, E.coordinator_load_in_progress)
NOW_MS = 1_700_000_000_000


class Talk:
    """One connection, and the requests of a transaction at one version (or the last before it)."""

    def __init__(self, port: int, version: int = 99) -> None:
        self.wire = Wire(port)
        self._version = version

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_error: object) -> None:
        self.wire.close()

    def ask(self, key: ApiKey, **body: Any) -> Any:
        api = APIS[key]
        version = min(max(self._version, api.first, api.served), api.last)
        return self.wire.ask(key, version, **body)

    def topic(self, name: str) -> str:
        """Make a topic of four partitions that can be written to."""
        row = {
            "name": name,
            "num_partitions": 4,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        made = self.wire.ask(K.CREATE_TOPICS, 4, topics=[row], timeout=30_000, validate_only=False)
        assert made.topics[0].error_code is E.none
        while True:
            topics = [{"name": name}]
            (found,) = self.wire.ask(
                K.METADATA, 4, topics=topics, allow_auto_topic_creation=False
            ).topics
            codes = {found.error_code, *(part.error_code for part in found.partitions)}
            if codes == {E.none} and len(found.partitions) == 4:
                return name

    def init(self, name: str | None, timeout_ms: int = 60_000, expected=(-1, -1)) -> Any:
        """The answer to InitProducerId of a broker that is ready for it."""
        while True:
            answer = self.ask(
                K.INIT_PRODUCER_ID,
                transactional_id=name,
                transaction_timeout=timeout_ms,
                producer_id=expected[0],
                producer_epoch=expected[1],
            )
            if answer.error_code not in UNREADY:
                return answer
            self.find_coordinator(name or "", 1)

    def find_coordinator(self, key: str, kind: int) -> None:
        """Apache Kafka makes its own topics for coordinators when it is asked for one."""
        while self.wire.ask(K.FIND_COORDINATOR, 1, key=key, key_type=kind).error_code is not E.none:
            pass

    def producer(self, name: str | None) -> tuple[int, int]:
        answer = self.init(name)
        assert answer.error_code is E.none
        return answer.producer_id, answer.producer_epoch

    def add(self, name: str, producer: tuple[int, int], **topics: list[int]) -> dict:
        answer = self.ask(
            K.ADD_PARTITIONS_TO_TXN,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                {"name": topic, "partitions": rows} for topic, rows in topics.items()
            ],
        )
        return {
            (topic.name, row.partition_index): row.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        }

    def produce(
        self, name: str | None, producer: tuple[int, int], topic: str, value: bytes, **rest: int
    ) -> ErrorCode:
        batch = build_batch(
            [(None, None, value, (), NOW_MS)],
            attributes=ATTR_TRANSACTIONAL,
            producer=(*producer, rest.get("sequence", 0)),
        )
        part = {"index": rest.get("partition", 0), "records": batch}
        while True:
            answer = self.ask(
                K.PRODUCE,
                transactional_id=name,
                acks=-1,
                timeout=5000,
                topic_data=[{"name": topic, "partition_data": [part]}],
            )
            code = answer.responses[0].partition_responses[0].error_code
            if code is not E.not_leader_or_follower:
                return code

    def add_offsets(self, name: str, producer: tuple[int, int], group: str) -> ErrorCode:
        return self.ask(
            K.ADD_OFFSETS_TO_TXN,
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        ).error_code

    def commit_offset(
        self, name: str, producer: tuple[int, int], group: str, topic: str, offset: int, **rest: Any
    ) -> ErrorCode:
        row = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": "m",
        }
        while True:
            answer = self.ask(
                K.TXN_OFFSET_COMMIT,
                transactional_id=name,
                group_id=group,
                producer_id=producer[0],
                producer_epoch=producer[1],
                generation_id=rest.get("generation", -1),
                member_id=rest.get("member", ""),
                group_instance_id=None,
                topics=[{"name": topic, "partitions": [row]}],
            )
            code = answer.topics[0].partitions[0].error_code
            if code not in UNREADY:
                return code
            self.find_coordinator(group, 0)

    def end(self, name: str, producer: tuple[int, int], *, commit: bool) -> ErrorCode:
        return self.ask(
            K.END_TXN,
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        ).error_code

    def link(
        self, query: str, batch: int, members: dict[str, tuple[int, int]], **rest: Any
    ) -> dict[str, Any]:
        """Decide a batch of a query; the answer as it came."""
        rows = [[name, *producer] for name, producer in members.items()]
        asked = {"query": query, "batch": batch, "commit": True, "members": rows, **rest}
        answer: dict[str, Any] = json.loads(self.wire.ask_bytes(K.LINK, json.dumps(asked).encode()))
        return answer

    def stage(self, name: str, topic: str, value: bytes, *partitions: int) -> tuple[int, int]:
        """What a task does: a record in each partition, in a transaction that stays open."""
        while (answer := self.init(name)).error_code is E.concurrent_transactions:
            pass
        producer = answer.producer_id, answer.producer_epoch
        assert set(self.add(name, producer, **{topic: list(partitions)}).values()) == {E.none}
        for partition in partitions:
            assert self.produce(name, producer, topic, value, partition=partition) is E.none
        return producer

    def ended(self, name: str, producer: tuple[int, int], *, commit: bool = True) -> None:
        """End a transaction and wait until its markers are written."""
        assert self.end(name, producer, commit=commit) is E.none
        while self.end(name, producer, commit=commit) is E.concurrent_transactions:
            pass

    def state(self, name: str) -> Any:
        (row,) = self.ask(K.DESCRIBE_TRANSACTIONS, transactional_ids=[name]).transaction_states
        return row

    def offset(self, group: str, topic: str) -> int:
        answer = self.wire.ask(
            K.OFFSET_FETCH,
            7,
            group_id=group,
            topics=[{"name": topic, "partition_indexes": [0]}],
            require_stable=False,
        )
        return answer.topics[0].partitions[0].committed_offset

    def latest(self, topic: str, *, committed: bool, partition: int = 0) -> int:
        answer = self.wire.ask(
            K.LIST_OFFSETS,
            2,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[
                {
                    "name": topic,
                    "partitions": [{"partition_index": partition, "timestamp": -1}],
                }
            ],
        )
        return answer.topics[0].partitions[0].offset
