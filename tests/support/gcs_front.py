"""The XML interface of Google Cloud Storage, in front of fake-gcs-server, which has only the JSON
one: obstore writes, lists and deletes by XML.

Rules: it translates and decides nothing; who is first to create a name, what a range is, and what
is listed, the server behind it says. Parts of an upload are kept here until it is completed.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

PASSED = ("Range", "If-Match", "If-None-Match")
KEPT = ("ETag", "Last-Modified", "Content-Range", "X-Goog-Generation")
MATCH = "x-goog-if-generation-match"
NO_BUCKET = "<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist.</Message></Error>"


class Asked:
    """A request, its place and its body read."""

    def __init__(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        bucket, _, name = parts.path.lstrip("/").partition("/")
        self.method = request.command
        self.bucket, self.name = unquote(bucket), unquote(name)
        words = parse_qs(parts.query, keep_blank_values=True)
        self.words = {name: values[0] for name, values in words.items()}
        self.headers = request.headers
        self.body = request.rfile.read(int(request.headers.get("Content-Length") or 0))


class Answer:
    """What the server behind says."""

    def __init__(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None):
        self.status, self.body, self.headers = status, body, headers or {}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class GcsFront(ThreadingHTTPServer):
    """It listens when it is made, and serves while a thread runs it."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Translator)
        self._behind = port
        self._numbers = itertools.count(1)
        self._uploads: dict[str, dict[int, bytes]] = {}

    def answer(self, asked: Asked) -> Answer:
        """The answer to a request of the XML interface."""
        if not asked.name:
            return self._listed(asked)
        if asked.method in ("GET", "HEAD", "DELETE"):
            return self._passed(asked)
        if "uploads" in asked.words:
            number = str(next(self._numbers))
            self._uploads[number] = {}
            text = f"<UploadId>{number}</UploadId>"
            return _xml(f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>")
        upload = asked.words.get("uploadId", "")
        if asked.method == "PUT" and upload:
            self._uploads[upload][int(asked.words["partNumber"])] = asked.body
            return Answer(200, headers={"ETag": f'"{asked.words["partNumber"]}"'})
        if upload:
            parts = self._uploads.pop(upload)
            done = self._put(asked, b"".join(parts[number] for number in sorted(parts)))
            if done.status == 200:
                tag = escape(done.headers["ETag"])
                text = f"<ETag>{tag}</ETag>"
                done.body = _xml(
                    f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>"
                ).body
            return done
        return self._put(asked, asked.body)

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), dict(answer.getheaders()))
        except OSError:
            return Answer(503)
        finally:
            connection.close()

    def _missing(self, bucket: str, answer: Answer) -> Answer:
        """The server behind says 404 of a name and of a bucket alike."""
        if answer.status == 404 and self._ask("GET", _json_path(bucket), b"", {}).status == 404:
            return Answer(404, NO_BUCKET.encode())
        return answer

    def _passed(self, asked: Asked) -> Answer:
        headers = {name: asked.headers[name] for name in PASSED if name in asked.headers}
        path = f"/{quote(asked.bucket)}/{quote(asked.name)}"
        done = self._missing(asked.bucket, self._ask(asked.method, path, b"", headers))
        if asked.method == "DELETE" and done.status == 200:
            return Answer(204)
        return done

    def _put(self, asked: Asked, body: bytes) -> Answer:
        words = f"uploadType=media&name={quote(asked.name, safe='')}"
        if MATCH in asked.headers:
            words += f"&ifGenerationMatch={asked.headers[MATCH]}"
        path = f"/upload{_json_path(asked.bucket)}/o?{words}"
        kind = {"Content-Type": "application/octet-stream"}
        done = self._missing(asked.bucket, self._ask("POST", path, body, kind))
        if done.status != 200:
            return done
        row = done.json
        return Answer(
            200, headers={"ETag": f'"{row["etag"]}"', "X-Goog-Generation": str(row["generation"])}
        )

    def _listed(self, asked: Asked) -> Answer:
        after = asked.words.get("start-after", "")
        words = {
            "prefix": asked.words.get("prefix", ""),
            "delimiter": asked.words.get("delimiter", ""),
            "startOffset": after,
            "maxResults": asked.words.get("max-keys", "1000"),
            "pageToken": asked.words.get("continuation-token", ""),
        }
        told = "&".join(f"{name}={quote(text, safe='')}" for name, text in words.items() if text)
        found = self._ask("GET", f"{_json_path(asked.bucket)}/o?{told}", b"", {})
        found = self._missing(asked.bucket, found)
        if found.status != 200:
            return found
        rows = [
            f"<Contents><Key>{escape(row['name'])}</Key><Size>{row['size']}</Size>"
            f"<LastModified>{row['updated']}</LastModified><ETag>{row['etag']}</ETag></Contents>"
            for row in found.json.get("items") or []
            if row["name"] != after  # behind that name, where JSON says from it on
        ]
        if token := found.json.get("nextPageToken"):
            rows.append(f"<NextContinuationToken>{escape(token)}</NextContinuationToken>")
        return _xml(f"<ListBucketResult>{''.join(rows)}</ListBucketResult>")


class Translator(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: GcsFront

    def do_GET(self) -> None:
        done = self.server.answer(Asked(self))
        self.send_response(done.status)
        length = str(len(done.body))
        for name, text in done.headers.items():
            if name.lower() in {kept.lower() for kept in KEPT}:
                self.send_header(name, text)
            elif self.command == "HEAD" and name.lower() == "content-length":
                length = text
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(done.body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_what: object) -> None:
        """Say nothing."""


def _json_path(bucket: str) -> str:
    return f"/storage/v1/b/{quote(bucket)}"


def _xml(text: str) -> Answer:
    return Answer(200, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode())


@contextlib.contextmanager
def gcs_front(port: int) -> Iterator[str]:
    """Translate for the server at a port; the address that speaks XML."""
    with GcsFront(port) as front:
        thread = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{front.server_port}"
        finally:
            front.shutdown()
            thread.join()
