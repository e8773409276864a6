"""The console's files: what is served, with which headers, and what a tree without a build says."""

from __future__ import annotations

import gzip

import httpx2 as httpx
import pytest
from starlette.applications import Starlette

from onelog.admin.console import HOME, ConsoleFiles
from tests.support.admin import client_of, new_desk

PAGE = b"<!doctype html><title>OneLog</title>"
SCRIPT = b"console.log(1)" * 100


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_bytes(PAGE)
    (tmp_path / "assets" / "index-abc.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "index-abc.js.gz").write_bytes(gzip.compress(SCRIPT))
    (tmp_path.parent / "secret.txt").write_text("not for you")
    return tmp_path


def client_for(folder):
    application = Starlette(routes=list(ConsoleFiles(folder).routes()))

    async def guarded(scope, receive, send):  # as AdminGuard does
        path = scope["raw_path"].decode("latin-1")
        await application({**scope, "path": path.rstrip("/") or "/"}, receive, send)

    transport = httpx.ASGITransport(app=guarded)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def test_the_page_may_run_no_script_but_the_ones_served_beside_it(folder):
    async with client_for(folder) as client:
        answer = await client.get(HOME)
    assert answer.content == PAGE
    assert answer.headers["content-type"].startswith("text/html")
    policy = dict(
        row.strip().split(" ", 1) for row in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_files_with_a_digest_are_kept_for_ever_and_the_page_is_asked_for_each_time(folder):
    async with client_for(folder) as client:
        page, script = await client.get(HOME), await client.get(f"{HOME}assets/index-abc.js")
    assert page.headers["cache-control"] == "no-cache"
    assert "immutable" in script.headers["cache-control"]
    assert script.headers["content-type"].startswith("text/javascript")


async def test_a_packed_file_goes_to_clients_that_take_it(folder):
    async with client_for(folder) as client:
        url = f"{HOME}assets/index-abc.js"
        packed = await client.get(url, headers={"accept-encoding": "gzip"})
        plain = await client.get(url, headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content == SCRIPT
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    "path",
    [
        "assets/..%2Findex.html",
        "..%2Fsecret.txt",
        "%2e%2e/secret.txt",
        "assets/..%2F..%2Fsecret.txt",
        "assets/nothing.js",
        "index-abc.js",
        "assets/index-abc.js.gz",
    ],
)
async def test_no_path_leads_to_a_file_that_was_not_built(folder, path):
    async with client_for(folder) as client:
        answer = await client.get(HOME + path)
    assert answer.status_code == 404
    assert "not for you" not in answer.text


async def test_a_tree_without_a_build_says_how_to_build_it(tmp_path):
    async with client_for(tmp_path / "nothing") as client:
        answer = await client.get(HOME)
    assert answer.status_code == 503
    assert "make console" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


async def test_a_browser_is_led_to_the_console_and_a_program_to_the_api():
    async with client_of(new_desk()) as client:
        browser = await client.get("/", headers={"accept": "text/html,application/xhtml+xml"})
        program = await client.get("/")
        bare = await client.get("/console")
    assert (browser.status_code, browser.headers["location"]) == (303, HOME)
    assert program.json()["name"] == "onelog"
    assert (bare.status_code, bare.headers["location"]) == (308, HOME)


async def test_a_page_under_another_name_of_this_machine_is_refused():
    """A name that somebody else points at 127.0.0.1 shows nothing (DNS rebinding)."""
    async with client_of(new_desk(), host="evil.example") as client:
        assert (await client.get(HOME)).status_code == 403
