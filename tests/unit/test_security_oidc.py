"""Tokens of an identity provider: discovery, keys that change, and providers that mean no good."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import parse_qsl, urlsplit

import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import ConfigError, NotAuthenticated
from onelog.config import load
from onelog.observe import Troubles
from onelog.security import fetching, issuer
from onelog.security.authenticator import SecuritySettings
from onelog.security.issuer import ISSUER_TROUBLE
from onelog.security.principals import Principal
from onelog.security.roles import AdminRole
from onelog.security.signing_keys import read_keys
from onelog.security.tokens import Tokens, TokenSettings
from tests.support.admin import admin_api, client_of
from tests.support.oidc import CLIENT, provider

WELL_KNOWN = "/.well-known/openid-configuration"


class Checked:
    """Tokens of a provider, opened for a test."""

    def __init__(self, **settings) -> None:
        self.troubles = Troubles(SystemClock())
        self.tokens = Tokens(TokenSettings(**settings), SystemClock(), self.troubles)

    async def __aenter__(self) -> Checked:
        await self.tokens.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.tokens.close()

    async def name(self, token: str) -> str:
        await self.tokens.renew_keys_for(token)
        return self.tokens.identify(token).name

    @property
    def standing(self) -> list[str]:
        return [row.kind for row in self.troubles.standing()]


async def test_discovery_by_url_finds_issuer_and_keys():
    with provider() as found:
        async with Checked(discovery=found.url + WELL_KNOWN, audience="broker") as checked:
            assert await checked.name(found.token()) == "alice"
            assert await checked.name(found.token(algorithm="PS256")) == "alice"
            for wrong in ({"iss": "them"}, {"aud": "other"}, {"exp": 1}, {"nbf": 2**40}):
                with pytest.raises(NotAuthenticated):
                    await checked.name(found.token(**wrong))
            assert not checked.standing


async def test_discovery_by_file_and_keys_by_their_own_url(tmp_path):
    with provider() as found:
        document = found.answer(WELL_KNOWN, {})[2]
        (tmp_path / "discovery.json").write_bytes(document)
        async with Checked(discovery=str(tmp_path / "discovery.json")) as checked:
            assert await checked.name(found.token()) == "alice"
            with pytest.raises(NotAuthenticated):
                await checked.name(found.token(iss="them"))
        async with Checked(jwks_url=found.url + "/keys", issuer=found.url) as checked:
            assert await checked.name(found.token()) == "alice"


async def test_a_rotated_key_is_asked_for_once_and_unknown_keys_cause_no_storm(monkeypatch):
    with provider() as found:
        async with Checked(jwks_url=found.url + "/keys") as checked:
            found.add_key("k2")
            monkeypatch.setattr(issuer, "UNKNOWN_KEY_S", 0.0)
            assert await checked.name(found.token("k2")) == "alice"
            monkeypatch.setattr(issuer, "UNKNOWN_KEY_S", 1000.0)
            before = len(found.asked)
            found.add_key("k3")
            found.published.remove("k3")
            for _ in range(50):
                with pytest.raises(NotAuthenticated, match="key is unknown"):
                    await checked.name(found.token("k3"))
            assert len(found.asked) == before


async def test_keys_are_renewed_on_a_schedule():
    with provider() as found:
        async with Checked(jwks_url=found.url + "/keys", refresh_ms=50) as checked:
            found.add_key("k2")
            found.published.remove("k1")
            keys = checked.tokens.issuer
            while "k2" not in keys.keys:
                assert await keys.refresh() is not None
            assert list(keys.keys) == ["k2"]
            fetched = keys.fetches
            for _ in range(1000):
                if keys.fetches > fetched:
                    break
                await asyncio.sleep(0.02)
            assert keys.fetches > fetched


async def test_while_the_provider_is_down_its_last_keys_count_and_a_trouble_stands():
    with provider() as found:
        async with Checked(discovery=found.url + WELL_KNOWN) as checked:
            found.is_down = True
            assert not await checked.tokens.issuer.refresh()
            assert checked.standing == [ISSUER_TROUBLE]
            assert await checked.name(found.token()) == "alice"
            found.is_down = False
            assert await checked.tokens.issuer.refresh()
            assert not checked.standing


async def test_a_provider_that_is_down_at_the_start_does_not_keep_the_broker_from_starting():
    with provider() as found:
        found.is_down = True
        async with Checked(discovery=found.url + WELL_KNOWN) as checked:
            assert checked.standing == [ISSUER_TROUBLE]
            with pytest.raises(NotAuthenticated):
                await checked.name(found.token())
            found.is_down = False
            assert await checked.tokens.issuer.refresh()
            assert await checked.name(found.token()) == "alice"


def hostile(found, kind: str) -> None:
    one = json.loads(found.key_set())["keys"][0]
    if kind == "10,000 keys":
        found.jwks = json.dumps({"keys": [one | {"kid": str(n)} for n in range(10_000)]}).encode()
    elif kind == "101 keys":
        found.jwks = json.dumps(
            {"keys": [{"kty": "RSA", "kid": str(n)} for n in range(101)]}
        ).encode()
    elif kind == "huge":
        found.jwks = b'{"keys": [], "x": "' + b"y" * 4_000_000 + b'"}'
    elif kind == "slow":
        found.jwks, found.drip_s = b" " * 200_000 + found.key_set(), 0.05
    elif kind == "redirect":
        found.redirect = "http://127.0.0.1:1/keys"
    elif kind == "secret key":
        found.jwks = json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "k1"}]}).encode()
    elif kind == "monster key":
        found.jwks = json.dumps({"keys": [one | {"n": "x" * 10_000}]}).encode()
    else:
        found.jwks = b"[" * 100_000


@pytest.mark.parametrize(
    "kind",
    ["10,000 keys", "101 keys", "huge", "slow", "redirect", "secret key", "monster key", "nested"],
)
async def test_a_hostile_key_set_is_refused_in_time_and_the_last_keys_count(kind, monkeypatch):
    monkeypatch.setattr(
        fetching.fetch, "__kwdefaults__", fetching.fetch.__kwdefaults__ | {"deadline_s": 1.0}
    )
    with provider() as found:
        async with Checked(jwks_url=found.url + "/keys") as checked:
            token = found.token()
            hostile(found, kind)
            assert not await checked.tokens.issuer.refresh()
            assert checked.standing == [ISSUER_TROUBLE]
            assert await checked.name(token) == "alice"


def test_a_symmetric_signature_made_with_a_public_key_never_counts():
    with pytest.raises(ValueError, match="no key"):
        read_keys(b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}')


async def test_keys_over_plain_http_from_elsewhere_are_refused():
    for settings in ({"jwks_url": "http://example.org/keys"}, {"discovery": "ftp://x/y"}):
        with pytest.raises(ConfigError):
            async with Checked(**settings):
                pass
    with pytest.raises(ConfigError, match="both set"):
        load(None, {}, ['security.tokens.jwks_file="a"', 'security.tokens.jwks_url="https://b"'])


async def test_a_discovery_document_of_another_issuer_is_refused():
    with provider() as found:
        async with Checked(discovery=found.url + WELL_KNOWN, issuer="https://other") as checked:
            assert checked.standing == [ISSUER_TROUBLE]


async def test_groups_and_roles_come_from_claims():
    settings = {
        "groups_claim": "realm.groups",
        "roles_claim": "roles",
        "admins": ("boss",),
        "operators": ("ops",),
    }
    with provider() as found:
        async with Checked(jwks_url=found.url + "/keys", **settings) as checked:
            token = found.token(realm={"groups": ["lab", 7]}, roles=["x", "ops"])
            identity = checked.tokens.identify(token)
            assert identity.role is AdminRole.OPERATOR
            assert identity.principal("mqtt") == Principal("alice", "mqtt", claims=("~group=lab",))
            assert checked.tokens.identify(found.token()).role is AdminRole.NONE


# -- the login of people


async def oidc_api(tmp_path, found):
    tokens = TokenSettings(
        discovery=found.url + WELL_KNOWN, roles_claim="roles", viewers=("team",), admins=("boss",)
    )
    return admin_api(tmp_path, settings=SecuritySettings(tokens=tokens))


def configured(api, found) -> None:
    rows = {
        "discovery": found.url + WELL_KNOWN,
        "client_id": CLIENT,
        "console_url": "http://localhost",
    }
    loaded = load(None, {}, [f'security.tokens.{key}="{value}"' for key, value in rows.items()])
    opened = api.desk.opened
    object.__setattr__(opened, "loaded", loaded)


async def come_back(api, found, **changes):
    begun = await api.client.get("/oidc/login")
    assert begun.status_code == 302
    back = urlsplit(found.log_in(begun.headers["location"]))
    query = back.query
    for name, value in changes.items():
        query = "&".join(
            f"{name}={value}" if part.startswith(f"{name}=") else part for part in query.split("&")
        )
    return await api.client.get(f"{back.path}?{query}")


async def test_people_log_in_at_the_provider_with_pkce(tmp_path):
    with provider() as found:
        found.claims = {"roles": ["team"], "aud": CLIENT}
        async with await oidc_api(tmp_path, found) as api:
            await api.authenticator.users.add("root", "secret", scram=False, administrator=True)
            configured(api, found)
            answer = await come_back(api, found)
            assert (answer.status_code, answer.headers["location"]) == (302, "/")
            session = (await api.get("/session")).json()
            assert (session["name"], session["role"], session["proof"]) == (
                "alice", "viewer", "session",
            )  # fmt: skip


HOUR_MS = 3_600_000


async def person_as_admin(api, found) -> dict[str, str]:
    """The headers of a person who is an administrator by the provider's word alone."""
    configured(api, found)
    assert (await come_back(api, found)).status_code == 302
    session = (await api.get("/session")).json()
    assert (session["name"], session["role"]) == ("alice", "admin")
    return {"x-csrf-token": session["csrf"]}


async def test_a_token_by_a_role_of_the_provider_ends_with_the_login_that_made_it(tmp_path):
    with provider() as found:
        found.claims = {"roles": ["boss"], "aud": CLIENT}
        async with await oidc_api(tmp_path, found) as api:
            await api.authenticator.users.add("root", "secret", scram=False, administrator=True)
            headers = await person_as_admin(api, found)
            asked = {"label": "ci", "role": "admin", "lifetime_ms": 24 * HOUR_MS}
            refused = await api.ask("POST", "/tokens", asked, headers=headers)
            assert refused.status_code == 400
            assert "ends with this login, in 12.0 hours" in refused.json()["error"]["message"]
            asked["lifetime_ms"] = 11 * HOUR_MS
            made = (await api.ask("POST", "/tokens", asked, headers=headers)).json()
            assert made["info"]["owner"] == "alice"
            api.client.cookies.clear()
            bearer = {"authorization": f"Bearer {made['token']}"}
            session = (await api.get("/session", headers=bearer)).json()
            assert (session["name"], session["role"]) == ("alice", "admin")
            # It makes no token that lives longer than itself, nor one without an owner.
            assert (await api.ask("POST", "/tokens", asked, headers=bearer)).status_code == 201
            asked["lifetime_ms"] = 12 * HOUR_MS
            assert (await api.ask("POST", "/tokens", asked, headers=bearer)).status_code == 400
            listed = (await api.get("/tokens", headers=bearer)).json()["items"]
            assert {row["owner"] for row in listed} == {"alice"}
            # Somebody disables her here: the token is void at once.
            await api.authenticator.users.add("alice", "secret", scram=False)
            await api.authenticator.users.change("alice", disabled=True)
            assert (await api.get("/session", headers=bearer)).status_code == 401
            await api.authenticator.users.remove("alice")
            assert (await api.get("/session", headers=bearer)).status_code == 200
            api.clock.advance(11 * HOUR_MS / 1000)
            assert (await api.get("/session", headers=bearer)).status_code == 401


async def test_who_has_the_role_here_too_makes_tokens_that_last(tmp_path):
    with provider() as found:
        found.claims = {"roles": ["boss"], "aud": CLIENT}
        async with await oidc_api(tmp_path, found) as api:
            await api.authenticator.users.add("alice", "secret", scram=False, role=AdminRole.VIEWER)
            headers = await person_as_admin(api, found)
            asked = {"label": "ci", "role": "viewer", "lifetime_ms": 24 * HOUR_MS}
            made = await api.ask("POST", "/tokens", asked, headers=headers)
            assert made.status_code == 201
            refused = await api.ask("POST", "/tokens", {**asked, "role": "admin"}, headers=headers)
            assert refused.status_code == 400
            api.client.cookies.clear()
            bearer = {"authorization": f"Bearer {made.json()['token']}"}
            assert (await api.get("/session", headers=bearer)).json()["role"] == "viewer"
            await api.authenticator.users.change("alice", role=AdminRole.NONE)
            assert (await api.get("/session", headers=bearer)).status_code == 401


async def test_everybody_is_told_where_to_log_in_at_the_provider_if_there_is_one(tmp_path):
    with provider() as found:
        async with await oidc_api(tmp_path, found) as api:
            await api.authenticator.users.add("root", "secret", scram=False, administrator=True)
            async with client_of(api.desk, "broker.example", listener_is_loopback=False) as client:
                asked = await client.get("/api/v1/login")
                assert (asked.status_code, asked.json()) == (200, {"provider_url": None})
                configured(api, found)
                asked = await client.get("/api/v1/login")
                assert asked.json() == {"provider_url": "http://localhost/oidc/login"}


@pytest.mark.parametrize(
    "wrong", ["state", "cookie", "nonce", "audience", "code", "expired", "no role", "twice"]
)
async def test_a_login_at_the_provider_that_is_not_whole_is_refused(tmp_path, wrong):
    with provider() as found:
        found.claims = {"roles": ["team"]}
        if wrong in ("nonce", "audience", "expired", "no role"):
            found.claims |= {
                "nonce": {"nonce": "other"},
                "audience": {"aud": "other"},
                "expired": {"exp": 1},
                "no role": {"roles": []},
            }[wrong]
        async with await oidc_api(tmp_path, found) as api:
            await api.authenticator.users.add("root", "secret", scram=False, administrator=True)
            configured(api, found)
            begun = await api.client.get("/oidc/login")
            back = found.log_in(begun.headers["location"]).removeprefix("http://localhost")
            if wrong == "state":
                back += "x"
            elif wrong == "cookie":
                api.client.cookies.clear()
            elif wrong == "code":
                found.codes.clear()
            elif wrong == "twice":
                assert (await api.client.get(back)).status_code == 302
            answer = await api.client.get(back)
            assert answer.status_code == (403 if wrong == "no role" else 401), answer.text


async def test_a_person_whose_login_failed_sees_a_page_that_says_what_to_do(tmp_path):
    with provider() as found:
        async with await oidc_api(tmp_path, found) as api:
            await api.authenticator.users.add("root", "secret", scram=False, administrator=True)
            configured(api, found)
            begun = await api.client.get("/oidc/login")
            back = urlsplit(found.log_in(begun.headers["location"]))
            state = dict(parse_qsl(back.query))["state"]
            denied = f"{back.path}?state={state}&error=%3Cscript%3Ealert(1)%3C/script%3E"
            page = await api.client.get(denied, headers={"accept": "text/html,*/*;q=0.8"})
            assert page.status_code == 401
            assert page.headers["content-type"].startswith("text/html")
            assert "script-src" not in page.headers["content-security-policy"]
            assert "the identity provider refused the login: &lt;script&gt;" in page.text.lower()
            assert "<script" not in page.text
            for way in ('href="/oidc/login"', 'href="/console/"'):
                assert way in page.text
            again = await api.client.get(denied)  # a program
            assert again.json()["error"]["code"] == "not_authenticated"


async def test_without_a_client_id_there_is_no_login_at_a_provider(tmp_path):
    async with admin_api(tmp_path) as api:
        assert (await api.client.get("/oidc/login")).status_code == 404
