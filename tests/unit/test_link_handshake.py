"""The handshake of inner links: who may speak, and what a stranger cannot do (no socket)."""

from __future__ import annotations

import msgspec
import pytest

from onelog.cluster.link.handshake import LinkHandshake, Step
from onelog.cluster.link.hello import (
    MAGIC,
    NONCE_BYTES,
    agree,
    decode_hello,
    encode_hello,
)
from onelog.cluster.link.layout import HEAD, LinkKind, LinkViolation
from tests.support.links import hello

SECRET = b"a secret of at least 16 bytes"


def opened(data: bytes) -> tuple[int, bytes]:
    """LinkKind and body of one frame."""
    size, kind, flags, channel = HEAD.unpack_from(data)
    assert (flags, channel, len(data)) == (0, 0, size + 4)
    return kind, data[HEAD.size :]


def pair(secret=None, other_secret=..., **changes):
    """A dialler (node 1) and an acceptor (node 2)."""
    other = secret if other_secret is ... else other_secret
    dialler = LinkHandshake(
        hello(1, 2, has_secret=secret is not None, **changes), dials=True, secret=secret
    )
    acceptor = LinkHandshake(hello(2, 0, has_secret=other is not None), dials=False, secret=other)
    return dialler, acceptor


def shake(dialler: LinkHandshake, acceptor: LinkHandshake) -> list[bytes]:
    """Let two sides finish; everything that was said."""
    said = [dialler.begin()]
    said.append(acceptor.take(*opened(said[-1])))
    said.append(dialler.take(*opened(said[-1])))
    said.append(acceptor.take(*opened(said[-1])))
    assert dialler.take(*opened(said[-1])) == b""
    return said


@pytest.mark.parametrize("secret", [None, SECRET])
def test_two_nodes_of_one_cluster_know_each_other_after_two_round_trips(secret):
    dialler, acceptor = pair(secret, purpose="bulk")
    shake(dialler, acceptor)
    assert dialler.agreed.peer.node == 2
    assert acceptor.agreed.peer.node == 1
    assert (dialler.agreed.peer.epoch, acceptor.agreed.peer.epoch) == (12, 11)
    assert acceptor.agreed.peer.purpose == dialler.agreed.peer.purpose == "bulk"
    assert dialler.agreed.peer.to == 1


def test_nobody_is_known_before_the_proof():
    dialler, acceptor = pair(SECRET)
    dialler.take(*opened(acceptor.take(*opened(dialler.begin()))))
    assert dialler.agreed is None
    assert acceptor.agreed is None


def test_a_dialler_with_another_secret_gets_no_proof():
    dialler, acceptor = pair(SECRET, b"another secret, as long as it")
    proof = dialler.take(*opened(acceptor.take(*opened(dialler.begin()))))
    with pytest.raises(LinkViolation, match="proof is wrong"):
        acceptor.take(*opened(proof))
    assert acceptor.step is Step.FAILED


def test_an_acceptor_with_another_secret_is_not_believed():
    """It cannot check the dialler's proof, but it may pretend to."""
    dialler, acceptor = pair(SECRET, b"another secret, as long as it")
    dialler.take(*opened(acceptor.take(*opened(dialler.begin()))))
    with pytest.raises(LinkViolation, match="proof is wrong"):
        dialler.take(LinkKind.PROOF, acceptor._proof(b"acceptor"))


def test_a_reflected_proof_is_refused():
    """An acceptor without the secret sends the dialler's proof back."""
    dialler, acceptor = pair(SECRET)
    proof = dialler.take(*opened(acceptor.take(*opened(dialler.begin()))))
    with pytest.raises(LinkViolation, match="proof is wrong"):
        dialler.take(*opened(proof))


def test_a_reflected_hello_is_refused():
    dialler, _ = pair(SECRET)
    with pytest.raises(LinkViolation, match="answered"):
        dialler.take(*opened(dialler.begin()))
    _, acceptor = pair(SECRET)
    with pytest.raises(LinkViolation, match="the lower id dials"):
        acceptor.take(LinkKind.HELLO, encode_hello(hello(2, 2, has_secret=True)))


def test_a_hello_with_our_own_nonce_is_refused():
    dialler, _ = pair(SECRET)
    dialler.begin()
    mine = hello(1, 2).nonce
    with pytest.raises(LinkViolation, match="our own HELLO"):
        dialler.take(LinkKind.HELLO, encode_hello(hello(2, 1, has_secret=True, nonce=mine)))


def test_a_replayed_conversation_is_refused():
    """Everything that a dialler once said, said again to the same node."""
    dialler, acceptor = pair(SECRET)
    said = shake(dialler, acceptor)
    fresh = LinkHandshake(
        hello(2, 0, has_secret=True, nonce=b"n" * NONCE_BYTES), dials=False, secret=SECRET
    )
    fresh.take(*opened(said[0]))
    with pytest.raises(LinkViolation, match="proof is wrong"):
        fresh.take(*opened(said[2]))


def test_a_proof_holds_for_one_tls_connection_only():
    """Somebody in the middle has one TLS connection to each side, and passes all frames on."""
    dialler = LinkHandshake(
        hello(1, 2, has_secret=True), dials=True, secret=SECRET, binding=b"connection A"
    )
    acceptor = LinkHandshake(
        hello(2, 0, has_secret=True), dials=False, secret=SECRET, binding=b"connection B"
    )
    proof = dialler.take(*opened(acceptor.take(*opened(dialler.begin()))))
    with pytest.raises(LinkViolation, match="proof is wrong"):
        acceptor.take(*opened(proof))


def test_a_change_in_a_hello_on_its_way_is_found():
    dialler, acceptor = pair(SECRET)
    kind, body = opened(dialler.begin())
    changed = msgspec.structs.replace(decode_hello(body), epoch=99)
    proof = dialler.take(*opened(acceptor.take(kind, encode_hello(changed))))
    with pytest.raises(LinkViolation, match="proof is wrong"):
        acceptor.take(*opened(proof))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster_id": "other"}, "another cluster"),
        ({"to": 3}, "wants node 3"),
        ({"node": 5}, "the lower id dials"),
        ({"node": 2}, "the lower id dials"),
        ({"has_secret": True}, "node 1 has a shared secret"),
        ({"versions": (7, 9)}, "upgrade one release at a time"),
    ],
)
def test_an_acceptor_refuses_a_node_that_does_not_belong_here(changes, words):
    acceptor = LinkHandshake(hello(2, 0), dials=False)
    with pytest.raises(LinkViolation, match=words):
        acceptor.take(LinkKind.HELLO, encode_hello(hello(1, 2, **changes)))
    with pytest.raises(LinkViolation, match="failed"):
        acceptor.take(LinkKind.PROOF, b"")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster_id": "other"}, "another cluster"),
        ({"node": 3}, "node 3 answered"),
        ({"to": 7}, "answered node 7"),
        ({"purpose": "bulk"}, "for bulk"),
        ({"versions": (0, 0)}, "upgrade"),
    ],
)
def test_a_dialler_refuses_whoever_it_did_not_want(changes, words):
    dialler = LinkHandshake(hello(1, 2), dials=True)
    dialler.begin()
    with pytest.raises(LinkViolation, match=words):
        dialler.take(LinkKind.HELLO, encode_hello(hello(2, 1, **changes)))


@pytest.mark.parametrize("dials", [True, False])
def test_the_certificate_must_name_the_node_of_the_hello(dials):
    ours, theirs = (hello(1, 2), hello(2, 1)) if dials else (hello(2, 0), hello(1, 2))
    for certified in (theirs.node, 4):
        side = LinkHandshake(ours, dials=dials, certified=certified)
        if dials:
            side.begin()
        if certified == theirs.node:
            assert side.take(LinkKind.HELLO, encode_hello(theirs))
        else:
            with pytest.raises(LinkViolation, match="certificate is that of node 4"):
                side.take(LinkKind.HELLO, encode_hello(theirs))


@pytest.mark.parametrize(
    "kind", [LinkKind.PROOF, LinkKind.BATCHES, LinkKind.CALL, LinkKind.PING, 200]
)
def test_nothing_but_hello_opens_a_link(kind):
    with pytest.raises(LinkViolation, match="waits for HELLO"):
        LinkHandshake(hello(2, 0), dials=False).take(kind, b"")


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [((1, 3), (2, 5), 3), ((1, 3), (1, 1), 1), ((2, 2), (2, 2), 2), ((1, 2), (2, 9), 2)],
)
def test_a_pair_speaks_the_highest_version_that_both_know(ours, theirs, expected):
    agreed = agree(hello(1, 2, versions=ours), hello(2, 1, versions=theirs))
    assert agreed.version == expected


def test_a_pair_uses_the_features_that_both_have():
    assert agree(hello(1, 2, features=0b1110), hello(2, 1, features=0b0111)).features == 0b0110


def test_a_hello_of_a_later_release_may_have_more_fields():
    more = msgspec.to_builtins(hello(1, 2), builtin_types=(bytes,)) | {"later": [1, 2]}
    assert decode_hello(MAGIC + msgspec.msgpack.encode(more)) == hello(1, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": b"short"},
        {"node": -1},
        {"node": 1 << 31},
        {"window": 0},
        {"purpose": "other"},
        {"cluster_id": ""},
        {"versions": [2, 1]},
        {"versions": [1]},
        {"epoch": "x"},
    ],
)
def test_a_hello_with_a_field_out_of_bounds_is_refused(changes):
    bad = msgspec.to_builtins(hello(1, 2), builtin_types=(bytes,)) | changes
    with pytest.raises(LinkViolation):
        decode_hello(MAGIC + msgspec.msgpack.encode(bad))


@pytest.mark.parametrize("body", [b"", b"GET / HTTP/1.1", MAGIC, MAGIC + b"\xc1", MAGIC + b"\x81"])
def test_what_is_no_hello_is_refused(body):
    with pytest.raises(LinkViolation):
        decode_hello(body)
