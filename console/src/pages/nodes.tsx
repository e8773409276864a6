// Nodes: of a cluster, or the one that there is; where it listens, and its configuration.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { useAsk, usePages, useSettled } from "../api/hooks";
import type { HotSettings as Hot, SeenCluster, SettingRow } from "../api/schema";
import { ago, setting, short, time } from "../format";
import type { PageProps } from "../pages";
import { useMay } from "../session";
import { Badge, Choice, Empty, Head, Name, Problem, Search } from "../ui/basics";
import { Action, Field } from "../ui/dialog";
import { Table } from "../ui/table";
import { Tabs } from "../ui/tabs";
import { ClusterNow, Links, Members } from "./cluster";
import { ReplicatedPartitions } from "./cluster_partitions";

const LEVELS = ["debug", "info", "warning", "error"] as const;

/** The settings of a number that change while the broker runs: their field in the request, and their least and most. */
const NUMBERS: Record<string, readonly ["ban_failures" | "ban_ms" | "ban_delay_ms", number, number]> = {
  "security.bans.failures": ["ban_failures", 0, 1_000_000],
  "security.bans.ban_ms": ["ban_ms", 1000, 365 * 24 * 3600 * 1000],
  "security.bans.delay_ms": ["ban_delay_ms", 0, 60_000],
};

/** One setting that changes while the broker runs. */
function Change({ row, onClose, onDone }: { row: SettingRow; onClose: () => void; onDone: () => void }): JSX.Element {
  const [said, setSaid] = useState(String(row.value));
  const number = NUMBERS[row.key];
  const body = (): Hot => (number ? { [number[0]]: Number(said) } : { log_level: LEVELS.find((level) => level === said) ?? null });
  return (
    <Action
      title={`Change ${row.key}`}
      verb="Change it"
      act={async () => {
        const now = await call("PATCH /config", { body: body() });
        return `${now.key} is ${now.value} now, until the process ends.`;
      }}
      onClose={onClose}
      onDone={onDone}
    >
      <Field label="Value" hint="The file stays as it is.">
        {number ? (
          <input type="number" required min={number[1]} max={number[2]} value={said} onInput={(event) => setSaid(event.currentTarget.value)} />
        ) : (
          <Choice label="Value" value={said} options={LEVELS.map((level) => [level, level])} onChange={setSaid} />
        )}
      </Field>
    </Action>
  );
}

/** A value as the file has it; a long number also as people read it. */
function ConfigValue({ name, value }: { name: string; value: unknown }): JSX.Element {
  const said = setting(name, value);
  const known = typeof value === "number" && said !== String(value);
  return (
    <span class="row">
      <code>{short(JSON.stringify(value), 80)}</code>
      {known && <span class="faint">{said}</span>}
    </span>
  );
}

/** What this node listens on, and the configuration that is in force here. */
function Here(): JSX.Element {
  const [search, setSearch] = useState("");
  const [changing, setChanging] = useState<SettingRow>();
  const settled = useSettled(search);
  const listeners = usePages("GET /listeners");
  const config = usePages("GET /config", { query: { search: settled } });
  const may = useMay("admin");
  return (
    <>
      <Head title="Listeners" about="Where clients find this node." />
      <Table
        label="Listeners"
        pages={listeners}
        keyOf={(row) => `${row.name} ${row.address}`}
        columns={[
          { title: "Listener", cell: (row) => row.name },
          { title: "Address", cell: (row) => <code>{row.url || row.address}</code>, grow: true },
        ]}
        empty={<Empty title="Nothing listens" />}
      />
      <Head title="Configuration" about="Every key, its value in force and where it came from. A key with a button changes while the broker runs.">
        <Search value={search} onChange={setSearch} label="Search keys" />
      </Head>
      <Table
        label="Configuration"
        pages={config}
        keyOf={(row) => row.key}
        columns={[
          { title: "Key", cell: (row) => <code>{row.key}</code>, grow: true },
          { title: "Value", cell: (row) => <ConfigValue name={row.key} value={row.value} /> },
          { title: "From", cell: (row) => <Badge tone={row.source === "default" ? "plain" : "good"}>{short(row.source, 40)}</Badge>, wide: true },
          ...(may ? [{ title: " ", cell: (row: SettingRow) => row.hot && <button type="button" class="small" onClick={() => setChanging(row)}>Change…</button> }] : []),
        ]}
        empty={<Empty title="No key is like that" />}
      />
      {changing && <Change row={changing} onClose={() => setChanging(undefined)} onDone={config.again} />}
    </>
  );
}

/** A node on its own. */
function Alone(): JSX.Element {
  const nodes = usePages("GET /nodes");
  return (
    <>
      <Head title="Nodes" about="The processes of this broker. This one is on its own; several make a cluster (cluster.mode)." />
      <Table
        label="Nodes"
        pages={nodes}
        keyOf={(row) => String(row.id)}
        columns={[
          { title: "Node", cell: (row) => row.id, number: true },
          { title: "Name", cell: (row) => <Name text={row.name} />, grow: true },
          { title: "State", cell: (row) => <Badge tone={row.state === "running" ? "good" : "warn"}>{row.state}</Badge> },
          { title: "Version", cell: (row) => row.version, wide: true },
          { title: "Started", cell: (row) => <span title={time(row.started_ms)}>{ago(row.started_ms)}</span>, wide: true },
        ]}
        empty={<Empty title="No node is known" />}
      />
      <Here />
    </>
  );
}

function Finalize({ cluster, onClose, onDone }: { cluster: SeenCluster; onClose: () => void; onDone: () => void }): JSX.Element {
  return (
    <Action
      title="Let all nodes use the new version"
      verb="Finalise"
      act={async () => {
        const done = await call("POST /cluster/finalize", { body: {} });
        return `Version ${done.version} is finalised.`;
      }}
      onClose={onClose}
      onDone={onDone}
    >
      <p>All nodes use what the new release brings, from version {cluster.version} on. It does not go back: nodes of the old release cannot join any more.</p>
    </Action>
  );
}

/** The highest inner version that every node speaks. */
function spoken(cluster: SeenCluster): number {
  const highest = cluster.nodes.map((row) => row.inner_versions[1]);
  return highest.length > 0 ? Math.min(...highest) : 0;
}

function Together({ cluster, error, again, tab }: {
  cluster: SeenCluster;
  error: string | undefined;
  again: () => void;
  tab: string;
}): JSX.Element {
  const [finalizing, setFinalizing] = useState(false);
  const may = useMay("admin") && spoken(cluster) > cluster.version;
  return (
    <>
      <Head title="Nodes" about={<>The cluster <Name text={cluster.name} />, as node {cluster.node} sees it.</>}>
        {may && <button type="button" onClick={() => setFinalizing(true)}>Finalise version {spoken(cluster)}…</button>}
      </Head>
      <Problem text={error} again={again} />
      <Tabs page="nodes" current={tab} tabs={[["nodes", "Nodes"], ["partitions", "Partitions"], ["links", "Links and etcd"], ["here", "This node"]]} />
      {tab === "here" ? <Here /> : tab === "links" ? <Links cluster={cluster} /> : tab === "partitions" ? (
        <ReplicatedPartitions onDone={again} />
      ) : (
        <>
          <ClusterNow cluster={cluster} />
          <Members cluster={cluster} again={again} />
        </>
      )}
      {finalizing && <Finalize cluster={cluster} onClose={() => setFinalizing(false)} onDone={again} />}
    </>
  );
}

const EVERY_MS = 3000;

export default function NodesPage({ query }: PageProps): JSX.Element {
  const { data, error, again } = useAsk("GET /cluster", {}, EVERY_MS);
  if (data === undefined) {
    return (
      <>
        <Head title="Nodes" about="The processes of this broker." />
        {error === undefined ? <p class="faint pad">Loading…</p> : <Problem text={error} again={again} />}
      </>
    );
  }
  if (data.mode === "single") return <Alone />;
  return <Together cluster={data} error={error} again={again} tab={query.tab ?? "nodes"} />;
}
