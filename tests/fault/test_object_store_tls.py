"""Is a store that is reached by TLS trusted only as it should be? On SeaweedFS with an authority
of its own."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
import trustme

from onelog.base.errors import ColdUnavailable
from onelog.base.ids import Offset
from onelog.objects.probe import probe
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from tests.batches import append, make_batch, read_all
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.s3_server import S3Server, available, s3_server
from tests.support.tiers import KEY, Owner

pytest.importorskip("obstore")
pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is not installed")

DEADLINE_MS = 20_000


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def s3(tmp_path_factory, authority):
    folder = tmp_path_factory.mktemp("s3")
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    with s3_server(folder / "data", (folder / "cert.pem", folder / "key.pem")) as server:
        for name in ("objects", "lake-iceberg", "lake-delta"):
            server.bucket(name)
        yield server


@pytest.fixture
def roots(tmp_path: Path, authority: trustme.CA) -> Path:
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(file)
    return file


def opened(server: S3Server, **changed: str) -> ObjectStore:
    options = {**server.store_options, "aws_endpoint": server.tls_endpoint, **changed}
    url = f"s3://objects/{uuid.uuid4()}"
    return open_store(StoreSettings(url=url, options=options, deadline_ms=DEADLINE_MS))


@pytest.mark.parametrize("form", ["file", "text"])
def test_a_store_whose_authority_is_named_is_trusted_and_keeps_its_promises(s3, roots, form):
    told = str(roots) if form == "file" else roots.read_text()
    store = opened(s3, root_certificate=told)
    assert probe(store).create_ms > 0
    body = bytes(range(256)) * 40_000  # unsigned: TLS protects it
    store.put("d/large", [body])
    assert store.get("d/large") == body


def test_a_store_whose_authority_is_unknown_is_refused_in_words(s3):
    store = opened(s3)
    began = time.monotonic()
    with pytest.raises(ColdUnavailable, match=r"certificate of https://localhost.*UnknownIssuer"):
        store.create("n/1", [b"bulk"])
    with pytest.raises(ColdUnavailable, match="set root_certificate in store") as failed:
        store.get("n/1")
    assert failed.value.reason == "refused"
    assert time.monotonic() - began < DEADLINE_MS / 1000


def test_a_certificate_for_another_name_is_refused_in_words(s3, roots):
    other = s3.tls_endpoint.replace("localhost", "127.0.0.1")
    store = opened(s3, root_certificate=str(roots), aws_endpoint=other)
    with pytest.raises(ColdUnavailable, match=r"NotValidForName.*has the name"):
        store.create("n/1", [b"bulk"])


def test_an_authority_that_is_replaced_in_its_file_counts_without_a_restart(s3, roots):
    right = roots.read_text()
    trustme.CA().cert_pem.write_to_path(roots)
    store = opened(s3, root_certificate=str(roots))
    with pytest.raises(ColdUnavailable, match="UnknownIssuer"):
        store.create("n/1", [b"bulk"])
    roots.write_text(right)
    store.create("n/1", [b"bulk"])
    assert store.get("n/1") == b"bulk"


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), ("nothing", "holds no certificate")]
)
def test_a_file_of_authorities_that_is_none_is_named(s3, tmp_path, content, words):
    file = tmp_path / "roots.pem"
    if content is not None:
        file.write_text(content)
    store = opened(s3, root_certificate=str(file))
    with pytest.raises(ColdUnavailable, match=rf"root_certificate.*roots\.pem.*{words}"):
        store.get("n/1")


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_history_becomes_a_table_behind_an_authority_of_its_own(s3, roots, tmp_path, table_format):
    words = {
        **s3.store_options,
        "aws_endpoint": s3.tls_endpoint,
        "root_certificate": str(roots),
    }
    url = f"s3://lake-{table_format}/{tmp_path.name}"
    site = LakeSite(tmp_path, table_format, url, words, s3.options)
    try:
        log = site.engine().open(KEY, table_settings(table_format))
        for _ in range(6):
            append(log, make_batch(log.end_offset, 10, size=400))
        log.roll()
        log.sync()
        before = read_all(log)
        assert log.tier.upload(log.end_offset, Owner()).end == 60
        log.tier.trim_local(Offset(60))
        assert site.offsets() == list(range(60))
        assert read_all(log) == before
    finally:
        site.close()
