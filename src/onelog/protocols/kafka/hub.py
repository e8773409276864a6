"""What all Kafka connections share: the broker, topics, groups, transactions, settings, counters.

Rules: opened after the broker; groups and transactions are recovered before the first connection is
accepted. If the stream of one is damaged, requests that need it are refused (`recovered.py`); the
rest is served.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from onelog.base.clock import Clock
from onelog.base.limits import STREAM_NAME_CHARS_MAX
from onelog.broker import Broker, Stream, written_once
from onelog.broker.hanging import hang
from onelog.broker.producer_ids import ProducerIds
from onelog.config import Config
from onelog.net import ConnectionCounters, Connections
from onelog.observe import Sample
from onelog.protocols.kafka.admin.choosing import default_config
from onelog.protocols.kafka.apis import APIS
from onelog.protocols.kafka.appending import Appends
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.fetching import Fetch
from onelog.protocols.kafka.groups.coordinator import Groups
from onelog.protocols.kafka.groups.rows import STREAM as GROUPS
from onelog.protocols.kafka.recovered import RecoveredState
from onelog.protocols.kafka.topics import Topics, check_name
from onelog.protocols.kafka.traced import TracedFetch
from onelog.protocols.kafka.transactions.coordinator import STREAM as TRANSACTIONS
from onelog.protocols.kafka.transactions.coordinator import Coordinator
from onelog.protocols.kafka.transactions.opening import open_coordinator
from onelog.protocols.kafka.transactions.participants import Participants
from onelog.protocols.kafka.transactions.verifying import Verifier
from onelog.protocols.kafka.views.elsewhere import ViewsElsewhere
from onelog.protocols.kafka.views.registry import Views
from onelog.security.authenticator import Authenticator

if TYPE_CHECKING:
    from onelog.protocols.kafka.connection import Connection

_CLUSTER_ID_KEY: Final = "kafka/cluster_id"


class Counters(ConnectionCounters):
    """Plain numbers, read by the metrics."""

    __slots__ = ("logins", "protocol_errors", "received_bytes", "requests")

    def __init__(self) -> None:
        super().__init__()
        self.logins = 0
        self.requests = 0
        self.protocol_errors = 0
        self.received_bytes = 0


class Hub:
    """Make one, then `open` it before the first connection."""

    def __init__(
        self,
        broker: Broker,
        authenticator: Authenticator,
        config: Config,
        clock: Clock,
    ) -> None:
        self.broker = broker
        self.authenticator = authenticator
        self.config = config
        self.settings = config.kafka
        self.limits = config.kafka.limits
        self.clock = clock
        self.node_id = config.node.id
        self.loop = asyncio.get_running_loop()
        self.topics = Topics(broker)
        self.views = Views(broker)
        self.topics.views = self.views
        self.elsewhere = ViewsElsewhere(broker, self.topics, self.views)
        """Views that other nodes know."""
        self.appends = Appends(self)
        self.connections: Connections[Connection] = Connections(
            authenticator.is_current, broker.troubles
        )
        self.fetch: type[Fetch] = Fetch if broker.traces is None else TracedFetch
        """What serves a fetch."""
        self.counters = Counters()
        self.cluster_id = ""
        self.long_answers = asyncio.Lock()
        """Held while an answer of many rows is written in a thread: one at a time, so that the loop
        shares the interpreter with one such thread only."""
        self.producer_ids = ProducerIds(broker.store)
        self._groups = RecoveredState[Groups](GROUPS, broker.troubles)
        self._transactions = RecoveredState[Coordinator](TRANSACTIONS, broker.troubles)
        self.participants: Participants
        """What transactions touch, here and elsewhere; made with the groups."""
        self.verifier: Verifier
        """Verifies writes of transactions that other nodes coordinate; made with the groups."""
        self._opened = AsyncExitStack()
        """Closes everything that is open, the last first."""
        self.rights_changes = 0
        """How often the authorizer's answers changed: what waits asks again then."""
        self.judges_claims = broker.authorizer.checks_delivery
        """Whether reserved headers of producers need rights: there are access rules."""
        hang(self._opened, broker.authorizer.on_change, self._rights_changed)
        self._opened.callback(self.views.close)
        self._opened.callback(self.topics.close)
        self._opened.callback(self.elsewhere.close)
        self._opened.callback(self.appends.close)

    async def open(self) -> None:
        """Recover groups and transactions."""
        self.cluster_id = await self._load_cluster_id()
        await self.producer_ids.open()
        self._opened.push_async_callback(self.producer_ids.close)
        groups = await self._groups.open(Groups.open(self.broker, self.settings.groups, self.clock))
        if groups is not None:
            self._opened.push_async_callback(groups.close)
            await self._open_transactions(groups)
        self._opened.callback(self.authenticator.on_change(self.connections.user_changed))

    async def _open_transactions(self, groups: Groups) -> None:
        self.participants = Participants(self.broker, self.topics, groups)
        self._opened.callback(self.participants.close)
        self.verifier = Verifier(self)
        self._opened.callback(self.verifier.close)
        transactions = await self._transactions.open(
            open_coordinator(
                self.broker,
                self.participants,
                self.producer_ids,
                self.settings.transactions,
                self.clock,
            )
        )
        if transactions is not None:
            self._opened.push_async_callback(transactions.close)

    @property
    def groups(self) -> Groups:
        """Every group of this node. Raises StateUnknown."""
        return self._groups.get()

    @property
    def transactions(self) -> Coordinator:
        """Every transaction. Raises StateUnknown, also for groups: their offsets move with it."""
        self._groups.get()
        return self._transactions.get()

    def verifies(self, transactional_id: str) -> bool:
        """Whether this node verifies writes of a transactional id alone."""
        return self._groups.find() is None or self.verifier.is_coordinated_here(transactional_id)

    def samples(self) -> Iterator[Sample]:
        """Numbers of known groups and transactions, for the metrics."""
        for state in (self._groups.find(), self._transactions.find()):
            if state is not None:
                yield from state.samples()

    async def _load_cluster_id(self) -> str:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=")
        return (await written_once(self.broker.store, _CLUSTER_ID_KEY, made)).decode()

    def _rights_changed(self) -> None:
        self.rights_changes += 1
        self.judges_claims = self.broker.authorizer.checks_delivery

    async def close(self) -> None:
        """Close every connection, and everything that was opened."""
        for connection in list(self.connections):
            connection.close("the broker stops")
        await self._opened.aclose()

    async def make_topic(self, name: str, partitions: int) -> Stream:
        """Make a topic with a stream of its own. Raises KafkaError or OnelogError."""
        self.check_room(partitions)
        config = default_config(
            self.config.defaults.stream, self.stream_name(name), check_name(name), partitions
        )
        return await self.broker.streams.create(config)

    def check_room(self, more: int) -> None:
        """Refuse partitions that this node has no room for."""
        most = self.settings.topics.partitions_total
        held = sum(len(stream.partitions) for stream in self.broker.streams.streams())
        if held + more > most:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"this node has {held} partitions and takes {most} (kafka.topics.partitions_total):"
                f" there is no room for {more} more",
            )

    def stream_name(self, topic: str) -> str:
        """The name of a new topic's stream: the topic's name, unless that is for another stream."""
        plain = f"kafka.{topic}" if self.broker.streams.checks.is_reserved(topic) else topic
        name, number = plain[:STREAM_NAME_CHARS_MAX], 1
        while self.broker.streams.find(name) is not None:
            number += 1
            name = f"{plain[: STREAM_NAME_CHARS_MAX - 10]}-{number}"
        return name

    def api_versions(self, error: ErrorCode = ErrorCode.none) -> Body:
        """The answer to ApiVersions."""
        return {
            "error_code": error,
            "api_keys": [
                {"api_key": int(api.key), "min_version": api.first, "max_version": api.last}
                for api in APIS.values()
            ],
        }
