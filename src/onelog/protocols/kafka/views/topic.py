"""A view as a Kafka topic: its name, its id, and the partitions that it shows.

Rules: the id derives from the filter and, for a view with a given name, from the time when it was
made: another filter, or a view made again, is another topic (V8). When streams change, partitions
that the view showed before keep their state.
"""

from __future__ import annotations

from onelog.base.topics import is_exact
from onelog.broker import Broker, Ends, Stream
from onelog.kernel import TopicFilter
from onelog.protocols.kafka.topics import no_partition, topic_id
from onelog.protocols.kafka.views.cache import FindingCache
from onelog.protocols.kafka.views.news import News
from onelog.protocols.kafka.views.partition import ViewPartition
from onelog.protocols.kafka.views.places import shown_partitions
from onelog.queues.addresses import has_own_stream


class View:
    """One topic that shows a topic or filter."""

    __slots__ = (
        "_broker",
        "_cache",
        "_news",
        "_partitions",
        "_wanted",
        "address",
        "generation",
        "id",
        "name",
        "stream",
    )

    def __init__(
        self,
        broker: Broker,
        name: str,
        text: str,
        shared: tuple[FindingCache, News],
        made: str = "",
    ) -> None:
        self.name = name
        self.address = text
        self.id = topic_id(f"view {made} {text}" if made else f"view {text}")
        self.stream: Stream | None = None
        self._broker = broker
        self._cache, self._news = shared
        self._wanted = TopicFilter(text.encode())
        self._partitions: list[ViewPartition] = []
        self.generation = 0
        self.refresh(0)

    def refresh(self, generation: int) -> None:
        """Streams may have changed: show the current partitions."""
        self.generation = generation
        known = {view.place.key: view for view in self._partitions}
        self._partitions = []
        for number, place in enumerate(shown_partitions(self._broker, self.address)):
            old = known.get(place.key)
            if old is None or old.number != number or old.place != place:
                old = ViewPartition(
                    self._broker, number, place, self._wanted, self._cache, self._news
                )
            self._partitions.append(old)

    @property
    def partition_count(self) -> int:
        """How many partitions clients see."""
        return len(self._partitions)

    def partition(self, number: int) -> ViewPartition:
        """A partition by number. Raises KafkaError."""
        if not 0 <= number < len(self._partitions):
            raise no_partition(self.name, number, len(self._partitions))
        return self._partitions[number]

    async def settle(self) -> None:
        """Wait for what is cold of what `is_known` and `ends` need."""
        for partition in self._partitions:
            await partition.settle()

    def is_known(self) -> bool:
        """Whether it is a filter, an address of AMQP, or a topic of which there is a record."""
        return (
            not is_exact(self.address)
            or (has_own_stream(self.address) and bool(self._partitions))
            or any(_holds_some(view.ends()) for view in self._partitions)
        )


def _holds_some(ends: Ends) -> bool:
    return ends.high_watermark > ends.start
