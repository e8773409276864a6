"""Is the ResourceManager of a YARN found in its configuration, and told when it is away?"""

from __future__ import annotations

import socket

import pytest

from onelog.base.errors import Unavailable
from onelog.spark.masters import Kind, find_master
from onelog.spark.yarn import resource_managers

PREFIX = "yarn.resourcemanager."


def write(folder, **settings: str) -> None:
    rows = [
        f"<property>\n <name>{PREFIX}{name.replace('__', '.').replace('_', '-')}</name>"
        f"<value> {text} </value></property>"
        for name, text in settings.items()
    ]
    (folder / "yarn-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"hostname": "rm"}, [("rm", 8032)]),
        ({"address": "rm:9000"}, [("rm", 9000)]),
        ({"hostname": "rm", "address": "${yarn.resourcemanager.hostname}:9000"}, [("rm", 9000)]),
        (
            {"ha__rm_ids": "a, b", "hostname__a": "one", "address__b": "two:1"},
            [("one", 8032), ("two", 1)],
        ),
        ({"address": "${elsewhere}:9000"}, []),
        ({"address": "rm"}, []),
        ({}, []),
    ],
)
def test_hosts_and_ports_are_those_of_the_file(tmp_path, settings, found):
    write(tmp_path, **settings)
    assert resource_managers(tmp_path) == found


def test_what_is_no_xml_or_not_there_says_nothing(tmp_path):
    assert resource_managers(tmp_path) == []
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    assert resource_managers(tmp_path) == []


def test_a_yarn_that_is_away_is_told_at_once(tmp_path):
    environment = {"HADOOP_CONF_DIR": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        write(tmp_path, address=f"127.0.0.1:{port}")
        assert find_master("yarn", environment) is Kind.YARN
    with pytest.raises(Unavailable, match=rf"master yarn: nobody answers there \(127.0.0.1:{port}"):
        find_master("yarn", environment)
