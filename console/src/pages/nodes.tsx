// Nodes, where they listen, and the configuration in force.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { usePages, useSettled } from "../api/hooks";
import { ago, short, time } from "../format";
import { useMay } from "../session";
import { Badge, Choice, Empty, Head, Name, Search } from "../ui/basics";
import { Action, Field } from "../ui/dialog";
import { Table } from "../ui/table";

type Level = "debug" | "info" | "warning" | "error";

function LogLevel({ onClose, onDone }: { onClose: () => void; onDone: () => void }): JSX.Element {
  const [level, setLevel] = useState<Level>("info");
  return (
    <Action
      title="Change the level of the log"
      verb="Change it"
      act={async () => {
        await call("PATCH /config", { body: { log_level: level } });
        return `The log is at ${level} now, until the process ends.`;
      }}
      onClose={onClose}
      onDone={onDone}
    >
      <Field label="Level">
        <Choice label="Level" value={level} options={[["debug", "debug"], ["info", "info"], ["warning", "warning"], ["error", "error"]]} onChange={setLevel} />
      </Field>
    </Action>
  );
}

export default function NodesPage(): JSX.Element {
  const [search, setSearch] = useState("");
  const [changing, setChanging] = useState(false);
  const settled = useSettled(search);
  const nodes = usePages("GET /nodes");
  const listeners = usePages("GET /listeners");
  const config = usePages("GET /config", { query: { search: settled } });
  const may = useMay("admin");
  return (
    <>
      <Head title="Nodes" about="The processes of this broker." />
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
      <Head title="Listeners" about="Where clients find the broker." />
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
      <Head title="Configuration" about="Every key, its value in force and where it came from.">
        <Search value={search} onChange={setSearch} label="Search keys" />
        {may && <button type="button" onClick={() => setChanging(true)}>Log level…</button>}
      </Head>
      <Table
        label="Configuration"
        pages={config}
        keyOf={(row) => row.key}
        columns={[
          { title: "Key", cell: (row) => <code>{row.key}</code>, grow: true },
          { title: "Value", cell: (row) => <code>{short(JSON.stringify(row.value), 80)}</code> },
          { title: "From", cell: (row) => <Badge tone={row.source === "default" ? "plain" : "good"}>{short(row.source, 40)}</Badge>, wide: true },
        ]}
        empty={<Empty title="No key is like that" />}
      />
      {changing && <LogLevel onClose={() => setChanging(false)} onDone={config.again} />}
    </>
  );
}
