"""The files of `deploy/`, judged by the tools and schemas of their readers: hadolint, Kubernetes,
Helm and Compose.

Helm has no package of Python or Debian: `tools/provision … helm` builds it where Go is; without it
its tests are skipped, and the objects without Helm are checked all the same.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from onelog.config import load
from tests.conformance.mqtt_brokers import DEADLINE_S, ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "onelog"
OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "onelog.yaml").read_text()))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
KUBERNETES = ("1.29", "1.32", "1.35")
OF_CLUSTER = ("--kube-version", "1.32.0")
"""The version of the cluster that Helm cannot ask here."""


def find_helm() -> str | None:
    own = ROOT / "build" / "helm" / "helm"
    return shutil.which("helm") or (str(own) if own.exists() else None)


needs_helm = pytest.mark.skipif(find_helm() is None, reason="no Helm here")


def validate(row: dict[str, Any], version: str) -> None:
    """Raise if an object is none of this version of Kubernetes, or has a key that it does not
    know."""
    kubernetes_validate.validate(row, version, strict=True)


def helm(*words: str, ok: bool = True) -> str:
    done = subprocess.run(
        [str(find_helm()), *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    return done.stdout + done.stderr


def rendered(*values: str, release: str = "onelog") -> list[dict[str, Any]]:
    """The objects of the chart."""
    flags = [word for value in values for word in ("--set", value)]
    text = helm("template", release, str(CHART), *OF_CLUSTER, *flags)
    return [row for row in yaml.safe_load_all(text) if row]


def of_kind(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(row for row in rows if row["kind"] == kind)


# -- the image


def test_hadolint_finds_nothing_in_the_dockerfile():
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [program, "--failure-threshold", "style", DEPLOY / "docker" / "Dockerfile"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


# -- Compose


@pytest.mark.parametrize(("file", "service"), [("compose", "onelog"), ("cluster", "node3")])
def test_compose_s_own_schema_takes_the_file(file, service):
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    found = yaml.safe_load((DEPLOY / "compose" / f"{file}.yaml").read_text())
    jsonschema.validate(found, schema)
    found["services"][service]["ulimits"]["nofile"] = {"soft": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema)


# -- Kubernetes


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("row", OBJECTS, ids=lambda row: f"{row['kind']}-{row['metadata']['name']}")
def test_kubernetes_own_schema_takes_each_object(row, version):
    validate(row, version)


def test_a_key_that_kubernetes_does_not_know_would_be_found():
    row = copy.deepcopy(of_kind(OBJECTS, "StatefulSet"))
    row["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(row, KUBERNETES[-1])


# -- Helm


def test_the_chart_is_for_this_version_and_its_configuration_is_known(tmp_path):
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    file = tmp_path / "onelog.toml"
    file.write_text(values["configuration"])
    assert load(file, {}).config.data_dir == "/data"


@needs_helm
def test_helm_finds_nothing_in_the_chart():
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@needs_helm
def test_the_chart_with_its_default_values_is_the_file_without_helm():
    def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the two must share: labels, the tag of the image and annotations aside."""
        found = copy.deepcopy(rows)
        for row in found:
            row["metadata"].pop("labels")
            spec = row.get("spec", {})
            spec.pop("selector", None)
            if spec.get("type") == "ClusterIP":
                del spec["type"]
            if row["kind"] == "StatefulSet":
                spec["template"].pop("metadata")
                pod = spec["template"]["spec"]
                for container in (*pod["initContainers"], *pod["containers"]):
                    container["image"] = container["image"].partition(":")[0]
                    container.pop("imagePullPolicy", None)
        return sorted(found, key=lambda row: (row["kind"], row["metadata"]["name"]))

    assert plain(rendered()) == plain(OBJECTS)


@needs_helm
@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    "values",
    [
        (),
        (
            "environment.ONELOG_LOG_LEVEL=debug",
            "kafkaAdvertised=broker.example:9092",
            "service.type=LoadBalancer",
            "service.annotations.a=b",
            "persistence.storageClass=fast",
            "persistence.accessMode=ReadWriteOnce",
            "podAnnotations.a=b",
            "nodeSelector.disk=ssd",
            "tolerations[0].key=a",
            "imagePullSecrets[0].name=pull",
            "image.tag=2",
        ),
    ],
    ids=["default", "everything"],
)
def test_kubernetes_takes_what_the_chart_makes(values, version):
    rows = rendered(*values)
    for row in rows:
        validate(row, version)
    pod = of_kind(rows, "StatefulSet")["spec"]["template"]
    selector = of_kind(rows, "StatefulSet")["spec"]["selector"]["matchLabels"].items()
    assert selector <= pod["metadata"]["labels"].items()
    assert selector == of_kind(rows, "Service")["spec"]["selector"].items()
    if values:
        broker = pod["spec"]["containers"][0]
        given = {row["name"]: row.get("value") for row in broker["env"]}
        assert given["ONELOG_LOG_LEVEL"] == "debug"
        assert given["ONELOG_LISTENERS_KAFKA_ADVERTISED"] == "broker.example:9092"
        assert broker["image"] == "onelog:2"


@needs_helm
def test_two_releases_of_the_chart_share_no_object_and_no_pod():
    first, second = rendered(release="a"), rendered(release="b")
    names = [{(row["kind"], row["metadata"]["name"]) for row in rows} for rows in (first, second)]
    assert not names[0] & names[1]
    selectors = [of_kind(rows, "StatefulSet")["spec"]["selector"] for rows in (first, second)]
    assert selectors[0] != selectors[1]


@needs_helm
@pytest.mark.parametrize(
    "value",
    ["replicas=3", "environment.PATH=x", "persistence.size=", "service.type=None", "usersSecret="],
)
def test_a_value_that_is_wrong_is_refused(value):
    said = helm("template", "onelog", str(CHART), *OF_CLUSTER, "--set", value, ok=False)
    assert "values don't meet the specifications of the schema" in said


@needs_helm
def test_a_cluster_that_is_too_old_is_refused():
    said = helm("template", "onelog", str(CHART), "--kube-version", "1.26.0", ok=False)
    assert "kubeVersion" in said
