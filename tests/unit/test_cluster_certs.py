"""Certificates of inner links: made by a command, checked by both nodes, renewed while running."""

from __future__ import annotations

import ssl

import pytest

from onelog.base.clock import ManualClock, SystemClock
from onelog.base.errors import ConfigError
from onelog.cli import run
from onelog.cluster.certificates import make_certificates, node_files
from onelog.cluster.frames import AckFeed, FeedLane
from onelog.cluster.link.security import LinkSecurity, mutual_tls
from onelog.net.tls import CHECK_INTERVAL_S
from tests.support.links import introduce, linked, nodes, until_ended
from tests.support.listening import run_on

SECRET = b"a secret of at least 16 bytes"


def security(folder, node: int, *, secret=None, clock=None) -> LinkSecurity:
    cert_file, key_file = node_files(folder, node)
    accepting, dialling = mutual_tls(
        str(cert_file), str(key_file), str(folder / "ca.pem"), clock or SystemClock(), "tls"
    )
    return LinkSecurity(secret, accepting, dialling)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pki")
    make_certificates(made, [1, 2, 3], ["localhost", "127.0.0.1"], 30)
    return made


def test_there_is_an_authority_and_two_files_per_node(tmp_path):
    made = make_certificates(tmp_path / "pki", [1, 7], [], 30)
    assert [path.name for path in made] == [
        "ca.pem", "ca-key.pem", "node-1.pem", "node-1-key.pem", "node-7.pem", "node-7-key.pem",
    ]  # fmt: skip
    for path in (tmp_path / "pki").glob("*-key.pem"):
        assert path.stat().st_mode & 0o777 == 0o600
    again = make_certificates(tmp_path / "pki", [8], [], 30)
    assert [path.name for path in again] == ["node-8.pem", "node-8-key.pem"], "the authority stays"


def test_the_command_prints_the_files_that_it_wrote(tmp_path, capsys):
    words = ["cluster", "certs", str(tmp_path), "--node", "1", "--node", "7", "--host", "10.0.0.1"]
    assert run(words, lambda *_: None) == 0
    shown = capsys.readouterr().out.split()
    assert [path.rpartition("/")[2] for path in shown] == [
        "ca.pem", "ca-key.pem", "node-1.pem", "node-1-key.pem", "node-7.pem", "node-7-key.pem",
    ]  # fmt: skip
    assert run(["cluster", "certs", str(tmp_path), "--node", "-1"], lambda *_: None) == 2
    assert run(["cluster", "certs", str(tmp_path)], lambda *_: None) == 2


def test_an_authority_without_its_key_is_an_error_in_words(tmp_path):
    make_certificates(tmp_path, [1], [], 30)
    (tmp_path / "ca-key.pem").unlink()
    with pytest.raises(ConfigError, match=r"both ca\.pem and ca-key\.pem"):
        make_certificates(tmp_path, [2], [], 30)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("secret", [None, SECRET])
def test_nodes_with_certificates_of_one_authority_speak_over_tls_1_3(loop, secret, folder):
    async def run():
        async with (
            nodes(1, security=security(folder, 1, secret=secret)) as (one,),
            nodes(2, security=security(folder, 2, secret=secret)) as (two,),
        ):
            await linked(one, two)
            for node, other in ((one, 2), (two, 1)):
                live = node.links.pairs[other].connections[FeedLane.LIVE]
                secure = live._transport.get_extra_info("ssl_object")
                assert secure.version() == "TLSv1.3"
                node.links.send(other, FeedLane.LIVE, AckFeed(1, 1, 1, 1))
            await one.heard.until(lambda: bool(one.heard.frames))
            await two.heard.until(lambda: bool(two.heard.frames))

    run_on(loop, run)


def test_a_node_with_the_certificate_of_another_node_is_refused(folder):
    async def run():
        async with (
            nodes(1, security=security(folder, 3)) as (one,),
            nodes(2, security=security(folder, 2)) as (two,),
        ):
            introduce(one, two)
            await until_ended(one, 2, "certificate is that of node 3")
            assert not two.heard.ups

    run_on("uvloop", run)


def test_a_certificate_of_another_authority_is_refused(folder, tmp_path):
    make_certificates(tmp_path, [1], [], 30)

    async def run():
        async with (
            nodes(1, security=security(tmp_path, 1)) as (one,),
            nodes(2, security=security(folder, 2)) as (two,),
        ):
            introduce(one, two)
            await one.heard.until(lambda: bool(one.heard.suspicions))
            assert not one.heard.ups
            assert not two.heard.ups

    run_on("uvloop", run)


def test_a_node_without_tls_is_not_taken_by_one_with(folder):
    async def run():
        async with nodes(1) as (one,), nodes(2, security=security(folder, 2)) as (two,):
            introduce(one, two)
            await one.heard.until(lambda: bool(one.heard.suspicions))
            assert not two.heard.ups

    run_on("uvloop", run)


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path):
    make_certificates(tmp_path, [1], [], 30)
    clock = ManualClock()
    secure = security(tmp_path, 1, clock=clock)
    before = [secure.accepting.context, secure.dialling.context]
    make_certificates(tmp_path, [1], [], 60)
    assert [secure.accepting.context, secure.dialling.context] == before
    clock.advance(CHECK_INTERVAL_S)
    after = [secure.accepting.context, secure.dialling.context]
    assert not set(map(id, after)) & set(map(id, before))
    assert all(context.minimum_version == ssl.TLSVersion.TLSv1_3 for context in after)
    assert all(context.verify_mode == ssl.CERT_REQUIRED for context in after)
