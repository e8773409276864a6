"""All links of this node: who is known, what is sent to them, and what comes from them.

Rules:
- Nodes are known by their rows in the metadata store (`know`, `forget`); a node that is not known
  is refused, and comes again.
- `send` says whether a link took the frame. Nobody keeps frames for a link that is not there: the
  code above reads the log again when the link is back (I8).
- One user hears everything. A user that raises is isolated: the link on which it happened ends.
- A node that registers anew says HELLO anew: its links end and are made again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import Unavailable
from onelog.base.limits import LINK_WINDOW_BYTES
from onelog.cluster.forward_frames import LinkFrame
from onelog.cluster.frames import FeedLane
from onelog.cluster.link.address import LinkAddress
from onelog.cluster.link.calls import Handler
from onelog.cluster.link.connection import NEVER, LinkConnection, LinkCounters
from onelog.cluster.link.handshake import LinkHandshake
from onelog.cluster.link.hello import FEATURES, NONCE_BYTES, VERSIONS, Hello, Purpose, Sender
from onelog.cluster.link.layout import LinkViolation
from onelog.cluster.link.pair import NodePair
from onelog.cluster.link.security import LinkSecurity, certified_node, channel_binding
from onelog.observe import Sample, Troubles, get_logger

_log = get_logger("cluster")
T = TypeVar("T")

_PURPOSES: Final[dict[FeedLane, Purpose]] = {FeedLane.LIVE: "live", FeedLane.BULK: "bulk"}


class LinkIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who this node is to the others."""

    cluster_id: str
    node: int
    epoch: int
    data_uuid: str


class LinkUser(Protocol):
    """What lies above the links; all methods are called on the loop, and must not wait."""

    def linked(self, sender: Sender, lane: FeedLane) -> None:
        """A connection stands."""
        ...

    def unlinked(self, sender: Sender, lane: FeedLane) -> None:
        """A connection is gone: frames of the last moment may be lost."""
        ...

    def received(self, sender: Sender, lane: FeedLane, frame: LinkFrame) -> None:
        """A frame; its bytes do not change, however long somebody holds them."""
        ...

    def has_room(self, node: int, lane: FeedLane) -> None:
        """There is credit again."""
        ...

    def suspects(self, node: int, why: str | None) -> None:
        """A node seems dead; None: it answers again."""
        ...


class LinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pair, for people."""

    node: int
    address: str
    lanes: tuple[str, ...]
    rtt_ms: float | None
    suspicion: str | None
    attempts: int
    last_end: str


class Links:
    """The links of one node."""

    def __init__(
        self,
        identity: LinkIdentity,
        user: LinkUser,
        security: LinkSecurity,
        troubles: Troubles,
        clock: Clock,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        self._identity = identity
        self._user = user
        self.security = security
        self.troubles = troubles
        self.clock = clock
        self.handlers: dict[str, Handler] = dict(handlers or {})
        self.counters = LinkCounters()
        self.pairs: dict[int, NodePair] = {}
        self._strangers: set[LinkConnection] = set()
        """Connections that have not said who they are."""
        self._is_closing = False

    @property
    def identity(self) -> LinkIdentity:
        """Who this node is to the others."""
        return self._identity

    def register(self, identity: LinkIdentity) -> None:
        """This node has a new registration: the others hear it in a new HELLO."""
        assert identity.node == self._identity.node
        self._identity = identity
        for pair in self.pairs.values():
            for connection in list(pair.connections.values()):
                connection.end("registered anew")

    # -- who is known

    def know(self, node: int, address: LinkAddress, epoch: int = 0) -> None:
        """A node is registered, and listens there."""
        assert node != self._identity.node
        if self._is_closing:
            return
        pair = self.pairs.get(node)
        if pair is None:
            dials = self._identity.node < node
            pair = self.pairs[node] = NodePair(self, node, address, dials=dials)
        pair.move(address)
        pair.epoch = max(pair.epoch, epoch)
        for connection in list(pair.connections.values()):
            if connection.agreed is not None and connection.agreed.peer.epoch < pair.epoch:
                connection.end("the node has registered anew")

    def answered_at(self, node: int) -> float:
        """When the newest ping to a node was sent that it has answered, on the lane that feeds are
        closed on; in the time of the loop."""
        pair = self.pairs.get(node)
        live = None if pair is None else pair.connections.get(FeedLane.LIVE)
        return NEVER if live is None else live.answered_at

    async def forget(self, node: int) -> None:
        """A node has left the cluster."""
        pair = self.pairs.pop(node, None)
        if pair is not None:
            await pair.close("this node has left the cluster")

    async def close(self) -> None:
        """End every link. Idempotent."""
        self._is_closing = True
        pairs, self.pairs = list(self.pairs.values()), {}
        for stranger in list(self._strangers):
            stranger.end("the node stops")
        await asyncio.gather(*(pair.close("the node stops") for pair in pairs))

    # -- sending

    def send(self, node: int, lane: FeedLane, frame: LinkFrame) -> bool:
        """Send with this pass, batches as soon as there is credit; False: there is no link."""
        connection = self._connection(node, lane)
        if connection is None:
            return False
        connection.send(frame)
        return True

    def room(self, node: int, lane: FeedLane) -> int:
        """Bytes of batches that go out at once; without any, `has_room` is called later."""
        connection = self._connection(node, lane)
        return 0 if connection is None else connection.room

    async def call(
        self, node: int, method: str, argument: Any, answer: type[T], timeout_s: float
    ) -> T:
        """Ask a node. Raises its error, Unavailable (not asked) or Timeout (not known)."""
        connection = self._connection(node, FeedLane.LIVE)
        if connection is None:
            raise Unavailable(f"there is no link to node {node}")
        body = await connection.call(method, argument, timeout_s)
        try:
            return msgspec.msgpack.decode(body, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            connection.end(f"the answer to {method} cannot be read: {error}")
            raise Unavailable(f"node {node} answered {method} with what is no answer") from None

    def features(self, node: int) -> int | None:
        """What a node agreed to on its live connection; None: there is no link."""
        connection = self._connection(node, FeedLane.LIVE)
        if connection is None or connection.agreed is None:
            return None
        return connection.agreed.features

    def _connection(self, node: int, lane: FeedLane) -> LinkConnection | None:
        pair = self.pairs.get(node)
        found = None if pair is None else pair.connections.get(lane)
        return None if found is None or found.ended is not None else found

    # -- connections (LinkOwner, PairHost)

    def accept(self) -> LinkConnection:
        """The protocol of a connection that came in."""
        connection = LinkConnection(self, dials=False)
        if self._is_closing:
            connection.end("the node stops")
        else:
            self._strangers.add(connection)
        return connection

    async def dial(self, pair: NodePair, lane: FeedLane) -> LinkConnection:
        """Connect to a node and begin the handshake. Raises OSError and LinkViolation."""
        loop, address, secure = asyncio.get_running_loop(), pair.address, self.security.dialling
        if not self.security.allows(address):
            raise LinkViolation(f"{address} is not of this machine, and there is no security")

        def make() -> LinkConnection:
            return LinkConnection(self, dials=True, to=pair.node, lane=lane)

        context = None if secure is None else secure.context
        if address.path:
            _, made = await loop.create_unix_connection(
                make, address.path, ssl=context, server_hostname="" if context else None
            )
        else:
            _, made = await loop.create_connection(make, address.host, address.port, ssl=context)
        return made

    def handshake(self, connection: LinkConnection, secure: Any) -> LinkHandshake:
        """The handshake of a new connection. Raises LinkViolation."""
        identity = self._identity
        has_tls = self.security.accepting is not None
        if has_tls != (secure is not None):
            raise LinkViolation("a link without TLS, although this node has certificates")
        hello = Hello(
            versions=VERSIONS,
            features=FEATURES,
            cluster_id=identity.cluster_id,
            node=identity.node,
            epoch=identity.epoch,
            data_uuid=identity.data_uuid,
            to=max(0, connection.to),
            purpose=_PURPOSES[connection.lane],
            has_secret=self.security.secret is not None,
            window=LINK_WINDOW_BYTES,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        return LinkHandshake(
            hello,
            dials=connection.dials,
            secret=self.security.secret,
            binding=b"" if secure is None else channel_binding(secure),
            certified=None if secure is None else certified_node(secure),
            check=self._check,
        )

    def _check(self, theirs: Hello) -> None:
        pair = self.pairs.get(theirs.node)
        if pair is None:
            raise LinkViolation(f"node {theirs.node} is not known here (yet): it may try again")
        if theirs.epoch < pair.epoch:
            raise LinkViolation(
                f"node {theirs.node} comes with its registration {theirs.epoch}, {pair.epoch} is"
                " known"
            )

    def opened(self, connection: LinkConnection) -> None:
        """A peer has proved who it is. Raises LinkViolation."""
        assert connection.agreed is not None
        self._strangers.discard(connection)
        self._check(connection.agreed.peer)
        self.pairs[connection.to].opened(connection)
        _log.info("link stands", node=connection.to, lane=connection.lane.name.lower())
        self._user.linked(connection.sender, connection.lane)

    def received(self, connection: LinkConnection, frame: LinkFrame) -> None:
        """A frame of a feed."""
        self._user.received(connection.sender, connection.lane, frame)

    def has_room(self, connection: LinkConnection) -> None:
        """Credit came."""
        self._user.has_room(connection.to, connection.lane)

    def lost(self, connection: LinkConnection) -> None:
        """A connection is gone."""
        self._strangers.discard(connection)
        pair = self.pairs.get(connection.to)
        was_used = pair is not None and pair.connections.get(connection.lane) is connection
        if pair is not None:
            pair.lost(connection)
        if connection.agreed is None:
            _log.debug("no link", node=connection.to, why=connection.ended)
            return
        _log.info(
            "link ended",
            node=connection.to,
            lane=connection.lane.name.lower(),
            why=connection.ended,
        )
        if was_used:
            self._user.unlinked(connection.sender, connection.lane)

    def suspected(self, pair: NodePair) -> None:
        """A pair's suspicion began or ended."""
        self._user.suspects(pair.node, pair.suspicion)

    # -- for people

    def rows(self) -> Iterator[LinkRow]:
        """Every pair, by its node."""
        for node, pair in sorted(self.pairs.items()):
            live = pair.connections.get(FeedLane.LIVE)
            yield LinkRow(
                node=node,
                address=str(pair.address),
                lanes=tuple(lane.name.lower() for lane in sorted(pair.connections)),
                rtt_ms=None if live is None else round(live.rtt_s * 1000, 3),
                suspicion=pair.suspicion,
                attempts=pair.attempts,
                last_end=pair.last_end,
            )

    def samples(self) -> tuple[Sample, ...]:
        """Numbers for the metrics."""
        counters = self.counters
        standing = sum(len(pair.connections) for pair in self.pairs.values())
        suspected = sum(pair.suspicion is not None for pair in self.pairs.values())
        rows = (
            ("links", "Connections to other nodes, two for each.", "gauge", standing),
            ("suspected_nodes", "Nodes that seem dead from here.", "gauge", suspected),
            ("links_opened_total", "Handshakes with nodes.", "counter", counters.opened),
            ("link_violations_total", "Links ended by bad bytes.", "counter", counters.violations),
            ("link_frames_in_total", "Frames of nodes.", "counter", counters.frames_in),
            ("link_frames_out_total", "Frames to nodes.", "counter", counters.frames_out),
            ("link_writes_total", "Writes to links.", "counter", counters.writes),
            ("link_bytes_in_total", "Bytes of nodes.", "counter", counters.in_bytes),
            ("link_bytes_out_total", "Bytes to nodes.", "counter", counters.out_bytes),
        )
        return tuple(
            Sample(f"onelog_cluster_{name}", about, kind, value)  # type: ignore[arg-type]
            for name, about, kind, value in rows
        )
