"""Is a master that is none, or is not there, told in a line and at once?"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from onelog.base.errors import ConfigError, Unavailable
from onelog.spark.masters import Kind, find_master, kind_of, shown


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def nobody() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        ("local", Kind.LOCAL),
        ("local[2]", Kind.LOCAL),
        ("local[*]", Kind.LOCAL),
        ("local[*, 3]", Kind.LOCAL),
        ("local-cluster[2,1,1024]", Kind.LOCAL),
        ("spark://a:7077,b:7077", Kind.STANDALONE),
        ("k8s://https://a", Kind.KUBERNETES),
        ("yarn", Kind.YARN),
        ("sc://a:15002/;token=x", Kind.CONNECT),
    ],
)
def test_what_a_master_is_stands_in_its_first_letters(master, kind):
    assert kind_of(master) is kind


@pytest.mark.parametrize("master", ["", "nonsense", "local[x]", "localhost", "yarns", "http://a"])
def test_what_is_no_master_is_told_with_those_that_are(master):
    with pytest.raises(ConfigError, match=r"is not a master: use local\[\*\], spark://"):
        find_master(master)


@pytest.mark.parametrize("master", ["spark://a", "sc://", "spark://a:b", "k8s://", "sc://a:99999"])
def test_a_master_without_host_and_port_is_told(master):
    with pytest.raises(ConfigError, match="has no host and port"):
        find_master(master)


@pytest.mark.parametrize("form", ["spark://{}", "k8s://https://{}", "k8s://{}", "sc://{}/;x=y"])
def test_a_master_that_listens_is_found_and_one_that_does_not_is_told(form, port, nobody):
    find_master(form.format(f"127.0.0.1:{port}"))
    with pytest.raises(Unavailable, match=rf"nobody answers there \(127.0.0.1:{nobody}: Conn"):
        find_master(form.format(f"127.0.0.1:{nobody}"))


def test_of_several_masters_one_is_enough(port, nobody):
    find_master(f"spark://127.0.0.1:{nobody},127.0.0.1:{port}")


def test_a_token_is_not_told(nobody):
    with pytest.raises(Unavailable) as failed:
        find_master(f"sc://localhost:{nobody}/;token=secret")
    assert "secret" not in str(failed.value)
    assert shown("sc://a:1/;token=secret") == "sc://a:1/"


def test_yarn_needs_the_configuration_of_its_cluster(tmp_path):
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR or YARN_CONF_DIR"):
        find_master("yarn", {})
    with pytest.raises(ConfigError, match=r"YARN_CONF_DIR is .*gone, which is not a directory"):
        find_master("yarn", {"YARN_CONF_DIR": str(tmp_path / "gone")})
    assert find_master("yarn", {"HADOOP_CONF_DIR": str(tmp_path)}) is Kind.YARN
