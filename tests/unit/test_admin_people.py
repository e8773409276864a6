"""Who may ask the admin API, and what that is worth: roles, sessions, tokens, other sites."""

from __future__ import annotations

import json
import re

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from onelog.admin.api.logins import IDLE_S, LIFETIME_S, SESSIONS_MAX, LoginSessions
from onelog.admin.api.table import operations
from onelog.base.clock import ManualClock
from onelog.security.authenticator import SecuritySettings
from onelog.security.identity import Identity
from onelog.security.roles import AdminRole, lesser
from onelog.security.tokens import TokenSettings
from tests.support.access import rule
from tests.support.admin import admin_api, client_of, new_desk
from tests.support.brokers import say

NEVER = SecuritySettings(anonymous="never")


@pytest.fixture
async def api(tmp_path):
    async with admin_api(tmp_path) as found:
        yield found


async def people(api) -> None:
    users = api.authenticator.users
    await users.add("root", "secret", scram=False, administrator=True)
    for role in ("viewer", "operator", "none"):
        await users.add(f"a-{role}", "secret", scram=False)
        await users.set_role(f"a-{role}", AdminRole(role))


async def log_in(api, name: str) -> dict[str, str]:
    """The headers of somebody's changes; the client keeps the cookie."""
    answer = await api.ask("POST", "/login", {"user": name, "password": "secret"})
    assert answer.status_code == 200, answer.text
    return {"x-csrf-token": answer.json()["csrf"]}


def every_operation():
    return [
        pytest.param(row.method, row.path, row.role, id=f"{row.method} {row.path}")
        for row in operations(new_desk(), LoginSessions(ManualClock()), ManualClock())
        if row.role is not AdminRole.NONE
    ]


def test_roles_cover_each_other_in_their_order():
    roles = list(AdminRole)
    for index, role in enumerate(roles):
        assert [role.covers(other) for other in roles] == [at <= index for at in range(len(roles))]
    assert (
        lesser(AdminRole.ADMIN, AdminRole.VIEWER)
        is lesser(AdminRole.VIEWER, AdminRole.ADMIN)
        is AdminRole.VIEWER
    )


@pytest.mark.parametrize(("method", "path", "role"), every_operation())
async def test_every_operation_is_refused_to_those_with_less_than_its_role(api, method, path, role):
    await people(api)
    place = "/api/v1" + re.sub(r"\{\w+\}", "x", path)
    for have in (AdminRole.VIEWER, AdminRole.OPERATOR, AdminRole.ADMIN):
        text, _info = await api.tokens.create("t", have, 10_000)
        answer = await api.client.request(
            method, place, headers={"authorization": f"Bearer {text}"}, content=b"{"
        )
        assert (answer.status_code == 403) == (not have.covers(role)), answer.text
        assert answer.status_code != 401


@pytest.mark.parametrize(("method", "path", "role"), every_operation())
async def test_every_operation_needs_a_login_where_nobody_comes_in_without(
    tmp_path, method, path, role
):
    del role
    async with admin_api(tmp_path, settings=NEVER) as api:
        answer = await api.ask(method, re.sub(r"\{\w+\}", "x", path))
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "not_authenticated"
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_without_users_this_machine_may_do_everything_and_is_told_so(api):
    body = (await api.get("/session")).json()
    assert (body["name"], body["role"], body["open"]) == ("anonymous", "admin", True)
    made = {"name": "root", "password": "a secret", "role": "admin"}
    assert (await api.ask("POST", "/users", made)).status_code == 201
    body = (await api.get("/session")).json()
    assert (body["role"], body["open"]) == ("viewer", False)
    assert (await api.ask("DELETE", "/users/root")).status_code == 403


async def test_as_soon_as_there_is_a_rule_who_has_no_login_only_looks_and_by_the_rules(api):
    """Where certificates or a provider say who comes, there are rules and no user."""
    await say(api.broker, "secret/x", "text")
    assert (await api.get("/messages?filter=secret/x")).json()["items"]
    await api.broker.access.change([rule("allow certificate:pump all topic:#")])
    body = (await api.get("/session")).json()
    assert (body["name"], body["role"], body["open"]) == ("anonymous", "viewer", False)
    assert (await api.get("/messages?filter=secret/x")).status_code == 403
    assert (await api.get("/access/rules")).status_code == 403
    made = {"name": "root", "password": "a secret", "role": "admin"}
    assert (await api.ask("POST", "/users", made)).status_code == 403
    await api.broker.access.change(remove=["1"], may_open=True)
    assert (await api.get("/session")).json()["open"]


async def test_where_an_identity_provider_says_who_comes_who_has_no_login_only_looks(tmp_path):
    public = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [public | {"kid": "k"}]}))
    tokens = TokenSettings(jwks_file=str(keys), issuer="https://id.example", audience="onelog")
    async with admin_api(tmp_path, settings=SecuritySettings(tokens=tokens)) as api:
        assert api.authenticator.takes_tokens
        assert (await api.get("/session")).json()["role"] == "viewer"
        assert (await api.ask("POST", "/views", {"name": "v", "filter": "#"})).status_code == 403


async def test_the_first_user_that_is_made_over_the_api_is_an_administrator(api):
    made = {"name": "joe", "password": "a secret", "role": "viewer"}
    assert (await api.ask("POST", "/users", made)).status_code == 409
    assert not api.authenticator.has_users


async def test_a_weak_password_is_refused_wherever_it_is_set_over_the_api(api):
    await api.authenticator.users.add("root", "secret", scram=False, administrator=True)
    text, _info = await api.tokens.create("t", AdminRole.ADMIN, 60_000, "root")
    headers = {"authorization": f"Bearer {text}"}
    body = {"name": "longname", "scram": False}
    for password, told in (("seven77", "at least 8 characters"), ("LongName", "the user's name")):
        made = await api.ask("POST", "/users", {**body, "password": password}, headers=headers)
        assert (made.status_code, told in made.json()["error"]["message"]) == (400, True)
    strong = {**body, "password": "eight888"}
    assert (await api.ask("POST", "/users", strong, headers=headers)).status_code == 201
    weak = await api.ask("PATCH", "/users/longname", {"password": "seven77"}, headers=headers)
    assert weak.status_code == 400


async def test_other_machines_are_never_let_in_without_a_login(tmp_path):
    async with admin_api(tmp_path, settings=SecuritySettings(anonymous="always")) as api:
        async with client_of(api.desk, "broker.example", listener_is_loopback=False) as client:
            assert (await client.get("/api/v1/session")).status_code == 401
            assert (await client.get("/metrics")).status_code == 401
            assert (await client.get("/health/ready")).status_code == 200
        async with client_of(api.desk, peer="192.0.2.7") as client:
            assert (await client.get("/api/v1/session")).status_code == 200  # always means always


async def test_a_session_is_a_cookie_that_no_script_and_no_other_site_has(api):
    await people(api)
    answer = await api.ask("POST", "/login", {"user": "root", "password": "secret"})
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={LIFETIME_S}"):
        assert part in cookie
    assert "Secure" not in cookie
    assert answer.json()["role"] == "admin"
    assert answer.json()["csrf"] not in cookie
    assert (await api.get("/session")).json()["name"] == "root"


async def test_a_change_by_a_session_needs_the_second_secret(api):
    await people(api)
    csrf = await log_in(api, "root")
    for headers in ({}, {"x-csrf-token": "x"}, {"x-csrf-token": ""}):
        answer = await api.ask("DELETE", "/users/a-viewer", headers=headers)
        assert answer.status_code == 403
        assert api.authenticator.knows("a-viewer")
    assert (await api.ask("DELETE", "/users/a-viewer", headers=csrf)).status_code == 204
    assert not api.authenticator.knows("a-viewer")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_a_page_of_another_site_changes_nothing_though_this_machine_may(api, headers):
    answer = await api.ask("POST", "/views", {"name": "v", "filter": "a/+"}, headers=headers)
    assert answer.status_code == 403
    assert api.broker.views.all() == []
    own = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    answer = await api.ask("POST", "/views", {"name": "v", "filter": "a/+"}, headers=own)
    assert answer.status_code == 201


async def test_a_wrong_password_an_unknown_and_a_disabled_user_are_told_the_same(api):
    await people(api)
    await api.authenticator.users.set_disabled("a-operator", True)
    asked = [("root", "wrong"), ("nobody", "secret"), ("a-operator", "secret")]
    answers = [
        await api.ask("POST", "/login", {"user": user, "password": password})
        for user, password in asked
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1


async def test_a_user_of_messages_only_cannot_log_in_here(api):
    await people(api)
    answer = await api.ask("POST", "/login", {"user": "a-none", "password": "secret"})
    assert answer.status_code == 403
    assert "onelog user role" in answer.json()["error"]["message"]


async def test_a_session_ends_at_logout_and_when_its_user_changes(api):
    await people(api)
    csrf = await log_in(api, "a-operator")
    assert (await api.ask("POST", "/logout", headers=csrf)).status_code == 204
    assert (await api.get("/session")).json()["name"] == "anonymous"
    await log_in(api, "a-operator")
    await log_in(api, "a-operator")  # an old session is in nobody's way
    await api.authenticator.users.set_password("a-operator", "new")
    answer = await api.get("/session")
    assert answer.status_code == 401
    assert "log in again" in answer.json()["error"]["message"]


def test_sessions_end_by_age_and_by_rest_and_are_bounded():
    clock = ManualClock()
    logins = LoginSessions(clock)
    cookie, _session = logins.begin(Identity("joe", "password"))
    for _ in range(int(LIFETIME_S / (IDLE_S - 1)) - 1):
        clock.advance(IDLE_S - 1)
        assert logins.find(cookie) is not None
    clock.advance(IDLE_S - 1)
    clock.advance(2)
    assert logins.find(cookie) is None
    first, _session = logins.begin(Identity("joe", "password"))
    second, _session = logins.begin(Identity("joe", "password"))
    logins.find(first)
    for _ in range(SESSIONS_MAX - 1):
        logins.begin(Identity("joe", "password"))
    assert len(logins) == SESSIONS_MAX
    assert logins.find(second) is None
    assert logins.find(first) is not None


async def test_a_token_is_kept_as_a_hash_and_void_when_it_is_revoked(api):
    made = await api.ask("POST", "/tokens", {"label": "ci", "role": "operator"})
    text, token = made.json()["token"], made.json()["info"]["id"]
    stored = (await api.broker.store.range("tokens/")).entries
    assert text.rpartition("_")[2].encode() not in stored[0].value
    bearer = {"authorization": f"Bearer {text}"}
    body = (await api.get("/session", headers=bearer)).json()
    assert (body["role"], body["proof"]) == ("operator", "token")
    await api.tokens.revoke(token)
    assert (await api.get("/session", headers=bearer)).status_code == 401


async def test_a_token_ends_at_its_time(tmp_path):
    async with admin_api(tmp_path) as api:
        text, _info = await api.tokens.create("ci", AdminRole.VIEWER, 5000)
        bearer = {"authorization": f"Bearer {text}"}
        assert (await api.get("/session", headers=bearer)).status_code == 200
        api.clock.advance(5)
        answer = await api.get("/session", headers=bearer)
        assert answer.status_code == 401
        assert "expired" in answer.json()["error"]["message"]


async def test_a_users_token_is_worth_what_the_user_is_worth_now(api):
    await people(api)
    text, _info = await api.tokens.create("own", AdminRole.ADMIN, 10_000, owner="a-operator")
    bearer = {"authorization": f"Bearer {text}"}
    assert (await api.get("/session", headers=bearer)).json()["role"] == "operator"
    await api.authenticator.users.set_disabled("a-operator", True)
    assert (await api.get("/session", headers=bearer)).status_code == 401


async def test_a_token_of_a_removed_user_does_not_come_back_with_another_of_its_name(api):
    await people(api)
    text, _info = await api.tokens.create("own", AdminRole.ADMIN, 10_000, owner="a-operator")
    bearer = {"authorization": f"Bearer {text}"}
    users = api.authenticator.users
    await users.set_password("a-operator", "changed")
    assert (await api.get("/session", headers=bearer)).status_code == 200
    await users.remove("a-operator")
    assert (await api.get("/session", headers=bearer)).status_code == 401
    api.clock.advance(1)
    await users.add("a-operator", "other", scram=False, administrator=True)
    assert (await api.get("/session", headers=bearer)).status_code == 401


@pytest.mark.parametrize(
    "header",
    ["Bearer x", "Bearer olt_x_y", "Bearer ", "Basic cm9vdDpzZWNyZXQ=", "olt_1", "Bearer é"],
)
async def test_wrong_credentials_are_refused_and_never_taken_for_none(api, header):
    answer = await api.get("/session", headers={"authorization": header.encode()})
    assert answer.status_code == 401


async def test_an_administrator_changes_users_but_does_not_lock_itself_out(api):
    await people(api)
    csrf = await log_in(api, "root")
    for body in ({"role": "viewer"}, {"disabled": True}):
        assert (await api.ask("PATCH", "/users/root", body, headers=csrf)).status_code == 409
    assert (await api.ask("DELETE", "/users/root", headers=csrf)).status_code == 409
    answer = await api.ask("PATCH", "/users/a-none", {"role": "operator"}, headers=csrf)
    assert answer.json()["role"] == "operator"
    assert [row["name"] for row in await api.items("/users", limit=2)] == [
        "a-none",
        "a-operator",
        "a-viewer",
        "root",
    ]
    assert (await api.get("/users/nobody")).status_code == 404
