"""`onelog cluster init` and `certs`: what a node needs before it can be part of a cluster.

Rule: the other commands of the cluster ask the running server; they are rows of the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.text import Text

from onelog.base.errors import ConfigError
from onelog.cli import render
from onelog.cli.api.building import noun
from onelog.cli.api.showing import AsJson
from onelog.cli.options import Assignments, ConfigFile, DataDir, load_options
from onelog.config import Loaded

if TYPE_CHECKING:
    from onelog.cluster.moving import MovedMetadata

InitCluster = Callable[[Loaded], "MovedMetadata"]
"""Moves the metadata of a stopped node into etcd; it blocks."""


Nodes = Annotated[
    list[int],
    Parameter(
        name="--node",
        help="`node.id` of a node; may be given several times.",
        negative="",
        validator=Number(gte=0, lte=2**31 - 1),
    ),
]
Hosts = Annotated[
    list[str] | None,
    Parameter(
        name="--host",
        help="A host name or address of these nodes, which etcd checks; may be given several"
        " times.",
        negative="",
    ),
]
Days = Annotated[
    int, Parameter(name="--days", help="How long they count.", validator=Number(gte=1, lte=3650))
]


def add_cluster(app: App, init_cluster: InitCluster | None) -> None:
    """The commands of `onelog cluster` that need no server."""

    def init(
        *,
        config: ConfigFile = None,
        data: DataDir = None,
        assignments: Assignments = (),
        json: AsJson = False,
    ) -> None:
        """Move the metadata of a stopped node on its own into etcd: it becomes the first node of
        a cluster. The configuration says where etcd is. A new node needs no init."""
        loaded = load_options(config, data, assignments)
        if init_cluster is None:
            raise ConfigError("this program cannot reach a data directory")
        moved = init_cluster(loaded)
        if json:
            sys.stdout.write(msgspec.json.encode(moved).decode() + "\n")
        else:
            render.OUT.print(
                f"etcd has the metadata now: {moved.rows} rows of cluster {moved.cluster_id}."
                f" The file is kept as metadata.db.moved. Start the node with `onelog serve`"
            )

    def certs(folder: Path, /, *, node: Nodes, host: Hosts = None, days: Days = 825) -> None:
        """Make certificates for nodes: onelog cluster certs ./pki --node 1 --host 10.0.0.1.

        The first call makes an authority in the folder, too. Keep its key, ca-key.pem, off the
        nodes: whoever has it can make nodes. Give each node ca.pem and its own two files, and name
        them in cluster.etcd.ca_file, cert_file and key_file.
        """
        # Only this needs it, and every other command starts faster without.
        from onelog.cluster.certificates import make_certificates  # noqa: PLC0415

        for path in make_certificates(folder, node, host or (), days):
            render.OUT.print(Text(str(path)), soft_wrap=True)

    group = noun(app, "cluster")
    group.command(init, name="init")
    group.command(certs, name="certs")
