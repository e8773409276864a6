"""The handshake of an inner link, without a socket: frames in, frames out, then both are known.

The dialler says HELLO, the acceptor says HELLO, the dialler sends its PROOF, the acceptor checks it
and sends its own. Rules:
- A proof is an HMAC over both HELLOs as they were sent (both nonces, both nodes, the cluster), over
  the channel binding of TLS if there is any, and over the role of the one who proves. So a proof is
  good for one connection and one direction: neither a replayed nor a reflected one is right.
- The dialler proves first: a stranger who dials gets no proof to guess the secret from.
- The lower node id dials. A HELLO that names this node as its sender, another receiver, another
  cluster or another node than its certificate ends the link.
- Whether there is a secret is the configuration's word, never the peer's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from onelog.cluster.link.hello import Agreed, Hello, agree, decode_hello, encode_hello
from onelog.cluster.link.layout import LinkKind, LinkViolation, frame

_LABEL: Final = b"onelog inner link, version 1"
_DIALLER: Final = b"dialler"
_ACCEPTOR: Final = b"acceptor"


class Step(Enum):
    """Where a handshake is."""

    NEW = "new"
    HELLO = "waits for HELLO"
    PROOF = "waits for PROOF"
    DONE = "done"
    FAILED = "failed"


class LinkHandshake:
    """One side of one handshake."""

    def __init__(
        self,
        hello: Hello,
        *,
        dials: bool,
        secret: bytes | None = None,
        binding: bytes = b"",
        certified: int | None = None,
        check: Callable[[Hello], None] = lambda _hello: None,
    ) -> None:
        """`hello` is ours; an acceptor learns from the dialler's whom it speaks to, and for what.

        `binding` is the channel binding of TLS, `certified` the node that the peer's certificate
        names. `check` raises LinkViolation for a node that is not wanted.
        """
        assert hello.has_secret == (secret is not None)
        self._ours = hello
        self._dials = dials
        self._secret = secret
        self._binding = binding
        self._certified = certified
        self._check = check
        self._hellos: list[bytes] = []
        """The dialler's, then the acceptor's, as they were sent."""
        self._agreed: Agreed | None = None
        self.step = Step.NEW if dials else Step.HELLO

    @property
    def agreed(self) -> Agreed | None:
        """What both know, once the peer has proved who it is."""
        return self._agreed if self.step is Step.DONE else None

    def begin(self) -> bytes:
        """The dialler's first frame."""
        assert self._dials
        assert self.step is Step.NEW
        self.step = Step.HELLO
        return self._say_hello()

    def take(self, kind: int, body: bytes) -> bytes:
        """A frame of the peer; the frames to answer with. Raises LinkViolation."""
        act = _STEPS.get((self._dials, self.step, kind))
        if act is None:
            was, self.step = self.step, Step.FAILED
            raise LinkViolation(f"a frame of kind {kind} came while the handshake {was.value}")
        try:
            return act(self, body)
        except LinkViolation:
            self.step = Step.FAILED
            raise

    def _say_hello(self) -> bytes:
        body = encode_hello(self._ours)
        self._hellos.append(body)
        return frame(LinkKind.HELLO, body)

    def _hear_dialler(self, body: bytes) -> bytes:
        theirs = decode_hello(body)
        if theirs.node >= self._ours.node:
            raise LinkViolation(
                f"node {theirs.node} dialled node {self._ours.node}: the lower id dials"
            )
        if theirs.to != self._ours.node:
            raise LinkViolation(
                f"node {theirs.node} wants node {theirs.to}, this is node {self._ours.node}:"
                " look at listeners.inner of both"
            )
        self._ours = msgspec.structs.replace(self._ours, to=theirs.node, purpose=theirs.purpose)
        self._hellos.append(body)
        self._accept(theirs)
        self.step = Step.PROOF
        return self._say_hello()

    def _hear_acceptor(self, body: bytes) -> bytes:
        theirs = decode_hello(body)
        ours = self._ours
        if theirs.node != ours.to or theirs.to != ours.node or theirs.purpose != ours.purpose:
            raise LinkViolation(
                f"node {ours.node} dialled node {ours.to} for {ours.purpose}, and node"
                f" {theirs.node} answered node {theirs.to} for {theirs.purpose}"
            )
        self._hellos.append(body)
        self._accept(theirs)
        self.step = Step.PROOF
        return frame(LinkKind.PROOF, self._proof(_DIALLER))

    def _accept(self, theirs: Hello) -> None:
        """What both sides look at."""
        ours = self._ours
        if theirs.cluster_id != ours.cluster_id:
            raise LinkViolation(f"node {theirs.node} belongs to another cluster")
        if theirs.nonce == ours.nonce:
            raise LinkViolation("the peer said our own HELLO")
        if theirs.has_secret != ours.has_secret:
            raise LinkViolation(
                f"node {theirs.node if theirs.has_secret else ours.node} has a shared secret"
                f" (listeners.inner.secret_file), node"
                f" {ours.node if theirs.has_secret else theirs.node} has none"
            )
        if self._certified is not None and self._certified != theirs.node:
            raise LinkViolation(
                f"the certificate is that of node {self._certified}, HELLO is of {theirs.node}"
            )
        self._check(theirs)
        self._agreed = agree(ours, theirs)

    def _hear_proof(self, body: bytes) -> bytes:
        role, own = (_ACCEPTOR, _DIALLER) if self._dials else (_DIALLER, _ACCEPTOR)
        if not hmac.compare_digest(body, self._proof(role)):
            raise LinkViolation("the proof is wrong: the nodes have different secrets")
        self.step = Step.DONE
        return b"" if self._dials else frame(LinkKind.PROOF, self._proof(own))

    def _proof(self, role: bytes) -> bytes:
        if self._secret is None:
            return b""
        said = hashlib.sha256()
        for part in (*self._hellos, self._binding):
            said.update(len(part).to_bytes(4, "big") + part)
        return hmac.digest(self._secret, _LABEL + role + said.digest(), "sha256")


_STEPS: Final[dict[tuple[bool, Step, int], Callable[[LinkHandshake, bytes], bytes]]] = {
    # (does this side dial, where it is, kind of the frame that comes)
    (True, Step.HELLO, LinkKind.HELLO): LinkHandshake._hear_acceptor,
    (True, Step.PROOF, LinkKind.PROOF): LinkHandshake._hear_proof,
    (False, Step.HELLO, LinkKind.HELLO): LinkHandshake._hear_dialler,
    (False, Step.PROOF, LinkKind.PROOF): LinkHandshake._hear_proof,
}
