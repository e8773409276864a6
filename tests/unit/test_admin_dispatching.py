"""From a request to its handler: the table of paths, errors, and answers in one write."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Route

from onelog.admin.dispatching import HttpPaths
from onelog.admin.server import JoinedWrites


async def _nothing(_request):
    raise AssertionError


ROUTES = HttpPaths(
    [
        Route("/a", _nothing, methods=["GET"]),
        Route("/a/{name}", _nothing, methods=["GET", "DELETE"]),
        Route("/a/{name}/b", _nothing, methods=["POST"]),
    ]
)


@pytest.mark.parametrize(
    ("path", "method", "route", "names"),
    [
        ("/a", "GET", "/a", {}),
        ("/a", "HEAD", "/a", {}),
        ("/a/x%2Fy", "DELETE", "/a/{name}", {"name": "x%2Fy"}),
        ("/a/x/b", "POST", "/a/{name}/b", {"name": "x"}),
    ],
)
def test_a_path_leads_to_its_route_and_the_names_in_it(path, method, route, names):
    found, given = ROUTES.find(path, method)
    assert (found.path, given) == (route, names)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/b", "GET", 404), ("/a/x/c", "GET", 404), ("/a/x/b/c", "GET", 404), ("/a", "POST", 405)],
)
def test_what_is_not_there_is_refused(path, method, status):
    with pytest.raises(HTTPException) as error:
        ROUTES.find(path, method)
    assert error.value.status_code == status
    if status == 405:
        assert error.value.headers == {"Allow": "GET, HEAD"}


class Lower:
    """A transport that notes its writes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def __getattr__(self, _name):
        return lambda *_given: None

    def write(self, data: bytes) -> None:
        self.written.append(data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


@pytest.mark.parametrize(
    ("writes", "written"),
    [
        ([HEAD, b"{}"], [HEAD + b"{}"]),
        ([HEAD, b"{", b"}"], [HEAD + b"{", b"}"]),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], [b"HTTP/1.1 100 Continue\r\n\r\n"]),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"], None),
    ],
    ids=["whole", "in parts", "continue", "stream"],
)
def test_the_head_of_an_answer_goes_with_its_body_and_nothing_else_waits(writes, written):
    lower = Lower()
    joined = JoinedWrites(lower)
    for data in writes:
        joined.write(data)
    assert lower.written == (writes if written is None else written)


@pytest.mark.parametrize("end", ["let_go", "close", "write_eof"])
def test_a_head_without_a_body_goes_at_the_end(end):
    lower = Lower()
    joined = JoinedWrites(lower)
    joined.write(HEAD)
    assert lower.written == []
    getattr(joined, end)()
    assert lower.written == [HEAD]
