"""Quotas and bans over the admin API, and what failed logins of the admin listener cost."""

from __future__ import annotations

from typing import Any

import pytest

from onelog.security.authenticator import SecuritySettings
from onelog.security.bans import BanSettings
from onelog.security.quotas.entities import parse_entity
from onelog.security.roles import AdminRole
from tests.support.admin import admin_api

STRICT = SecuritySettings(bans=BanSettings(failures=2, delay_s=0.0, exempt=()))


@pytest.fixture
async def api(tmp_path):
    async with admin_api(tmp_path, settings=STRICT) as found:
        yield found


async def test_a_quota_is_set_shown_searched_replaced_and_removed(api):
    place = "/quotas/user%3Aann%2Cclient%3Ac"
    answer = await api.ask("PUT", place, {"publish_bytes": 1000, "connections": 3})
    assert answer.status_code == 200, answer.text
    row = {"entity": "user:ann,client:c", "limits": {"connections": 3.0, "publish_bytes": 1000.0}}
    assert answer.json() == row
    assert (await api.ask("GET", place)).json() == row
    await api.ask("PUT", "/quotas/listener", {"requests": 5})
    assert [each["entity"] for each in (await api.ask("GET", "/quotas")).json()["items"]] == [
        "listener",
        "user:ann,client:c",
    ]
    found = (await api.ask("GET", "/quotas?search=ANN&limit=1")).json()
    assert found == {"items": [row], "next_cursor": None}
    await api.ask("PUT", place, {"requests": 1})
    assert (await api.ask("GET", place)).json()["limits"] == {"requests": 1.0}
    assert (await api.ask("DELETE", place)).status_code == 204
    assert (await api.ask("GET", place)).status_code == 404
    assert (await api.ask("DELETE", place)).status_code == 404


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("/quotas/somebody", {"requests": 1}),
        ("/quotas/user", {}),
        ("/quotas/user", {"requests": 0}),
        ("/quotas/user", {"requests": -1}),
        ("/quotas/user", {"connects": 1}),
        ("/quotas/user", {"connections": 1.5}),
        ("/quotas/user", {"speed": 1}),
    ],
)
async def test_a_quota_that_cannot_be_is_refused(api, place, body):
    assert (await api.ask("PUT", place, body)).status_code == 400
    assert not (await api.ask("GET", "/quotas")).json()["items"]


async def test_a_publish_counts_for_its_caller_and_is_refused_over_the_quota(api):
    quotas, now = api.broker.client_quotas, api.broker.client_quotas.now()
    quotas.now = lambda: now  # type: ignore[method-assign]
    await api.authenticator.users.add("ann", "secret-1", role=AdminRole.OPERATOR)
    await api.authenticator.users.add("bob", "secret-1", role=AdminRole.OPERATOR)
    texts = {
        name: (await api.tokens.create("t", AdminRole.OPERATOR, 60_000, name))[0]
        for name in ("ann", "bob")
    }
    await quotas.change(parse_entity("user:ann"), {"publish_messages": 100, "publish_bytes": 1000})

    async def publish(size: int = 1, user: str = "ann") -> Any:
        headers = {"authorization": f"Bearer {texts[user]}"}
        body = {"topic": "t" * 1000, "text": "x" * size}
        return await api.ask("POST", "/messages", body, headers=headers)

    assert (await publish(4000)).status_code == 201, "a rate counts what was done"
    refused = await publish()
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
    assert refused.headers["retry-after"] == "4"
    assert (await publish(4000, "bob")).status_code == 201, "nobody else waits"
    now += 10
    assert (await publish()).status_code == 201
    await quotas.change(parse_entity("listener:admin"), {"publish_messages": 1})
    assert [(await publish(1, "bob")).status_code for _ in range(3)] == [201, 201, 429]


async def test_wrong_logins_and_tokens_ban_the_address_until_that_is_lifted(api):
    await api.authenticator.users.add("root", "secret", administrator=True)
    text, _info = await api.tokens.create("t", "admin", 100_000)
    right = {"authorization": f"Bearer {text}"}
    wrong = await api.ask("POST", "/login", {"user": "root", "password": "wrong"})
    assert wrong.status_code == 401
    bad = await api.client.get("/api/v1/quotas", headers={"authorization": "Bearer olt_x_y"})
    assert bad.status_code == 401
    late = await api.ask("POST", "/login", {"user": "root", "password": "secret"})
    assert late.status_code == 429
    assert "failed" in late.json()["error"]["message"]
    for path in ("/api/v1/quotas", "/metrics"):
        assert (await api.client.get(path, headers=right)).status_code == 429
    assert (await api.client.get("/health/live")).status_code == 200
    (row,) = (await api.ask("GET", "/bans")).json()["items"]
    assert row["address"] == "127.0.0.1"
    assert row["until_ms"] - row["since_ms"] == 600_000
    api.authenticator.bans.lift("127.0.0.1")
    lifted = await api.client.delete("/api/v1/bans/127.0.0.1", headers=right)
    assert lifted.status_code == 404, "it is not banned any more"
    for _ in range(2):
        api.authenticator.bans.failed("192.0.2.7")
    lifted = await api.client.delete("/api/v1/bans/192.0.2.7", headers=right)
    assert lifted.status_code == 204
    assert not (await api.ask("GET", "/bans")).json()["items"]


async def test_a_banned_address_does_not_find_a_password_that_the_broker_remembers(api):
    await api.authenticator.users.add("root", "secret", administrator=True)
    right = {"user": "root", "password": "secret"}
    assert (await api.ask("POST", "/login", right)).status_code == 200
    for _ in range(2):
        api.authenticator.bans.failed("127.0.0.1")
    for password in ("wrong", "secret"):
        answer = await api.ask("POST", "/login", {"user": "root", "password": password})
        assert answer.status_code == 429, password
    api.authenticator.bans.lift("127.0.0.1")
    assert (await api.ask("POST", "/login", right)).status_code == 200


async def test_a_peer_without_credentials_has_tried_nothing(api):
    for _ in range(5):
        await api.ask("GET", "/quotas")
    assert api.authenticator.bans.failures == 0
