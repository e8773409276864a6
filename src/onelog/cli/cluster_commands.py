"""`onelog cluster status`, `wait-healthy`, `reassign`, `recover`, `join`, asked of a running node.

Rules: the summary comes first. A command that loses records says so by an option of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from rich.text import Text

from onelog.base.errors import ConfigError, NotFound, Timeout, Unavailable
from onelog.cli import render
from onelog.cli.api.building import noun
from onelog.cli.api.showing import ONCE, AsJson, OneShown, show_one
from onelog.cli.client import AdminClient, path_of
from onelog.cli.failures import NotReachable
from onelog.cli.places import HERE, Place, connected
from onelog.cli.printable import json_text

SHOWN_MAX: Final = 20
"""Partitions in trouble that `status` lists."""
POLL_S: Final = 0.5

To = Annotated[
    str, Parameter(name="--to", help="The nodes, as 1,2,3; the first one leads by preference.")
]
Cancel = Annotated[
    bool, Parameter(name="--cancel", negative=(), help="Stop a move that is under way.")
]
From = Annotated[int, Parameter(name="--from", help="The node whose copy is to count.")]
AcceptLoss = Annotated[
    bool,
    Parameter(
        name="--accept-loss",
        negative=(),
        help="Records that only other nodes have are lost for good.",
    ),
]
TimeoutS = Annotated[
    float, Parameter(name="--timeout", help="After so many seconds it ends with an error.")
]
NewNode = Annotated[
    int | None, Parameter(name="--node", help="Its `node.id`; default: the next free one.")
]


def add_cluster_commands(app: App) -> None:
    """The commands."""
    group = noun(app, "cluster")
    group.command(status, name="status")
    group.command(wait_healthy, name="wait-healthy")
    group.command(reassign, name="reassign")
    group.command(recover, name="recover")
    group.command(join, name="join")


def status(*, shown: OneShown = ONCE, place: Place = HERE) -> None:
    """Show the cluster: what is wrong and what to do, nodes, links, partitions in trouble, and the
    members of etcd."""
    with connected(place) as client:
        show_one(lambda: _status(client, is_json=shown.json), shown)


def _status(client: AdminClient, *, is_json: bool) -> Mapping[str, Any]:
    seen: dict[str, Any] = client.get("/cluster")
    if is_json:
        return seen
    if seen["mode"] == "single":
        return {"summary": seen["summary"], "this node": seen["node"]}
    totals = seen["totals"]
    is_troubled = sum(totals.values()) > totals["partitions"]
    page = (
        client.get("/cluster/partitions", {"troubled": True, "limit": SHOWN_MAX})
        if is_troubled
        else {"items": []}
    )
    return {
        "summary": seen["summary"],
        "cluster": f"{seen['name']} ({seen['id']})",
        "controller": _node(seen["controller"]),
        "this node": seen["node"],
        **{name.replace("_", " "): value for name, value in totals.items()},
        "largest lag": seen["lag_max"],
        "version": seen["version"],
        "nodes": [
            {
                "id": str(row["id"]),
                "name": row["name"],
                "state": "draining" if row["draining"] else "up" if row["epoch"] else "down",
                "leads": row["leads"],
                "replicas": row["replicas"],
                "elections": row["elections"],
                "rack": row["rack"],
                "version": row["version"],
                "epoch": row["epoch"],
                "listeners": row["listeners"],
            }
            for row in seen["nodes"]
        ],
        "partitions in trouble": [
            {
                "name": row["name"],
                "state": row["state"],
                "leader": _node(row["leader"]),
                "replicas": row["replicas"],
                "isr": row["isr"],
                "elr": row["elr"],
                "lags": {str(lag["node"]): lag["offsets"] for lag in row["lags"]},
            }
            for row in page["items"]
        ],
        "links": [
            {
                "link": f"{row['from_node']} to {row['node']}",
                "address": row["address"],
                "lanes": row["lanes"],
                "round trip": "-" if row["rtt_ms"] is None else f"{row['rtt_ms']} ms",
                "trouble": row["suspicion"] or ("" if row["lanes"] else row["last_end"]),
            }
            for row in seen["links"]
        ],
        "etcd": seen["etcd"],
    }


def _node(number: int) -> str:
    return "nobody" if number < 0 else str(number)


def wait_healthy(*, timeout: TimeoutS = 300.0, json: AsJson = False, place: Place = HERE) -> None:
    """Wait until every partition has a leader and all of its replicas in sync: between two steps of
    a rolling restart. Ends with 0 then, and with an error when the time is over."""
    until, last = time.monotonic() + timeout, "the node did not answer"
    while True:
        try:
            with connected(place) as client:
                seen = client.get("/cluster")
        except (NotReachable, Unavailable) as error:  # it may be starting
            last = str(error)
        else:
            last = seen["summary"]
            if seen["mode"] == "single" or (seen["is_healthy"] and seen["totals"]["partitions"]):
                if json:
                    sys.stdout.write(json_text(seen) + "\n")
                else:
                    render.OUT.print(Text(last), soft_wrap=True)
                return
        if time.monotonic() >= until:
            raise Timeout(f"after {timeout:g} s the cluster is not healthy: {last}")
        time.sleep(POLL_S)


def reassign(
    partition: str, /, *, to: To = "", cancel: Cancel = False, place: Place = HERE
) -> None:
    """Move a partition to other nodes: onelog cluster reassign main/0 --to 1,2,3.

    It goes on by itself: new replicas copy, and old ones leave when enough others are in sync.
    """
    if cancel == bool(to):
        raise ConfigError("say where the partition is to lie (--to 1,2,3), or --cancel")
    words = [word.strip() for word in to.split(",") if word.strip()]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ConfigError(f"--to {to}: write numbers of nodes, as 1,2,3")
    body = {"cancel": True} if cancel else {"to": [int(word) for word in words]}
    with connected(place) as client:
        path = path_of("/cluster/partitions/{partition}/reassign", {"partition": partition})
        client.call("POST", path, body=body)
    done = "stays where it was" if cancel else f"is on its way to {', '.join(words)}"
    render.OUT.print(Text(f"{partition} {done}: `onelog cluster partitions` shows it"))


def recover(
    partition: str,
    /,
    *,
    node: From,
    accept_loss: AcceptLoss = False,
    place: Place = HERE,
) -> None:
    """Let a node lead an offline partition with what it has: onelog cluster recover main/0 --from 2
    --accept-loss. Only when the nodes with the other copies will not come back."""
    if not accept_loss:
        raise ConfigError(
            "records that only other nodes have would be lost: start those nodes, or say"
            " --accept-loss if they will not come back"
        )
    with connected(place) as client:
        path = path_of("/cluster/partitions/{partition}/recover", {"partition": partition})
        client.call("POST", path, body={"node": node, "accept_loss": True})
    render.OUT.print(Text(f"node {node} leads {partition} with what it has"))


def join(*, node: NewNode = None, place: Place = HERE) -> None:
    """Print the configuration of a further node, as far as the cluster knows it: onelog cluster
    join --url http://10.0.0.1:8080 > onelog.toml. A node joins by starting with it."""
    with connected(place) as client:
        seen = client.get("/cluster")
    if seen["mode"] == "single":
        raise NotFound(
            "this node is on its own (cluster.mode = 'single'): it becomes the first node of a"
            " cluster by `onelog cluster init`"
        )
    taken = [row["id"] for row in seen["nodes"]]
    number = max(taken) + 1 if node is None else node
    if number in taken:
        raise ConfigError(
            f"node {number} is there: choose another number. To replace a node whose disk is"
            " gone, use its configuration with node.replaced = true"
        )
    sys.stdout.write(_configuration(seen, number))


def _configuration(seen: Mapping[str, Any], number: int) -> str:
    endpoints = ", ".join(f'"{row["url"]}"' for row in seen["etcd"])
    lines = [
        f"# Node {number} of cluster {seen['name']}. Start it with: onelog serve",
        "[node]",
        f"id = {number}",
        "",
        "[cluster]",
        'mode = "etcd"',
        f'name = "{seen["name"]}"',
        "",
        "[cluster.etcd]",
        f"endpoints = [{endpoints}]",
    ]
    if any(row["url"].startswith("https:") for row in seen["etcd"]):
        lines += [
            'ca_file = "/etc/onelog/ca.pem"',
            f'cert_file = "/etc/onelog/node-{number}.pem"',
            f'key_file = "/etc/onelog/node-{number}-key.pem"',
        ]
    lines += [
        "",
        "[listeners.inner]",
        "# Where the other nodes reach this one. Other machines need certificates:",
        f"#   onelog cluster certs ./pki --node {number} --host ADDRESS",
        '# host = "ADDRESS"',
        f'# tls = {{ cert_file = "/etc/onelog/node-{number}.pem",'
        f' key_file = "/etc/onelog/node-{number}-key.pem", ca_file = "/etc/onelog/ca.pem" }}',
    ]
    return "\n".join(lines) + "\n"
