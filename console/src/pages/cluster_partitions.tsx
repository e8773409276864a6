// Partitions of a cluster: who leads them, where their copies are, and how to move or repair one.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { usePages, useSettled } from "../api/hooks";
import type { SeenPartition } from "../api/schema";
import { plural, short, whole } from "../format";
import { useMay } from "../session";
import { Badge, Choice, Empty, Facts, Name, Search, type Tone } from "../ui/basics";
import { Action, Dialog, Field } from "../ui/dialog";
import { type Column, Table } from "../ui/table";
import { nodeName } from "./cluster";

const TONES: Readonly<Record<SeenPartition["state"], Tone>> = {
  healthy: "good", moving: "warn", "under-replicated": "warn", refusing: "bad", offline: "bad",
};

/** Nodes as a list; those that are not in sync are named apart. */
function copies(row: SeenPartition): JSX.Element {
  const behind = row.replicas.filter((node) => !row.isr.includes(node));
  return (
    <span class="row">
      <span>{row.replicas.join(", ")}</span>
      {behind.length > 0 && <Badge tone="warn">{behind.join(", ")} not in sync</Badge>}
    </span>
  );
}

function lag(row: SeenPartition): number {
  return row.lags.reduce((most, one) => Math.max(most, one.offsets), 0);
}

const COLUMNS: readonly Column<SeenPartition>[] = [
  { title: "Partition", cell: (row) => <Name text={row.name} />, grow: true },
  { title: "State", cell: (row) => <Badge tone={TONES[row.state]}>{row.state}</Badge> },
  { title: "Leader", cell: (row) => (row.leader < 0 ? <Badge tone="bad">nobody</Badge> : row.leader), number: true },
  { title: "Copies on", cell: copies, wide: true },
  { title: "Behind", cell: (row) => whole(lag(row)), number: true, wide: true },
  { title: "Epoch", cell: (row) => whole(row.epoch), number: true, wide: true },
];

function numbers(text: string): number[] {
  return text.split(/[\s,]+/).filter(Boolean).map(Number);
}

type Verb = "move" | "stop" | "elect" | "recover";
interface DoingProps {
  readonly row: SeenPartition;
  readonly onClose: () => void;
  readonly onDone: () => void;
}

function Move({ row, onClose, onDone }: DoingProps): JSX.Element {
  const [to, setTo] = useState(row.replicas.join(", "));
  const act = async (): Promise<string> => {
    const path = "POST /cluster/partitions/{partition}/reassign";
    await call(path, { names: [row.name], body: { to: numbers(to) } });
    return "It is on its way: new copies are made, then old ones leave.";
  };
  return (
    <Action title={`Move ${short(row.name, 60)}`} verb="Move" act={act} onClose={onClose} onDone={onDone}>
      <Field label="To the nodes" hint="Numbers, such as 1, 2, 3. The first one leads where it can.">
        <input required pattern="\s*\d+(\s*,\s*\d+)*\s*" value={to} onInput={(event) => setTo(event.currentTarget.value)} />
      </Field>
    </Action>
  );
}

function Recover({ row, onClose, onDone }: DoingProps): JSX.Element {
  const nodes = row.replicas.map((node) => [String(node), `node ${node}`] as const);
  const [node, setNode] = useState(nodes[0]?.[0] ?? "");
  const act = async (): Promise<string> => {
    const path = "POST /cluster/partitions/{partition}/recover";
    await call(path, { names: [row.name], body: { node: Number(node), accept_loss: true } });
    return `Node ${node} leads with what it has.`;
  };
  return (
    <Action title={`Recover ${short(row.name, 60)}`} verb="Accept the loss and recover" danger act={act} onClose={onClose} onDone={onDone}>
      <p>
        Records that only other nodes have are lost for good. Do this only if these nodes will not come
        back: {row.elr.length > 0 ? `nodes ${row.elr.join(", ")} have everything, start one of them first.` : "start them first, if they can."}
      </p>
      <Field label="The copy that counts">
        <Choice label="The copy that counts" value={node} options={nodes} onChange={setNode} />
      </Field>
    </Action>
  );
}

function Doing({ verb, ...props }: DoingProps & { verb: Verb }): JSX.Element {
  const { row } = props;
  if (verb === "move") return <Move {...props} />;
  if (verb === "recover") return <Recover {...props} />;
  const stops = verb === "stop";
  return (
    <Action
      title={stops ? `Stop the move of ${short(row.name, 60)}` : `Let ${nodeName(row.replicas[0] ?? -1)} lead ${short(row.name, 60)}`}
      verb={stops ? "Stop it" : "Elect"}
      act={async () => {
        if (stops) {
          await call("POST /cluster/partitions/{partition}/reassign", { names: [row.name], body: { cancel: true } });
          return "It stays where it was.";
        }
        const done = await call("POST /cluster/elect", { body: { partition: row.name } });
        return done.changed > 0 ? "It leads now." : "Nothing changed: it leads already, or is not in sync.";
      }}
      onClose={props.onClose}
      onDone={props.onDone}
    >
      <p>{stops ? "Copies that were begun are deleted." : "It is the preferred leader: the first of the copies."}</p>
    </Action>
  );
}

function One({ row, onClose, begin }: { row: SeenPartition; onClose: () => void; begin: (verb: Verb) => void }): JSX.Element {
  const may = useMay("admin");
  const moves = row.adding.length > 0 || row.removing.length > 0;
  return (
    <Dialog title={<Name text={row.name} />} onClose={onClose}>
      <Facts
        rows={[
          ["State", <Badge key="s" tone={TONES[row.state]}>{row.state}</Badge>],
          ["Leader", nodeName(row.leader)],
          ["Copies on nodes", row.replicas.join(", ")],
          ["In sync", row.isr.join(", ") || "none"],
          ["Have everything, too", row.elr.join(", ") || "–"],
          ["A record needs", plural(row.min_insync, "copy", "copies")],
          ["Comes to", row.adding.join(", ") || "–"],
          ["Leaves", row.removing.join(", ") || "–"],
          ["Epoch", whole(row.epoch)],
          ...row.lags.map((one) => [`Node ${one.node} is behind by`, plural(one.offsets, "offset")] as const),
        ]}
      />
      {may && (
        <div class="form-end">
          {row.leader >= 0 && row.leader !== row.replicas[0] && <button type="button" onClick={() => begin("elect")}>Elect the preferred…</button>}
          {moves ? <button type="button" onClick={() => begin("stop")}>Stop the move…</button> : <button type="button" onClick={() => begin("move")}>Move…</button>}
          {row.leader < 0 && <button type="button" class="danger" onClick={() => begin("recover")}>Recover…</button>}
        </div>
      )}
    </Dialog>
  );
}

/** All partitions that have replicas, or those in trouble. */
export function ReplicatedPartitions({ onDone }: { onDone: () => void }): JSX.Element {
  const [search, setSearch] = useState("");
  const [troubled, setTroubled] = useState(false);
  const [shown, setShown] = useState<SeenPartition>();
  const [doing, setDoing] = useState<{ readonly verb: Verb; readonly row: SeenPartition }>();
  const [electing, setElecting] = useState(false);
  const settled = useSettled(search);
  const pages = usePages("GET /cluster/partitions", { query: { search: settled, troubled } });
  const may = useMay("admin");
  const again = (): void => {
    pages.again();
    onDone();
  };
  return (
    <>
      <div class="row">
        <Search value={search} onChange={setSearch} label="Search partitions" />
        <label class="row">
          <input type="checkbox" checked={troubled} onChange={(event) => setTroubled(event.currentTarget.checked)} />
          only those in trouble
        </label>
        <button type="button" onClick={pages.again}>Refresh</button>
        {may && <button type="button" onClick={() => setElecting(true)}>Elect all preferred…</button>}
      </div>
      <Table
        label="Partitions"
        pages={pages}
        keyOf={(row) => row.name}
        open={setShown}
        columns={COLUMNS}
        empty={<Empty title={troubled ? "No partition is in trouble" : "No partition is like that"} />}
      />
      {shown && (
        <One
          row={shown}
          onClose={() => setShown(undefined)}
          begin={(verb) => {
            setDoing({ verb, row: shown });
            setShown(undefined);
          }}
        />
      )}
      {doing && <Doing verb={doing.verb} row={doing.row} onClose={() => setDoing(undefined)} onDone={again} />}
      {electing && (
        <Action
          title="Let all preferred replicas lead"
          verb="Elect"
          act={async () => {
            const done = await call("POST /cluster/elect", { body: {} });
            return `${plural(done.changed, "partition")} with another leader now.`;
          }}
          onClose={() => setElecting(false)}
          onDone={again}
        >
          <p>After a node came back, this spreads the leaders over all nodes again. Clients notice a short pause.</p>
        </Action>
      )}
    </>
  );
}
