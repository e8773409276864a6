"""Rows of the table for the cluster; `cli/cluster.py` makes those that do more than ask."""

from __future__ import annotations

from typing import Final

from onelog.cli.api.rows import ApiCommand, Option

CLUSTER_ROWS: Final = (
    ApiCommand(
        words="cluster status",
        asks="GET /cluster",
        about="Show the cluster: what is wrong, nodes, links, and the members of etcd.",
        by_hand=True,
    ),
    ApiCommand(
        words="cluster partitions",
        asks="GET /cluster/partitions",
        about="List partitions with their leaders, replicas in sync, and lags.",
        options=(Option(field="troubled", kind="flag", about="Only those that are not healthy."),),
        columns="name state leader replicas isr elr lags epoch",
        empty="there are no such partitions with replicas",
    ),
    ApiCommand(
        words="cluster reassign",
        asks="POST /cluster/partitions/{partition}/reassign",
        about="Move a partition, as in: onelog cluster reassign main/0 --to 1,2,3.",
        by_hand=True,
    ),
    ApiCommand(
        words="cluster recover",
        asks="POST /cluster/partitions/{partition}/recover",
        about="Let a node lead an offline partition with what it has.",
        by_hand=True,
    ),
    ApiCommand(
        words="cluster elect",
        asks="POST /cluster/elect",
        about="Let the preferred replicas lead: of all partitions, or of one.",
        options=(Option(field="partition", about="Only this one, as in main/0."),),
        done="{changed} partitions have another leader now",
    ),
    ApiCommand(
        words="cluster finalize",
        asks="POST /cluster/finalize",
        about="After an upgrade of all nodes: let them use what the new release brings. It does"
        " not go back.",
        options=(
            Option(field="version", kind="number", about="Which; default: the highest of all."),
        ),
        done="version {version} is finalised",
    ),
    ApiCommand(
        words="cluster empty",
        asks="POST /cluster/nodes/{node}/empty",
        about="Move all copies away from a node, before it is removed, as in: onelog cluster empty"
        " 3.",
        done="{moved} partitions are on their way; `onelog cluster status` shows how many are left",
        example="3",
    ),
    ApiCommand(
        words="cluster drain",
        asks="POST /cluster/nodes/{node}/drain",
        about="Let other nodes lead what a node leads, before work on its machine; its copies stay,"
        " and it gets no new ones, as in: onelog cluster drain 2.",
        options=(Option(field="undo", kind="flag", about="Take the mark away."),),
        done="node {node} is marked",
        example="1",
    ),
    ApiCommand(
        words="cluster remove",
        asks="DELETE /cluster/nodes/{node}",
        about="Take a node that does not run, and has no copies, out of the cluster, as in: onelog"
        " cluster remove 2.",
        done="node {node} is no longer of the cluster",
        example="2",
    ),
)
