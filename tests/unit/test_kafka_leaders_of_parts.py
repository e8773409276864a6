"""Does our own Kafka client ask each partition of the node that leads it, wherever that moves to?

The nodes are clients without a network, which answer what the test tells them to.
"""

from __future__ import annotations

import pytest

from onelog.base.errors import TopicNotFound, Unavailable
from onelog.kafka_client import Access, Leaders, leaders
from onelog.kafka_client.access import Address
from onelog.kafka_client.messages import Metadata, Part, Topic

NODES: dict[int, Address] = {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)}


class Cluster:
    """What the nodes say."""

    def __init__(self) -> None:
        self.nodes = dict(NODES)
        self.leads = {0: 1, 1: 2}
        self.down: set[Address] = set()
        self.asked: list[tuple[Address, Part]] = []
        self.looks = 0


class Node:
    """A client of some nodes."""

    def __init__(self, access: Access, cluster: Cluster) -> None:
        self.access, self._cluster = access, cluster

    def connect(self) -> None:
        if self._cluster.down.issuperset(self.access.servers):
            raise Unavailable("nobody there")

    def close(self) -> None:
        """It has nothing."""

    def metadata(self, names: list[str], **_options: object) -> Metadata:
        self.connect()
        self._cluster.looks += 1
        return Metadata(
            self._cluster.nodes, [Topic(name, 0, self._cluster.leads, False) for name in names]
        )

    def offsets(self, asked: dict[Part, int]) -> dict[Part, int]:
        (address,) = self.access.servers
        numbers = {number: node for node, number in self._cluster.nodes.items()}
        for part in asked:
            self._cluster.asked.append((address, part))
            if self._cluster.leads[part[1]] != numbers[address]:
                raise leaders.Moved("another one leads")
        return dict.fromkeys(asked, 7)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(leaders, "Client", lambda access: Node(access, made))
    return made


def opened(answer_s: float = 30.0) -> Leaders:
    made = Leaders(Access(servers=(("a", 1),), answer_s=answer_s))
    made.topics(["t"])
    return made


ASKED = {("t", 0): 0, ("t", 1): 0}


def test_each_partition_is_asked_of_its_leader(cluster: Cluster) -> None:
    assert opened().offsets(ASKED) == {("t", 0): 7, ("t", 1): 7}
    assert cluster.asked == [(NODES[1], ("t", 0)), (NODES[2], ("t", 1))]


def test_a_leader_that_moved_is_found_again(cluster: Cluster) -> None:
    asking = opened()
    cluster.leads = {0: 3, 1: 3}
    assert asking.offsets(ASKED) == {("t", 0): 7, ("t", 1): 7}
    assert cluster.asked[-1] == (NODES[3], ("t", 1))


def test_a_leader_that_is_gone_is_looked_for_at_the_other_nodes(cluster: Cluster) -> None:
    asking = opened()
    cluster.down = {NODES[1]}
    cluster.leads = {0: 2, 1: 2}
    assert asking.offsets(ASKED) == {("t", 0): 7, ("t", 1): 7}


def test_without_any_leader_it_is_an_error_after_a_while(cluster: Cluster) -> None:
    cluster.leads = {0: -1, 1: 2}
    with pytest.raises(Unavailable, match="no node leads t-0"):
        opened(answer_s=0.2).offsets(ASKED)
    assert cluster.looks > 1


def test_what_no_other_node_mends_is_told_at_once(cluster: Cluster) -> None:
    asking, looks = opened(), cluster.looks

    def refuse() -> None:
        raise TopicNotFound("t")

    with pytest.raises(TopicNotFound):
        asking.follow("t", refuse)
    assert cluster.looks == looks


def test_a_cluster_is_followed_also_while_one_node_is_registered(cluster: Cluster) -> None:
    asking = opened()
    del cluster.nodes[1], cluster.nodes[3]
    cluster.leads = {0: -1, 1: 2}
    asking.topics(["t"])
    assert not asking.is_alone

    def elect() -> int:
        if cluster.looks < 4:
            raise Unavailable("nobody leads")
        return 7

    assert asking.follow("t", elect) == 7


def test_a_node_on_its_own_is_asked_at_the_address_that_the_user_gave(cluster: Cluster) -> None:
    cluster.nodes, cluster.leads = {1: ("inside", 9)}, {0: 1, 1: 1}
    asking = opened()
    assert asking.client(("t", 0)).access.servers == (("a", 1),)

    def fail() -> None:
        raise Unavailable("it closed the connection")

    with pytest.raises(Unavailable, match="closed"):
        asking.follow("t", fail)
