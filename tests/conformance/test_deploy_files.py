"""The files of `deploy/`: what they name exists, they set known keys, and their commands run.

No container runs here. The commands in the files (health checks, probes, the script that makes
users) run against a real broker; systemd checks its unit where it is installed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from onelog.config import load
from onelog.config.ports import DEFAULT_PORTS
from tests.conformance.mqtt_brokers import DEADLINE_S, ROOT, Onelog, environment

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
IMAGE_CONFIG = DEPLOY / "docker" / "onelog.toml"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
CLUSTER = yaml.safe_load((DEPLOY / "compose" / "cluster.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "onelog.yaml").read_text()))
POD = next(row for row in KUBERNETES if row["kind"] == "StatefulSet")["spec"]["template"]["spec"]
UNIT = (DEPLOY / "systemd" / "onelog.service").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    found = Onelog(tmp_path_factory.mktemp("deploy")).start()
    yield found
    assert found.stop() == 0


def listens(config) -> dict[str, str]:
    """The listeners that start, and where."""
    rows = {name: getattr(config.listeners, name) for name in DEFAULT_PORTS}
    return {name: f"{row.host}:{row.port}" for name, row in rows.items() if row.enabled}


OPEN = {"mqtt": "0.0.0.0:1883", "kafka": "0.0.0.0:9092", "amqp": "0.0.0.0:5672"}
HERE = {"admin": "127.0.0.1:8080"}


# -- the image


def test_the_image_listens_on_what_it_exposes_and_lets_nobody_in_without_a_user():
    config = load(IMAGE_CONFIG, {}).config
    assert listens(config) == OPEN | HERE
    assert config.security.anonymous == "loopback"
    assert re.search(r"^VOLUME (.*)$", DOCKERFILE, re.M).group(1) == config.data_dir
    exposed = re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.M).group(1).split()
    assert exposed == [address.partition(":")[2] for address in OPEN.values()]


def test_the_image_is_built_from_files_that_its_context_has():
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = [
        word
        for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.M)
        for word in line.split()[:-1]
    ]
    assert set(copied) == kept
    assert all((ROOT / name).exists() for name in kept)
    # Everything that the sdist is built from is there.
    tool = (ROOT / "tools" / "package.py").read_text()
    assert (
        set(re.search(r"^FILES = \((.*)\)$", tool, re.M).group(1).replace('"', "").split(", "))
        <= kept
    )
    # A module that this machine compiled is never part of an image for another one.
    assert any(fnmatch("src/onelog/kernel/_native/x.so", row) for row in ignored if row[:1] != "!")


def test_the_image_runs_as_nobody_s_root_and_the_pod_as_the_same_user():
    user, group = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.M).groups()
    assert f"--uid {user} --gid onelog" in DOCKERFILE
    assert f"groupadd --gid {group} onelog" in DOCKERFILE
    last = DOCKERFILE.rindex("USER ")
    assert "RUN " not in DOCKERFILE[last:]
    context = POD["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
    assert context["runAsNonRoot"] is True


def probes() -> dict[str, list[str]]:
    broker = POD["containers"][0]
    found = {name: broker[f"{name}Probe"]["exec"]["command"] for name in ("liveness", "readiness")}
    found["startup"] = broker["startupProbe"]["exec"]["command"]
    found["image"] = json.loads(re.search(r"^ +CMD (\[.*\])$", DOCKERFILE, re.M).group(1))
    return found


@pytest.mark.parametrize("name", ["image", "liveness", "readiness", "startup"])
def test_a_probe_passes_while_the_broker_answers_and_fails_when_it_is_gone(server, name):
    program, option, code = probes()[name]
    assert (program, option) == ("python", "-c")
    admin = f":{DEFAULT_PORTS['admin']}/"
    assert admin in code

    def ends_with(port: int) -> int:
        there = code.replace(admin, f":{port}/")
        return subprocess.run(
            [sys.executable, "-c", there], capture_output=True, timeout=DEADLINE_S, check=False
        ).returncode

    assert ends_with(server.ports["admin"]) == 0
    assert ends_with(1) != 0


# -- compose


def test_compose_mounts_files_that_exist_and_grafana_finds_what_is_mounted():
    rows = [row for service in COMPOSE["services"].values() for row in service.get("volumes", [])]
    targets = {}
    for source, target in (row.split(":")[:2] for row in rows):
        if source.startswith("."):
            path = (DEPLOY / "compose" / source).resolve()
            assert path.exists(), source
            targets[target] = path
        else:
            assert source in COMPOSE["volumes"]
    providers = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/onelog.yml").read_text())[
        "providers"
    ]
    folder = providers[0]["options"]["path"]
    assert (targets[folder] / "onelog.json").exists()
    home = COMPOSE["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert home == f"{folder}/onelog.json"


def test_compose_sets_configuration_keys_and_publishes_the_ports_of_clients():
    service = COMPOSE["services"]["onelog"]
    config = load(IMAGE_CONFIG, {k: str(v) for k, v in service["environment"].items()}).config
    assert config.listeners.kafka.advertised.endswith(":9092")
    to_everybody = [row for row in service["ports"] if row.count(":") == 1]
    assert to_everybody == [f"{port}:{port}" for port in (1883, 9092, 5672)]
    # Everything that has no login of its own is for this machine alone.
    others = [row for one in COMPOSE["services"].values() for row in one.get("ports", [])]
    assert all(row.startswith("127.0.0.1:") for row in others if row not in to_everybody)


def test_the_three_nodes_of_compose_reach_etcd_and_each_other_and_clients_reach_each_of_them():
    places = set()
    for number in (1, 2, 3):
        service = CLUSTER["services"][f"node{number}"]
        said = {
            key: value.replace("${ONELOG_HOST:-localhost}", "localhost")
            for key, value in service["environment"].items()
        }
        config = load(IMAGE_CONFIG, said).config
        assert (config.node.id, config.cluster.mode) == (number, "etcd")
        assert config.cluster.etcd.endpoints == ("http://etcd:2379",)
        inner = config.listeners.inner
        assert f"{inner.host}:{inner.port}" == "0.0.0.0:9644"
        assert inner.advertised == f"node{number}:9644"
        assert inner.secret_file == f"/run/secrets/{service['secrets'][0]}"
        assert service["secrets"][0] in CLUSTER["secrets"]
        published = dict(row.split(":")[::-1] for row in service["ports"])
        for name, address in OPEN.items():
            there = getattr(config.listeners, name).advertised
            assert there == f"localhost:{published.pop(address.partition(':')[2])}"
            places.add(there)
        assert published == {}
        volume, _, target = service["volumes"][0].partition(":")
        assert volume in CLUSTER["volumes"]
        assert target == config.data_dir
    assert len(places) == 9


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_the_etcd_of_compose_is_started_with_flags_that_it_has():
    service = CLUSTER["services"]["etcd"]
    assert "ports" not in service
    program, *flags = service["command"]
    done = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    told = (done.stdout + done.stderr).split()
    assert {flag.partition("=")[0] for flag in flags} <= set(told)
    data_dir = next(flag for flag in flags if flag.startswith("--data-dir")).partition("=")[2]
    assert service["volumes"] == [f"etcd:{data_dir}"]


def test_prometheus_reads_the_admin_listener_from_the_broker_s_own_network():
    assert COMPOSE["services"]["prometheus"]["network_mode"] == "service:onelog"
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/onelog.yml").read_text())
    assert source["datasources"][0]["url"] == "http://onelog:9090"


# -- Kubernetes


def test_the_pod_has_the_configuration_of_the_image_and_sends_kafka_clients_to_its_own_name():
    mapped = next(row for row in KUBERNETES if row["kind"] == "ConfigMap")["data"]["onelog.toml"]
    assert tomllib.loads(mapped) == tomllib.loads(IMAGE_CONFIG.read_text())
    rows = {row["name"]: row.get("value") for row in POD["containers"][0]["env"]}
    ours = {name: text for name, text in rows.items() if name.startswith("ONELOG_")}
    assert load(IMAGE_CONFIG, ours).config.listeners.kafka.advertised == ours.popitem()[1]
    ports = {row["name"]: row["containerPort"] for row in POD["containers"][0]["ports"]}
    assert ports == {name: DEFAULT_PORTS[name] for name in OPEN}
    services = {row["metadata"]["name"]: row for row in KUBERNETES if row["kind"] == "Service"}
    assert {row["port"] for row in services["onelog"]["spec"]["ports"]} == set(ports.values())
    assert services["onelog-node"]["spec"]["clusterIP"] == "None"


def test_the_script_of_the_pod_makes_the_users_of_the_secret_and_renews_their_passwords(tmp_path):
    script = POD["initContainers"][0]["args"][0]
    program = tmp_path / "onelog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m onelog "$@"\n')
    program.chmod(0o755)
    users = tmp_path / "users"
    users.mkdir()
    where = environment() | {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "ONELOG_DATA_DIR": str(tmp_path / "data"),
    }

    def start() -> str:
        done = subprocess.run(
            ["/bin/sh", "-euc", script.replace("/users/", f"{users}/")],
            cwd=tmp_path, env=where, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    (users / "alice").write_text("the first secret")
    assert "added user alice" in start()
    (users / "alice").write_text("another secret")
    (users / "alic.").write_text("a name that is no pattern")
    again = start()
    assert "added user alic." in again
    assert "added user alice" not in again


# -- systemd


def test_the_unit_sets_configuration_keys_and_leaves_the_process_its_data_directory():
    values = dict(re.findall(r"^([A-Z]\w+)=(.*)$", UNIT, re.M))
    name, _, folder = values["Environment"].partition("=")
    assert load(IMAGE_CONFIG, {name: folder}).config.data_dir == folder
    assert folder == f"/var/lib/{values['StateDirectory']}" == values["WorkingDirectory"]
    sysusers = (DEPLOY / "systemd" / "onelog.sysusers").read_text()
    assert f"\nu {values['User']} " in sysusers


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_every_line_of_the_unit(tmp_path):
    unit = tmp_path / "onelog.service"
    unit.write_text(UNIT.replace("/opt/onelog/bin/onelog", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    # It also complains about units of this machine that have nothing to do with ours.
    assert not [line for line in done.stderr.splitlines() if "onelog" in line]


def test_the_files_name_no_path_that_the_guide_does_not_have():
    guide = (ROOT / "docs" / "guide" / "deploy.md").read_text()
    for path in sorted(Path(DEPLOY).rglob("*")):
        if path.is_file() and path.name != "Dockerfile.dockerignore":
            assert path.parent.relative_to(ROOT).parts[1] in guide, path
