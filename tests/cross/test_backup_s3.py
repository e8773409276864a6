"""Backups in a real S3 server: made, used again, checked, restored; and what errors say."""

from __future__ import annotations

import pytest

from onelog.backup.marks import mark_name
from onelog.backup.repository import Repository, now_ms
from onelog.backup.stores import open_backup_store
from onelog.base.errors import Conflict, NotFound, OnelogError, StorageError
from tests.support.backups import back_up, restore_into, until
from tests.support.brokers import history, running, say
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, available, s3_server

pytestmark = [
    pytest.mark.skipif(not available(), reason="SeaweedFS is not installed"),
    pytest.mark.skipif(pytest.importorskip("obstore") is None, reason="obstore is not installed"),
]


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.bucket("backups")
        yield server


@pytest.fixture
def options(s3):
    return {
        "aws_endpoint": s3.endpoint,
        "aws_region": REGION,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
    }


async def test_a_backup_in_a_bucket_is_used_again_checked_and_restored(tmp_path, options):
    url = "s3://backups/one/broker"
    async with running(tmp_path / "data") as broker:
        await say(broker, "t", *("x" * 1000 for _ in range(3000)))
        first = await back_up(broker, url, **options)
        assert first.state == "done", first.message
        second = await back_up(broker, url, **options)
        assert second.state == "done", second.message
        assert second.new_bytes < first.new_bytes / 2
        expected = await history(broker, "#")
    repository = Repository(open_backup_store(url, options), url)
    assert repository.ids() == sorted([first.id, second.id])
    manifests = [repository.load(name) for name in repository.ids()]
    assert not repository.verify(manifests).problems
    restore_into(tmp_path / "again", url, **options)
    async with running(tmp_path / "again") as broker:
        assert await history(broker, "#") == expected
    name = max(manifests[1].objects().items(), key=lambda row: row[1])[0]
    repository.store.put(name, b"damaged")
    assert repository.verify(manifests).problems
    with pytest.raises(StorageError, match="damaged"):
        restore_into(tmp_path / "never", url, **options)
    repository.store.delete([name])
    with pytest.raises(StorageError, match="missing"):
        restore_into(tmp_path / "never2", url, **options)


async def test_nothing_in_a_bucket_is_pruned_while_a_backup_runs(tmp_path, options):
    url = "s3://backups/four"
    repository = Repository(open_backup_store(url, options), url)
    async with running(tmp_path / "data") as broker:
        await say(broker, "t", *("x" * 1000 for _ in range(300)))
        assert (await back_up(broker, url, **options)).state == "done"
        assert repository.prune(1, None, now_ms()).backups == ()
        run = broker.backups.start(url, options, 1)
        name = mark_name(run.id)
        await until(lambda: name in {row.name for row in repository.store.list("running")})
        with pytest.raises(Conflict, match=f"{run.id} is under way"):
            repository.prune(1, None, now_ms())
        repository.store.touch(name)
        assert (await broker.backups.cancel(run.id)).state == "cancelled"
    with pytest.raises(NotFound):
        repository.store.touch(name)
    assert not list(repository.store.list("running"))
    assert repository.prune(1, None, now_ms()).backups == ()


async def test_a_bucket_that_refuses_or_is_missing_says_what_to_do(tmp_path, options):
    async with running(tmp_path / "data") as broker:
        bad = options | {"aws_secret_access_key": "wrong"}
        run = await back_up(broker, "s3://backups/two", **bad)
        assert run.state == "failed"
        assert "AWS_SECRET_ACCESS_KEY" in run.message
        run = await back_up(broker, "s3://no-such-bucket/x", **options)
        assert run.state == "failed"
        assert "no-such-bucket" in run.message
    store = open_backup_store("s3://backups/three", options)
    with pytest.raises(NotFound):
        store.get("objects/00/none")
    with pytest.raises(OnelogError):
        open_backup_store("s3://backups/x", {"no_such_option": "1"})
