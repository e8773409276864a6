"""What is said of a store is in the words of its cloud."""

from __future__ import annotations

import pytest

from onelog.base.errors import ColdUnavailable
from onelog.lake.storage_now import StorageNow
from onelog.objects.clouds import endpoint_of
from onelog.objects.failures import explained
from onelog.objects.shown import shown_words

TOKEN = (
    "Generic error: Error performing token request: Error performing GET"
    " http://169.254.169.254/metadata/token: status code: 403 Forbidden"
)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://bucket/x", "AWS_ACCESS_KEY_ID"),
        ("az://bucket/x", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("https://name.blob.core.windows.net/bucket", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("gs://bucket/x", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_credentials_that_are_missing_are_named_as_the_cloud_names_them(url, words):
    told = explained(url, "", "t/a", OSError(TOKEN))
    assert isinstance(told, ColdUnavailable) and told.reason == "refused"
    assert "credentials for the store are missing" in str(told) and words in str(told)


def test_the_address_of_another_cloud_in_the_environment_says_nothing(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert endpoint_of("s3://bucket/x", {}) == "http://127.0.0.1:1"
    assert endpoint_of("az://bucket/x", {}) == endpoint_of("gs://bucket/x", {}) == ""
    assert endpoint_of("az://bucket/x", {"endpoint": "http://127.0.0.1:2"}) == "http://127.0.0.1:2"


def test_clients_are_told_an_address_in_the_words_of_its_cloud():
    for url, word in (
        ("s3://b/x", "aws_endpoint"),
        ("az://b/x", "azure_storage_endpoint"),
        ("gs://b/x", "google_base_url"),
    ):
        given = {"endpoint" if word != "google_base_url" else "base_url": "http://127.0.0.1:2"}
        assert shown_words(url, given).options == {word: "http://127.0.0.1:2"}


def test_tables_on_another_cloud_are_reached_with_the_words_of_the_store(tmp_path):
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----")
    given = {
        "azure_storage_account_name": "lake",
        "azure_endpoint": "http://127.0.0.1:2",
        "root_certificate": str(authority),
    }
    found = StorageNow("az://b/x", given)()
    words = dict(found.words or ())
    assert words == {**given, "root_certificate": authority.read_text(), "allow_http": "true"}
    assert found.for_delta()["azure_endpoint"] == "http://127.0.0.1:2"
    assert "root_certificate" not in found.for_delta()
    assert StorageNow("file:///srv", {})().words is None
