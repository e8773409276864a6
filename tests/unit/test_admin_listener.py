"""The admin listener as other machines meet it: TLS, logins, and tokens of the command line."""

from __future__ import annotations

import asyncio
import ssl

import httpx2 as httpx
import pytest
import trustme

from onelog.__main__ import _run_offline
from onelog.base.errors import ConfigError
from onelog.cli import run
from onelog.config import load
from tests.unit.test_admin_app import server_in

DEADLINE_S = 30.0


def onelog(*arguments: str) -> int:
    def no_server(_loaded, _on_ready) -> None:
        raise AssertionError("the server was not asked for")

    return run(list(arguments), no_server, _run_offline)


def problems(*settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, list(settings))
    return str(caught.value)


def test_off_loopback_the_listener_needs_tls_or_a_clear_word():
    text = problems('listeners.admin.host="0.0.0.0"')
    assert "listeners.admin.tls.cert_file" in text
    assert "insecure = true" in text
    load(None, {}, ['listeners.admin.host="0.0.0.0"', "listeners.admin.insecure=true"])
    assert "key_file is missing" in problems('listeners.admin.tls.cert_file="x"')
    assert "amqp_management" in problems(
        "listeners.amqp_management.enabled=true", 'listeners.amqp_management.host="0.0.0.0"'
    )


async def test_a_start_off_loopback_without_users_is_refused_with_the_command_that_makes_one(
    tmp_path,
):
    server = server_in(tmp_path, 'listeners.admin.host="0.0.0.0"', "listeners.admin.insecure=true")
    with pytest.raises(ConfigError, match=r"onelog user add NAME --administrator --data"):
        await asyncio.wait_for(
            server.run(lambda _info: pytest.fail("it was never ready")), DEADLINE_S
        )


@pytest.fixture
def certificate(tmp_path):
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return tmp_path, context


async def test_over_tls_the_cookie_is_for_tls_only(certificate):
    folder, context = certificate
    server = server_in(
        folder / "data",
        f'listeners.admin.tls.cert_file="{folder / "cert.pem"}"',
        f'listeners.admin.tls.key_file="{folder / "key.pem"}"',
    )
    ready = asyncio.Event()
    running = asyncio.create_task(server.run(lambda _info: ready.set()))
    await asyncio.wait_for(ready.wait(), DEADLINE_S)
    url = server.info().listeners[0].url
    assert url.startswith("https://")
    async with httpx.AsyncClient(verify=context, base_url=f"{url}api/v1") as client:
        made = {"name": "root", "password": "a secret", "role": "admin"}
        assert (await client.post("/users", json=made)).status_code == 201
        answer = await client.post("/login", json={"user": "root", "password": "a secret"})
        assert "; Secure" in answer.headers["set-cookie"]
        assert (await client.get("/session")).json()["name"] == "root"
    server.request_stop()
    await asyncio.wait_for(running, DEADLINE_S)


@pytest.mark.usefixtures("empty_place")
def test_tokens_of_a_stopped_server(capsys):
    assert onelog("token", "create", "ci", "--role", "operator", "--expires", "12h") == 0
    made = capsys.readouterr()
    assert made.out.startswith("olt_")
    assert made.out.count("\n") == 1
    token = made.err.split()[1].rstrip(",")
    assert "role operator" in made.err
    assert onelog("token", "list") == 0
    listed = capsys.readouterr().out
    assert token in listed
    assert made.out.strip().rpartition("_")[2] not in listed
    assert onelog("token", "revoke", token) == 0
    assert onelog("token", "revoke", token) == 4
    assert "onelog token list" in capsys.readouterr().err
    assert onelog("token", "create", "x", "--expires", "soon") == 2
    assert "90d" in capsys.readouterr().err


@pytest.mark.usefixtures("empty_place")
@pytest.mark.parametrize(
    "words", [("token", "create", "t", "--expires", "2 weeks"), ("audit", "--since", "yesterday")]
)
def test_a_time_that_is_none_is_a_wrong_command_line(capsys, words):
    assert onelog(*words) == 2
    assert "such as 90d" in capsys.readouterr().err


@pytest.mark.usefixtures("empty_place")
def test_the_role_of_a_user_is_set_and_shown(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.readline", lambda: "pencil-1\n")
    assert onelog("user", "add", "alice", "--password-stdin", "--no-scram") == 0
    assert onelog("user", "role", "alice", "operator") == 0
    assert "has the role operator" in capsys.readouterr().out
    assert onelog("user", "list") == 0
    assert "operator" in capsys.readouterr().out
    assert onelog("user", "role", "alice", "admin") == 0
    assert onelog("user", "list") == 0
    assert "administrator" in capsys.readouterr().out
    assert onelog("user", "role", "alice", "king") == 2
