"""Access rules and users' groups over the admin API."""

from __future__ import annotations

import pytest

from onelog.base.errors import NotFound
from onelog.metadata.store import Put
from onelog.security.roles import AdminRole
from tests.support.access import rule
from tests.support.admin import admin_api

ALLOW = {
    "effect": "allow",
    "who": ["user:ann", "group:ops"],
    "actions": ["publish", "subscribe"],
    "resource": "topic:home/%u/#",
    "note": "her home",
}


@pytest.fixture
async def api(tmp_path):
    async with admin_api(tmp_path) as found:
        found.broker.access.know_users(found.authenticator)
        text, _info = await found.tokens.create("t", AdminRole.ADMIN, 10**9)
        found.client.headers["authorization"] = f"Bearer {text}"
        yield found


async def make(api, **fields) -> dict:
    answer = await api.ask("POST", "/access/rules", ALLOW | fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def asked(api, who: str, action: str, resource: str, **more) -> dict:
    body = {"who": who, "action": action, "resource": resource, **more}
    answer = await api.ask("POST", "/access/test", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_without_rules_everything_is_open_and_the_api_says_so(api):
    assert (await api.get("/access")).json() == {"open": True, "rules": 0, "unreadable": []}
    found = await asked(api, "user:ann", "publish", "topic:a")
    assert (found["allowed"], found["rule"]) == (True, None)
    assert "no rules" in found["reason"]


async def test_a_rule_that_is_made_applies_when_it_is_answered(api):
    made = await make(api)
    assert made["id"] == "1"
    assert made["text"] == "allow user:ann,group:ops publish,subscribe topic:home/%u/#"
    assert (await api.get("/access")).json()["open"] is False
    assert (await api.get("/access/rules/1")).json() == made
    assert [row.id for row in api.broker.access.rules] == ["1"]
    yes = await asked(api, "user:ann", "publish", "topic:home/ann/t")
    assert (yes["allowed"], yes["rule"]) == (True, made)
    no = await asked(api, "user:ann", "publish", "topic:home/bob/t")
    assert (no["allowed"], no["rule"], no["reason"]) == (False, None, "no rule allows it")


async def test_who_has_no_login_makes_an_administrator_before_the_first_rule(tmp_path):
    """Else nobody could change the list over the API from then on."""
    async with admin_api(tmp_path) as api:
        answer = await api.ask("POST", "/access/rules", ALLOW)
        assert answer.status_code == 409
        assert "POST /api/v1/users" in answer.json()["error"]["message"]
        assert not api.broker.access.rules


async def test_rules_come_in_their_order_and_are_searched_page_by_page(api):
    for number in range(12):
        await make(api, resource=f"topic:r/{number}", note="odd" if number % 2 else "")
    await make(api, id="named", who=["user:zoe"])
    rows = await api.items("/access/rules", limit=5)
    assert [row["id"] for row in rows] == [*(str(number + 1) for number in range(12)), "named"]
    assert len(await api.items("/access/rules?search=ODD")) == 6
    assert [row["id"] for row in await api.items("/access/rules?search=user:zoe")] == ["named"]
    assert [row["id"] for row in await api.items("/access/rules?search=r/11")] == ["12"]


async def test_a_rule_is_replaced_in_one_step_under_its_name(api):
    await make(api)
    states = []
    api.broker.access.on_change.append(
        lambda: states.append([row.text for row in api.broker.access.rules])
    )
    changed = await api.ask("PUT", "/access/rules/1", ALLOW | {"effect": "deny"})
    assert changed.status_code == 200
    assert changed.json()["effect"] == "deny"
    assert len(states) == 1 and len(states[0]) == 1  # never without a rule
    assert (await api.ask("PUT", "/access/rules/2", ALLOW)).status_code == 404


async def test_the_last_rule_goes_only_for_one_who_says_that_all_may_be_open(api):
    await make(api)
    await make(api)
    assert (await api.ask("DELETE", "/access/rules/2")).status_code == 204
    refused = await api.ask("DELETE", "/access/rules/1")
    assert refused.status_code == 409
    assert "may_open=true" in refused.json()["error"]["message"]
    assert (await api.ask("DELETE", "/access/rules/1?may_open=true")).status_code == 204
    assert (await api.get("/access")).json()["open"] is True
    assert (await api.ask("DELETE", "/access/rules/1")).status_code == 404


async def test_a_rule_that_cannot_be_read_is_shown_and_can_be_removed(api):
    await make(api)
    await api.broker.store.txn((), (Put("access/new", b"{}"),))
    while not api.broker.access.unreadable:
        await api.broker.access.change(add=(rule("allow user:x publish topic:x"),))
    assert (await api.get("/access")).json()["unreadable"] == ["new"]
    found = await asked(api, "user:ann", "publish", "topic:home/ann/t")
    assert not found["allowed"] and "cannot be read" in found["reason"]
    assert (await api.ask("DELETE", "/access/rules/new")).status_code == 204
    assert (await asked(api, "user:ann", "publish", "topic:home/ann/t"))["allowed"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"effect": "maybe"},
        {"who": []},
        {"who": ["ann"]},
        {"actions": ["fly"]},
        {"actions": []},
        {"resource": "topic:a/#/b"},
        {"resource": "house:a"},
        {"id": "a b"},
        {"surprise": 1},
        {"note": "x" * 201},
    ],
)
async def test_a_rule_that_cannot_be_judged_by_is_refused(api, wrong):
    answer = await api.ask("POST", "/access/rules", ALLOW | wrong)
    assert answer.status_code == 400, answer.text
    assert not api.broker.access.rules


async def test_an_id_that_is_taken_is_refused(api):
    await make(api, id="home")
    assert (await api.ask("POST", "/access/rules", ALLOW | {"id": "home"})).status_code == 409


async def test_the_tester_knows_clients_claims_and_administrators(api):
    await make(api, who=["claim:team=a"], resource="topic:%c/t")
    found = await asked(api, "user:x", "publish", "topic:dev/t", client_id="dev", claims=["team=a"])
    assert found["allowed"]
    assert not (await asked(api, "user:x", "publish", "topic:dev/t", client_id="dev"))["allowed"]
    await api.authenticator.users.add("root", "secret", scram=False, administrator=True)
    text, _info = await api.tokens.create("t", AdminRole.ADMIN, 10_000)
    api.client.headers["authorization"] = f"Bearer {text}"
    found = await asked(api, "user:root", "admin", "server")
    assert found["allowed"] and "administrator" in found["reason"]
    for wrong in ("user:", "group:ops", "everyone"):
        body = {"who": wrong, "action": "publish", "resource": "topic:a"}
        assert (await api.ask("POST", "/access/test", body)).status_code == 400


async def test_groups_of_users_are_set_with_the_user_and_change_answers_at_once(api):
    api.client.headers["authorization"] = (
        f"Bearer {(await api.tokens.create('t', AdminRole.ADMIN, 10_000))[0]}"
    )
    made = {
        "name": "bob",
        "password": "a secret",
        "groups": ["ops", "ops", "night"],
        "scram": False,
    }
    answer = await api.ask("POST", "/users", made)
    assert answer.status_code == 201
    assert answer.json()["groups"] == ["ops", "night"]
    await make(api)
    assert (await asked(api, "user:bob", "publish", "topic:home/bob/t"))["allowed"]
    answer = await api.ask("PATCH", "/users/bob", {"groups": ["night"]})
    assert answer.json()["groups"] == ["night"]
    assert not (await asked(api, "user:bob", "publish", "topic:home/bob/t"))["allowed"]
    assert [row["name"] for row in await api.items("/users?search=night")] == ["bob"]
    assert await api.items("/access/groups") == [
        {"name": "night", "users": ["bob"], "rules": []},
        {"name": "ops", "users": [], "rules": ["1"]},
    ]


async def test_a_change_of_a_user_is_all_or_nothing(api):
    text, _info = await api.tokens.create("t", AdminRole.ADMIN, 10_000)
    api.client.headers["authorization"] = f"Bearer {text}"
    await api.authenticator.users.add("bob", "secret", scram=False)
    before = await api.authenticator.users.info("bob")
    body = {"role": "viewer", "disabled": True, "groups": ["not a group"]}
    assert (await api.ask("PATCH", "/users/bob", body)).status_code == 400
    assert await api.authenticator.users.info("bob") == before
    body = {"name": "eve", "password": "a secret", "groups": ["not a group"]}
    assert (await api.ask("POST", "/users", body)).status_code == 400
    with pytest.raises(NotFound):
        await api.authenticator.users.info("eve")
    body = {"role": "viewer", "groups": ["a"], "password": "another one"}
    after = (await api.ask("PATCH", "/users/bob", body)).json()
    assert (after["role"], after["groups"], after["disabled"]) == ("viewer", ["a"], False)
    assert (await api.authenticator.password("bob", b"another one")).name == "bob"
