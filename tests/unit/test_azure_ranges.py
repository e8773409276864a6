"""The end of an object of a store that knows no suffix ranges: obstore's client of Azure refuses
them before it asks anybody, so a small server that knows HEAD and ranges is enough."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from onelog.base.errors import NotFound
from onelog.objects.store import ObjectStore, StoreSettings, open_store

pytest.importorskip("obstore")

BODY = bytes(range(200))
KEY = "c2VjcmV0LW9mLXRoZS10ZXN0LXdoaWNoLW5vYm9keS1jaGVja3M="


class Blobs(BaseHTTPRequestHandler):
    """One blob, `there`."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        status, body, words = 200, BODY, {}
        if not self.path.split("?")[0].endswith("/there"):
            status, body = 404, b""
        elif wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or ""):
            first, last = int(wanted[1]), int(wanted[2])
            status, body = 206, BODY[first : last + 1]
            words["Content-Range"] = f"bytes {first}-{last}/{len(BODY)}"
        self.send_response(status)
        words |= {
            "Content-Length": str(len(body)),
            "Last-Modified": "Wed, 18 Nov 2026 12:00:00 GMT",
            "ETag": '"0x1"',
            "x-ms-version-id": "1",
        }
        for name, value in words.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_what: object) -> None:
        """Say nothing."""


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Blobs) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            options = {
                "azure_storage_account_name": "account",
                "azure_storage_account_key": KEY,
                "azure_storage_endpoint": f"http://127.0.0.1:{server.server_port}/account",
                "allow_http": "true",
            }
            url = "az://container/prefix"
            yield open_store(StoreSettings(url=url, options=options, deadline_ms=4000))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("length", [1, 50, len(BODY)])
def test_the_end_of_an_object_is_read_where_a_store_knows_no_suffix_ranges(store, length):
    assert store.get_suffix("there", length) == BODY[-length:]


def test_an_object_that_is_not_there_is_not_found_by_its_end(store):
    with pytest.raises(NotFound):
        store.get_suffix("gone", 10)
