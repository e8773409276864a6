"""Who is meant by options, a file and the environment, and is a secret never told?"""

from __future__ import annotations

import pytest

from onelog.base.errors import ConfigError
from onelog.lake.options import parse_options
from onelog.lake.s3_access import FILE, PROFILE, S3_OPTIONS, SOURCES, s3_access
from onelog.lake.storage import FAILURES, Storage, is_object_store
from onelog.spark.s3_jars import split_access
from tests.spark.lines import ROOT

ENVIRONMENT = {
    "AWS_ENDPOINT_URL": "http://env:1",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "env-key",
    "AWS_SECRET_ACCESS_KEY": "env-secret",
    "AWS_SESSION_TOKEN": "env-token",
}
IN_FILE = """
[default]
aws_access_key_id = file-key
aws_secret_access_key = file%secret
region = eu-north-1
[other]
endpoint_url = https://other
"""


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "credentials"
    made.write_text(IN_FILE)
    return str(made)


def test_options_come_before_the_file_and_the_file_before_the_environment(file):
    found = s3_access({FILE: file, "s3.region": "told"}, ENVIRONMENT)
    assert found == {
        "s3.region": "told",
        "s3.access-key-id": "file-key",
        "s3.secret-access-key": "file%secret",
        "s3.endpoint": "http://env:1",
    }


def test_key_secret_and_token_come_from_one_place():
    told = {"s3.access-key-id": "k", "s3.secret-access-key": "s"}
    found = s3_access(told, ENVIRONMENT)
    assert "s3.session-token" not in found
    assert (found["s3.access-key-id"], found["s3.secret-access-key"]) == ("k", "s")


def test_a_part_of_the_file_may_say_where_the_store_is(file):
    found = s3_access({FILE: file, PROFILE: "other"}, {})
    assert found == {"s3.endpoint": "https://other", "s3.region": "us-east-1"}


def test_without_a_word_nothing_is_known():
    assert s3_access({}, {}) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("aws_secret_access_key = hush", r"not in the form of ~/\.aws/credentials"),
        ("[default]\nhush\n", r"not in the form of ~/\.aws/credentials"),
        ("[mine]\naws_secret_access_key = hush\n", r"has no part \[default\], only mine"),
        ("[default]\naws_secret_access_key = hush\n", "belong together"),
    ],
)
def test_a_file_that_is_wrong_is_told_without_what_stands_in_it(tmp_path, text, says):
    file = tmp_path / "credentials"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as told:
        s3_access({FILE: str(file)}, {})
    assert "hush" not in str(told.value)


def test_a_file_is_named_by_its_whole_path():
    with pytest.raises(ConfigError, match="absolute path"):
        s3_access({FILE: "keys.ini"}, {})


def test_hadoop_is_told_the_same_and_its_keys_are_no_settings_of_the_jvm():
    config = {"spark.x": "1", "s3.endpoint": "http://lake:8333"}
    rest, told = split_access(config, ENVIRONMENT, wanted=True)
    assert rest == {"spark.x": "1"}
    assert told == {
        "fs.s3a.endpoint": "http://lake:8333",
        "fs.s3a.endpoint.region": "eu-west-1",
        "fs.s3a.access.key": "env-key",
        "fs.s3a.secret.key": "env-secret",
        "fs.s3a.session.token": "env-token",
        "fs.s3a.path.style.access": "true",
    }
    assert split_access({"spark.x": "1"}, ENVIRONMENT, wanted=False) == ({"spark.x": "1"}, {})
    with pytest.raises(ConfigError, match=r"s3\.endpoint.*jars"):
        split_access(config, ENVIRONMENT, wanted=False)


def test_what_a_catalog_lends_comes_before_what_was_given():
    given = Storage((("s3.access-key-id", "mine"), ("s3.endpoint", "http://lake")))
    lent = given.joined({"s3.access-key-id": "lent", "s3.session-token": "t", "warehouse": "w"})
    assert dict(lent.options) == {
        "s3.access-key-id": "lent",
        "s3.endpoint": "http://lake",
        "s3.session-token": "t",
    }


def test_a_table_on_a_disk_does_not_care_what_the_environment_says(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no-address")
    assert parse_options({"tableFormat": "delta", "table": "/srv/t"}).storage == Storage()
    with pytest.raises(ConfigError, match="begins with http"):
        parse_options({"tableFormat": "delta", "table": "s3://lake/t"})
    rest = {"tableFormat": "iceberg", "table": "a.b", "catalog": "https://lake.example"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:1")
    assert dict(parse_options(rest).storage.options)["s3.endpoint"] == "http://store:1"


def test_every_option_stands_in_the_page():
    page = (ROOT / "docs" / "reference" / "spark-tables.md").read_text()
    for name in (*S3_OPTIONS, *SOURCES):
        assert f"`{name}`" in page


def test_what_is_no_answer_of_a_store_stays_as_it_is():
    with pytest.raises(ZeroDivisionError), Storage().explained("s3://lake/t"):
        raise ZeroDivisionError("of the code, not of the store")
    assert len({failure.line for failure in FAILURES}) == len(FAILURES)


def test_which_addresses_spark_needs_a_jar_for():
    assert is_object_store("s3://lake/t")
    assert is_object_store("s3a://lake/t")
    assert not is_object_store("/srv/s3/t")
    assert not is_object_store("file:///srv/t")
