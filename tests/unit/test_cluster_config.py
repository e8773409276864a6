"""Are the keys of the cluster checked, with words that say what to do?"""

from __future__ import annotations

from pathlib import Path

import pytest

from onelog.base.errors import ConfigError
from onelog.cluster.etcd_child import ChildSettings, command_line, find_binary
from onelog.cluster_assembly import child_settings, etcd_settings, init_cluster
from onelog.config import load

ON = 'cluster.mode="etcd"'
ENDPOINT = 'cluster.etcd.endpoints=["http://127.0.0.1:2379"]'


def problems(*chosen: str) -> str:
    with pytest.raises(ConfigError) as found:
        load(None, {}, chosen)
    return str(found.value)


def test_the_default_is_one_process_without_etcd() -> None:
    config = load(None, {}, ()).config
    assert config.cluster.mode == "single"
    assert not config.cluster.etcd.spawn


@pytest.mark.parametrize("mode", [(), (ON, ENDPOINT)], ids=["single", "etcd"])
@pytest.mark.parametrize(
    ("roles", "missing"),
    [
        ('["engine"]', "broker"),
        ('["broker"]', "engine"),
        ('["meta", "engine"]', "broker"),
        ('["meta", "broker"]', "engine"),
    ],
)
def test_a_node_that_keeps_data_without_serving_it_or_the_reverse_is_refused_with_a_cure(
    roles: str, missing: str, mode: tuple[str, ...]
) -> None:
    said = problems(*mode, f"node.roles={roles}")
    assert f"node.roles lacks {missing}" in said
    assert "Write engine and broker, or ['meta']" in said


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ((ENDPOINT,), "cluster.etcd.endpoints has no effect with cluster.mode = 'single'"),
        (("cluster.etcd.spawn=true",), "cluster.etcd.spawn has no effect"),
        ((ON,), "cluster.etcd.endpoints is empty"),
        ((ON, 'cluster.etcd.endpoints=["10.0.0.1:2379"]'), "write http://HOST:PORT"),
        ((ON, 'cluster.etcd.endpoints=["http://h"]'), "write http://HOST:PORT"),
        ((ON, 'cluster.etcd.endpoints=["http://h:1/path"]'), "write http://HOST:PORT"),
        ((ON, ENDPOINT, "cluster.etcd.user=root"), "password_file is missing"),
        ((ON, ENDPOINT, "cluster.etcd.password_file=f"), "cluster.etcd.user is missing"),
        ((ON, ENDPOINT, "cluster.etcd.cert_file=f"), "cluster.etcd.key_file is missing"),
        (
            (
                ON,
                'cluster.etcd.endpoints=["http://10.0.0.1:2379"]',
                "cluster.etcd.user=root",
                "cluster.etcd.password_file=f",
            ),
            "plain text",
        ),
        ((ON, ENDPOINT, 'node.roles=["engine"]'), "node.roles lacks broker"),
        ((ON, ENDPOINT, 'node.roles=["meta"]'), "only runs a member of etcd"),
        (
            (ON, "cluster.etcd.spawn=true", 'node.roles=["engine", "broker"]'),
            "node.roles lacks meta",
        ),
        ((ON, "cluster.etcd.spawn=true", 'cluster.etcd.initial=["x"]'), "'x' is no member"),
        (
            (ON, "cluster.etcd.spawn=true", 'cluster.etcd.initial=["7=http://127.0.0.1:1"]'),
            "no member for this node (node.id = 0)",
        ),
        (
            (
                ON,
                "cluster.etcd.spawn=true",
                'cluster.etcd.initial=["0=http://127.0.0.1:1", "1=http://127.0.0.1:2"]',
            ),
            "use an odd number",
        ),
        (
            (ON, "cluster.etcd.spawn=true", 'cluster.etcd.listen="http://10.0.0.1:2379"'),
            "would open etcd to other machines",
        ),
        (
            (ON, "cluster.etcd.spawn=true", 'cluster.etcd.listen="https://10.0.0.1:2379"'),
            "needs cluster.etcd.cert_file",
        ),
        ((ON, ENDPOINT, 'cluster.name="a/b"'), "cluster.name"),
        (
            (ON, ENDPOINT, 'metadata.url="store"', 'store.url="file:///x"'),
            "name two places for the metadata",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_words(chosen: tuple[str, ...], words: str) -> None:
    assert words in problems(*chosen)


def test_the_members_of_a_spawned_etcd_have_the_names_of_their_nodes(tmp_path: Path) -> None:
    config = load(
        None,
        {},
        (
            ON,
            "cluster.etcd.spawn=true",
            "node.id=2",
            f'data_dir="{tmp_path}"',
            "cluster.name=plant",
            'cluster.etcd.initial=["1=http://127.0.0.1:1", "2=http://127.0.0.1:2",'
            ' "3=http://127.0.0.1:3"]',
        ),
    ).config
    line = command_line(child_settings(config), "/usr/bin/etcd", "3.4.23")
    pairs = dict(zip(line[1::2], line[2::2], strict=False))
    assert pairs["--name"] == "node-2"
    assert pairs["--data-dir"] == str(tmp_path / "etcd")
    assert pairs["--listen-peer-urls"] == "http://127.0.0.1:2"
    assert pairs["--initial-cluster"] == (
        "node-1=http://127.0.0.1:1,node-2=http://127.0.0.1:2,node-3=http://127.0.0.1:3"
    )
    assert pairs["--initial-cluster-token"] == "onelog-plant"
    assert etcd_settings(config).prefix == "/onelog/plant/"
    assert etcd_settings(config).progress_s == 2.0


def test_a_spawned_etcd_with_tls_asks_clients_and_members_for_certificates(tmp_path: Path) -> None:
    settings = ChildSettings(
        binary="etcd",
        name="node-1",
        token="t",
        data_dir=tmp_path,
        listen="https://127.0.0.1:1",
        peer="https://127.0.0.1:2",
        initial=(("node-1", "https://127.0.0.1:2"),),
        cert_file="c",
        key_file="k",
        ca_file="a",
    )
    line = command_line(settings, "etcd", "3.6.1")
    for flag in ("--client-cert-auth", "--peer-client-cert-auth", "--peer-cert-file"):
        assert flag in line
    assert "--watch-progress-notify-interval" in line  # no experiment any more


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ConfigError, match="etcd-server"):
        find_binary("no-such-etcd")


def test_a_password_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    chosen = (ON, ENDPOINT, "cluster.etcd.user=u", f"cluster.etcd.password_file={tmp_path}/no")
    with pytest.raises(ConfigError, match="password_file"):
        etcd_settings(load(None, {}, chosen).config)


def test_init_says_what_it_needs(tmp_path: Path) -> None:
    data = f'data_dir="{tmp_path}"'
    with pytest.raises(ConfigError, match=r"cluster\.mode"):
        init_cluster(load(None, {}, (data,)).config)
    with pytest.raises(Exception, match="nothing has to be moved"):
        init_cluster(load(None, {}, (data, ON, ENDPOINT)).config)
