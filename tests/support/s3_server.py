"""A real S3 server on loopback: SeaweedFS, with keys that it checks.

Rules: nothing is kept outside of its folder, and it is the same server again after `kill` and
`start`: same ports, same objects. A port of SeaweedFS has a second one ten thousand above it.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "lake-keeper", "hush-this-is-the-secret-of-the-lake"
NEXT_KEY = "lake-keeper-next"
"""Another key of the same user, with the same secret."""
REGION = "us-east-1"
START_S = 120.0
WEED = Path(sys.executable).parent / "weed"
MADE = (200, 409)
"""Done, or done before."""
PORTS = ("s3", "master", "volume", "filer", "tls")


def available() -> bool:
    return WEED.exists()


@dataclass
class S3Server:
    """SeaweedFS in a folder; `bucket` makes a bucket, `options` is what a table is told."""

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    certificate: tuple[Path, Path] | None = None
    """Files of a certificate and its key: it is served by TLS, too."""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['s3']}"

    @property
    def tls_endpoint(self) -> str:
        return f"https://localhost:{self.ports['tls']}"

    @property
    def options(self) -> dict[str, str]:
        """Where it is and who we are, in the options of a table."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same in the words of AWS."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    @property
    def store_options(self) -> dict[str, str]:
        """The same in the words of obstore."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_region": REGION,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
        }

    def start(self) -> S3Server:
        """Start it, for the first time or again; it answers when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not an Admin: for those a bucket that is missing is made, which hides the mistake.
        rights = ["Read", "List", "Tagging", "Write"]
        keys = [{"accessKey": key, "secretKey": SECRET_KEY} for key in (ACCESS_KEY, NEXT_KEY)]
        maker = [{"accessKey": f"{ACCESS_KEY}-admin", "secretKey": SECRET_KEY}]
        people = [
            {"name": "lake", "credentials": keys, "actions": rights},
            {"name": "admin", "credentials": maker, "actions": [*rights, "Admin"]},
        ]
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": people}))
        self.ports = self.ports or dict(zip(PORTS, free_pairs(len(PORTS)), strict=True))
        secure = []
        if self.certificate is not None:
            words = ("port.https", "cert.file", "key.file")
            values = (self.ports["tls"], *self.certificate)
            secure = [f"-s3.{word}={value}" for word, value in zip(words, values, strict=True)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(WEED), "server", f"-dir={self.folder}", "-ip=127.0.0.1",
                 "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}",
                 f"-s3.port={self.ports['s3']}", "-s3.port.iceberg=0", "-s3.port.lance=0",
                 f"-s3.localSocket={self.folder}/s3.sock", "-s3.autoCreateBucket=false", *secure,
                 f"-master.port={self.ports['master']}", "-master.telemetry=false",
                 "-master.electionTimeout=1s",
                 "-master.volumeSizeLimitMB=64", f"-volume.port={self.ports['volume']}",
                 "-volume.max=64", "-volume.preStopSeconds=0", f"-filer.port={self.ports['filer']}",
                 f"-filer.localSocket={self.folder}/filer.sock"],
                stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not (
            self._request("PUT", "/probe") in MADE and self._request("PUT", "/probe/x") in MADE
        ):
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.2)
        return self

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def bucket(self, name: str) -> str:
        """Make a bucket, and its first volume: a first write may take seconds."""
        assert self._request("PUT", f"/{name}") in MADE
        assert self._request("PUT", f"/{name}/first", b"bytes") in MADE
        self._request("DELETE", f"/{name}/first")
        return name

    def kill(self) -> None:
        """As a power cut does; in order it takes a quarter of a minute."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _request(self, method: str, path: str, body: bytes = b"") -> int:
        """Ask as its administrator, signed as AWS wants it (version 4); 0 when nobody answers."""
        host = f"127.0.0.1:{self.ports['s3']}"
        now = datetime.datetime.now(datetime.UTC)
        day, moment = f"{now:%Y%m%d}", f"{now:%Y%m%dT%H%M%SZ}"
        content = hashlib.sha256(body).hexdigest()
        named = "host;x-amz-content-sha256;x-amz-date"
        headers = f"host:{host}\nx-amz-content-sha256:{content}\nx-amz-date:{moment}\n"
        asked = "\n".join([method, path, "", headers, named, content])
        scope = f"{day}/{REGION}/s3/aws4_request"
        digest = hashlib.sha256(asked.encode()).hexdigest()
        key = f"AWS4{SECRET_KEY}".encode()
        told = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
        for part in (day, REGION, "s3", "aws4_request", told):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signed = {
            "x-amz-content-sha256": content,
            "x-amz-date": moment,
            "Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}-admin/{scope}, "
            f"SignedHeaders={named}, Signature={key.hex()}",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["s3"], timeout=10)
        try:
            connection.request(method, path, body, headers=signed)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


def write_keys(file: Path, key: str = ACCESS_KEY, secret: str = SECRET_KEY) -> None:
    """Let a file of credentials hold these, at once."""
    beside = file.with_suffix(".new")
    beside.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    beside.replace(file)


@contextlib.contextmanager
def s3_server(folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[S3Server]:
    """A server for as long as the block runs."""
    server = S3Server(folder, certificate=certificate).start()
    try:
        yield server
    finally:
        server.kill()


def free_pairs(count: int) -> list[int]:
    """Ports of which the one that is ten thousand higher is free, too."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            low = stack.enter_context(socket.socket())
            high = stack.enter_context(socket.socket())
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                high.bind(("127.0.0.1", port + 10_000))
                found.append(port)
    return found


if __name__ == "__main__":  # to look at it by hand
    with s3_server(Path(sys.argv[1])) as running:
        running.bucket("lake")
        sys.stdout.write(json.dumps({"pid": os.getpid(), **running.environment}) + "\n")
        sys.stdout.flush()
        signal.pause()
