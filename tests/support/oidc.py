"""A small identity provider of OpenID Connect on loopback, with real signatures, for tests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

CLIENT = "console"


class Provider:
    """Keys, tokens, and what the provider answers; change its fields to make it hostile."""

    def __init__(self) -> None:
        self._keys: dict[str, rsa.RSAPrivateKey] = {}
        self.published: list[str] = []
        """Ids of the keys that the key set shows."""
        self.asked: list[str] = []
        """Paths that were asked for."""
        self.jwks: bytes | None = None
        """What the key set is instead."""
        self.redirect = ""
        self.drip_s = 0.0
        self.is_down = False
        self.codes: dict[str, dict[str, str]] = {}
        self.claims: dict[str, Any] = {}
        """What id tokens of the login page say, beside the usual."""
        self.url = ""
        self.add_key("k1")

    def add_key(self, name: str) -> None:
        self._keys[name] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.published.append(name)

    def key_set(self) -> bytes:
        if self.jwks is not None:
            return self.jwks
        rows = [
            json.loads(RSAAlgorithm.to_jwk(self._keys[name].public_key()))
            | {"kid": name, "use": "sig"}
            for name in self.published
        ]
        return json.dumps({"keys": rows}).encode()

    def token(self, name: str = "k1", algorithm: str = "RS256", **claims: Any) -> str:
        rows = {
            "sub": "alice",
            "iss": self.url,
            "aud": "broker",
            "exp": int(time.time()) + 600,
        } | claims
        rows = {key: value for key, value in rows.items() if value is not None}
        return jwt.encode(rows, self._keys[name], algorithm, headers={"kid": name})

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        if self.is_down:
            return 503, {}, b"down"
        if path == "/.well-known/openid-configuration":
            return (
                200,
                {},
                json.dumps(
                    {
                        "issuer": self.url,
                        "jwks_uri": f"{self.url}/keys",
                        "authorization_endpoint": f"{self.url}/authorize",
                        "token_endpoint": f"{self.url}/token",
                    }
                ).encode(),
            )
        if path == "/keys" and self.redirect:
            return 302, {"Location": self.redirect}, b""
        if path == "/keys":
            return 200, {}, self.key_set()
        if path == "/token":
            return self._trade(form)
        return 404, {}, b"{}"

    def log_in(self, location: str) -> str:
        """What a browser does at the login page: the URL that it is sent back to."""
        asked = {name: row[0] for name, row in parse_qs(urlsplit(location).query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = hashlib.sha256(location.encode()).hexdigest()
        self.codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"]})
        return f"{asked['redirect_uri']}?{back}"

    def _trade(self, form: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or asked["code_challenge"] != challenge:
            return 400, {}, b'{"error":"invalid_grant"}'
        claims = {"aud": form["client_id"], "nonce": asked["nonce"]} | self.claims
        return 200, {}, json.dumps({"id_token": self.token(**claims)}).encode()


@contextlib.contextmanager
def provider() -> Iterator[Provider]:
    """A provider for the length of a block."""
    found = Provider()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/authorize?"):  # a browser, whose person is logged in here
                back = found.log_in(found.url + self.path)
                self._send((302, {"Location": back}, b""))
                return
            self._send(found.answer(urlsplit(self.path).path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = {name: row[0] for name, row in parse_qs(body).items()}
            self._send(found.answer(urlsplit(self.path).path, form))

        def _send(self, answer: tuple[int, dict[str, str], bytes]) -> None:
            status, headers, body = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                for start in range(0, len(body), 1024):
                    self.wfile.write(body[start : start + 1024])
                    if found.drip_s:
                        time.sleep(found.drip_s)

        def log_message(self, *_said: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
