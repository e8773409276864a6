// The nodes of a cluster: who runs, who controls, how they reach each other and etcd.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { SeenCluster, SeenEtcd, SeenLink, SeenNode } from "../api/schema";
import { compact, plural, short, whole } from "../format";
import { useMay } from "../session";
import { Badge, Empty, Facts, Head, Name, Stat, type Tone } from "../ui/basics";
import { Action, Dialog } from "../ui/dialog";
import { type Column, onePage, Table } from "../ui/table";

/** What a node is doing, in one word. */
export function stateOf(row: SeenNode): string {
  return row.epoch === 0 ? "down" : row.draining ? "draining" : "running";
}

const TONES: Readonly<Record<string, Tone>> = { running: "good", draining: "warn", down: "bad" };

/** A node as people say it. */
export function nodeName(id: number): string {
  return id < 0 ? "nobody" : `node ${id}`;
}

/** The numbers of a cluster, and what is wrong with it. */
export function ClusterNow({ cluster }: { cluster: SeenCluster }): JSX.Element {
  const { nodes, totals } = cluster;
  const up = nodes.filter((row) => row.epoch > 0).length;
  const bad = totals.offline + totals.refusing;
  const short_of = totals.under_replicated;
  return (
    <>
      {!cluster.is_healthy && <div class="banner" role="status">{short(cluster.summary.replace(/^unhealthy: /, ""), 400)}</div>}
      <div class="stats">
        <Stat label="Cluster" value={cluster.is_healthy ? "healthy" : "unhealthy"} tone={cluster.is_healthy ? "good" : "warn"} />
        <Stat label="Nodes that run" value={`${up} of ${nodes.length}`} tone={up < nodes.length ? "bad" : "plain"} />
        <Stat label="Controller" value={nodeName(cluster.controller)} tone={cluster.controller < 0 ? "bad" : "plain"} />
        <Stat label="Partitions" value={whole(totals.partitions)} note={totals.moving > 0 ? `${whole(totals.moving)} on the move` : "with replicas"} />
        <Stat label="Under-replicated" value={whole(short_of)} tone={short_of > 0 ? "warn" : "plain"} note="not in sync" />
        <Stat label="Refusing, offline" value={whole(bad)} tone={bad > 0 ? "bad" : "plain"} />
        <Stat label="Slowest replica" value={compact(cluster.lag_max)} note="offsets behind" />
        <Stat label="Metadata" value={cluster.is_current ? "current" : "old"} tone={cluster.is_current ? "plain" : "bad"} note={cluster.is_current ? "etcd answers" : "etcd does not answer"} />
      </div>
    </>
  );
}

type Doing = { readonly verb: "drain" | "undo" | "empty" | "remove"; readonly row: SeenNode };

const DOINGS: Readonly<Record<Doing["verb"], readonly [title: string, verb: string, words: string]>> = {
  drain: ["Mark as draining:", "Mark it", "New partitions get no copy there. What lies there stays, until you empty the node."],
  undo: ["Take the mark away:", "Take it away", "The node may get copies of new partitions again."],
  empty: ["Empty", "Empty it", "The node is marked as draining, and all of its copies move to other nodes. Records stay readable meanwhile."],
  remove: ["Remove from the cluster:", "Remove", "It works only for a node that does not run and has no copies."],
};

async function carryOut({ verb, row }: Doing): Promise<string> {
  const names = [String(row.id)] as const;
  if (verb === "remove") {
    await call("DELETE /cluster/nodes/{node}", { names });
    return `Node ${row.id} is no longer of the cluster.`;
  }
  if (verb === "empty") {
    const done = await call("POST /cluster/nodes/{node}/empty", { names });
    return `${plural(done.moved, "partition")} on the way to other nodes.`;
  }
  await call("POST /cluster/nodes/{node}/drain", { names, body: { undo: verb === "undo" } });
  return verb === "undo" ? `Node ${row.id} takes part again.` : `Node ${row.id} is marked.`;
}

function OneNode({ cluster, row, onClose, begin }: {
  cluster: SeenCluster;
  row: SeenNode;
  onClose: () => void;
  begin: (verb: Doing["verb"]) => void;
}): JSX.Element {
  const operator = useMay("operator");
  const admin = useMay("admin");
  const isDown = row.epoch === 0;
  return (
    <Dialog title={<>Node {row.id}: <Name text={row.name} /></>} onClose={onClose}>
      <Facts
        rows={[
          ["State", <Badge key="s" tone={TONES[stateOf(row)] ?? "plain"}>{stateOf(row)}</Badge>],
          ["Controls the cluster", row.id === cluster.controller ? "yes" : "no"],
          ["Version", row.version],
          ["Rack", row.rack || "–"],
          ["Roles", row.roles.join(", ") || "–"],
          ["Leads", plural(row.leads, "partition")],
          ["Has copies of", plural(row.replicas, "partition")],
          ["Took over since its start", row.elections === null ? "it did not answer" : whole(row.elections)],
          ["Stopped in order before", row.is_clean ? "yes" : "no"],
          ...Object.entries(row.listeners).map(([name, place]) => [`Clients by ${name}`, <code key={name}>{short(place, 80)}</code>] as const),
        ]}
      />
      {operator && (
        <div class="form-end">
          <button type="button" onClick={() => begin(row.draining ? "undo" : "drain")}>{row.draining ? "Take the mark away…" : "Mark as draining…"}</button>
          {admin && row.replicas > 0 && <button type="button" onClick={() => begin("empty")}>Empty…</button>}
          {admin && isDown && <button type="button" class="danger" onClick={() => begin("remove")}>Remove…</button>}
        </div>
      )}
    </Dialog>
  );
}

/** The table of nodes; a row opens with all that is known and can be done. */
export function Members({ cluster, again }: { cluster: SeenCluster; again: () => void }): JSX.Element {
  const [shown, setShown] = useState<number>();
  const [doing, setDoing] = useState<Doing>();
  const columns: readonly Column<SeenNode>[] = [
    { title: "Node", cell: (row) => row.id, number: true },
    {
      title: "Name",
      grow: true,
      cell: (row) => (
        <span class="row">
          <Name text={row.name} />
          {row.id === cluster.controller && <Badge tone="other">controls</Badge>}
          {row.id === cluster.node && <Badge>you ask this one</Badge>}
        </span>
      ),
    },
    { title: "State", cell: (row) => <Badge tone={TONES[stateOf(row)] ?? "plain"}>{stateOf(row)}</Badge> },
    { title: "Leads", cell: (row) => whole(row.leads), number: true },
    { title: "Copies", cell: (row) => whole(row.replicas), number: true, wide: true },
    { title: "Rack", cell: (row) => row.rack || "–", wide: true },
    { title: "Version", cell: (row) => row.version, wide: true },
  ];
  const row = cluster.nodes.find((one) => one.id === shown);
  return (
    <>
      <Table
        label="Nodes"
        pages={onePage(cluster.nodes)}
        keyOf={(one) => String(one.id)}
        open={(one) => setShown(one.id)}
        columns={columns}
        empty={<Empty title="No node is known" />}
      />
      {row && (
        <OneNode
          cluster={cluster}
          row={row}
          onClose={() => setShown(undefined)}
          begin={(verb) => {
            setDoing({ verb, row });
            setShown(undefined);
          }}
        />
      )}
      {doing && (
        <Action
          title={`${DOINGS[doing.verb][0]} node ${doing.row.id}`}
          verb={DOINGS[doing.verb][1]}
          danger={doing.verb === "remove"}
          act={() => carryOut(doing)}
          onClose={() => setDoing(undefined)}
          onDone={again}
        >
          <p>{DOINGS[doing.verb][2]}</p>
        </Action>
      )}
    </>
  );
}

const LINKS: readonly Column<SeenLink>[] = [
  { title: "From", cell: (row) => row.from_node, number: true },
  { title: "To", cell: (row) => row.node, number: true },
  { title: "State", cell: (row) => <Badge tone={row.lanes.length === 0 ? "bad" : row.suspicion ? "warn" : "good"}>{row.lanes.length === 0 ? "lost" : row.lanes.join(", ")}</Badge> },
  { title: "Round trip", cell: (row) => (row.rtt_ms === null ? "–" : `${row.rtt_ms.toFixed(1)} ms`), number: true },
  { title: "Address", cell: (row) => <code>{row.address}</code>, wide: true },
  { title: "Trouble", cell: (row) => <Name text={row.suspicion || (row.lanes.length === 0 && row.last_end) || "–"} />, grow: true, wide: true },
];

const ETCD: readonly Column<SeenEtcd>[] = [
  { title: "Member", cell: (row) => <code>{row.url}</code>, grow: true },
  { title: "State", cell: (row) => <Badge tone={row.is_resting ? "bad" : row.version ? "good" : "plain"}>{row.is_resting ? "failed lately" : row.version ? "answers" : "not asked yet"}</Badge> },
  { title: "Version", cell: (row) => row.version || "–", wide: true },
];

/** How nodes reach each other, and the members of etcd. */
export function Links({ cluster }: { cluster: SeenCluster }): JSX.Element {
  return (
    <>
      <Table
        label="Links"
        pages={onePage(cluster.links)}
        keyOf={(row) => `${row.from_node} ${row.node}`}
        columns={LINKS}
        empty={<Empty title="No node has said how it reaches another" />}
      />
      <Head title="etcd" about="Where the metadata lies: streams, users, rules, and who leads what." />
      <Table label="Members of etcd" pages={onePage(cluster.etcd)} keyOf={(row) => row.url} columns={ETCD} empty={<Empty title="No member is known" />} />
    </>
  );
}
