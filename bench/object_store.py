"""The store of `bench-object`: SeaweedFS on loopback, a bucket, and pieces of a log in it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from tests.batches import make_batch
from tests.support.pieces import put_piece
from tests.support.s3_server import S3Server, s3_server

BUCKET = "bench"


@contextlib.contextmanager
def bench_server(folder: Path) -> Iterator[S3Server]:
    """A server with the bucket."""
    with s3_server(folder) as server:
        server.bucket(BUCKET)
        yield server


def settings_of(server: S3Server) -> StoreSettings:
    """A prefix of its own."""
    return StoreSettings(url=f"s3://{BUCKET}/{uuid.uuid4().hex}", options=server.store_options)


def store_of(server: S3Server) -> ObjectStore:
    """A store of its own."""
    return open_store(settings_of(server))


def batches(base: int, count: int, *, records: int = 16, size: int = 1000) -> list[bytes]:
    """Batches of about 16 KB, as clients with the default settings send them."""
    return [make_batch(base + at * records, records, size=size) for at in range(count)]


def put_log(store: ObjectStore, name: str, made: Sequence[bytes], base: int, end: int) -> Row:
    """A piece without a topic index."""
    return put_piece(store, name, base, end, made, index_topics=False)


def moved(batch: bytes, base: int) -> bytes:
    """The same batch at another offset, which its CRC does not cover."""
    return base.to_bytes(8, "big") + batch[8:]
