"""Stand-ins for two clouds on loopback: Azurite for Azure's blobs, fake-gcs-server for Google's.

Rules: `make conformance-stores` installs both under `build/stores`; where one is not there, its
tests are skipped. Nothing is kept outside of a server's folder, and it is the same server again
after `kill` and `start`. docs/guide/storage.md says where they differ from the clouds.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import email.utils
import hashlib
import hmac
import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gcs_front import gcs_front
from tests.support.s3_server import free_pairs

INSTALLED = Path("build/stores").absolute()
AZURITE = INSTALLED / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
FAKE_GCS = INSTALLED / "bin" / "fake-gcs-server"
HINT = "`make conformance-stores` installs it under build/stores"
ACCOUNT = "lakekeeper"
KEY = base64.b64encode(b"hush: this is the key of the account of the lake").decode()
VERSION = "2023-11-03"
START_S = 60.0
MADE = (200, 201, 409)
"""Done, or done before."""


@dataclass
class CloudServer:
    """A server in a folder; what the two have in common."""

    folder: Path
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store_options(self) -> dict[str, str]:
        """Where it is and who we are, in the words of obstore."""
        raise NotImplementedError

    def url(self, bucket: str, prefix: str) -> str:
        """The address of a store in it."""
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def make(self, bucket: str) -> int:
        """The status of a request that makes a bucket; 0 when nobody answers."""
        raise NotImplementedError

    def start(self) -> CloudServer:
        """Start it, for the first time or again; it answers when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_pairs(1)[0]
        log = self.folder.with_suffix(".log")
        with log.open("ab") as out:
            self._process = subprocess.Popen(self.command(), stdout=out, stderr=out)
        deadline = time.monotonic() + START_S
        while self.make("probe") not in MADE:
            assert self._process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        return self

    def bucket(self, name: str) -> str:
        """Make a bucket."""
        assert self.make(name) in MADE
        return name

    def kill(self) -> None:
        """As a power cut does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def asked(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, headers=headers)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


class Azurite(CloudServer):
    """Azure's own emulator of its blobs, with a key that it checks."""

    @property
    def store_options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"{self.endpoint}/{ACCOUNT}",
        }

    def url(self, bucket: str, prefix: str) -> str:
        return f"az://{bucket}/{prefix}"

    def start(self) -> CloudServer:
        os.environ["AZURITE_ACCOUNTS"] = f"{ACCOUNT}:{KEY}"
        try:
            return super().start()
        finally:
            del os.environ["AZURITE_ACCOUNTS"]

    def command(self) -> list[str]:
        return ["node", str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
                "--location", str(self.folder), "--silent", "--disableTelemetry",
                "--skipApiVersionCheck"]  # fmt: skip

    def make(self, bucket: str) -> int:
        now = email.utils.format_datetime(datetime.datetime.now(datetime.UTC), usegmt=True)
        headers = f"x-ms-date:{now}\nx-ms-version:{VERSION}\n"
        where = f"/{ACCOUNT}/{ACCOUNT}/{bucket}\nrestype:container"
        asked = "PUT" + "\n" * 12 + headers + where
        digest = hmac.new(base64.b64decode(KEY), asked.encode(), hashlib.sha256).digest()
        signed = {
            "x-ms-date": now,
            "x-ms-version": VERSION,
            "Content-Length": "0",
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        return self.asked("PUT", f"/{ACCOUNT}/{bucket}?restype=container", b"", signed)


class FakeGcs(CloudServer):
    """A small server of Google Cloud Storage, which lets everybody in, behind a translation."""

    front = ""
    """The address that speaks XML."""

    @property
    def store_options(self) -> dict[str, str]:
        key = {"gcs_base_url": self.front, "disable_oauth": True, "client_email": "",
               "private_key": "", "private_key_id": ""}  # fmt: skip
        return {"google_base_url": self.front, "google_service_account_key": json.dumps(key)}

    def url(self, bucket: str, prefix: str) -> str:
        return f"gs://{bucket}/{prefix}"

    def command(self) -> list[str]:
        return [str(FAKE_GCS), "-backend", "filesystem", "-filesystem-root", str(self.folder),
                "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port),
                "-public-host", f"127.0.0.1:{self.port}", "-log-level", "warn"]  # fmt: skip

    def make(self, bucket: str) -> int:
        text = json.dumps({"name": bucket}).encode()
        words = {"Content-Type": "application/json"}
        return self.asked("POST", "/storage/v1/b?project=lake", text, words)


CLOUDS: dict[str, type[CloudServer]] = {"azure": Azurite, "gcs": FakeGcs}


def why_not(cloud: str) -> str:
    """Why the stand-in of a cloud cannot run here; empty: it can."""
    if cloud == "gcs":
        return "" if FAKE_GCS.exists() else f"fake-gcs-server is not installed: {HINT}"
    if AZURITE.exists() and shutil.which("node"):
        return ""
    return f"Azurite is not installed: {HINT}"


@contextlib.contextmanager
def cloud_server(cloud: str, folder: Path) -> Iterator[CloudServer]:
    """A server for as long as the block runs; the test is skipped where it is not installed."""
    if reason := why_not(cloud):
        pytest.skip(reason)
    server = CLOUDS[cloud](folder).start()
    try:
        if isinstance(server, FakeGcs):
            with gcs_front(server.port) as server.front:
                yield server
        else:
            yield server
    finally:
        server.kill()
