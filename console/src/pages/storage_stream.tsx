// One stream of the storage page: its partitions, what is wrong, and what can be done about it.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { useAsk } from "../api/hooks";
import type { StoredStream, TierInfo } from "../api/schema";
import { ago, bytes, duration, plural, short, time, visibleText, whole } from "../format";
import { link } from "../router";
import { useMay } from "../session";
import { Badge, Facts, Name, type Tone } from "../ui/basics";
import { Action, Dialog } from "../ui/dialog";
import { type Column, onePage, Table } from "../ui/table";

const WATCHED_MS = 2000;
const ROWS_MAX = 1000;

/** Sealed bytes that wait longer are an alarm in /health. */
const LATE_MS = 15 * 60_000;

type Doing = "offload" | "adopt" | "bring-back" | "delete-cold";

export function toneOf(row: StoredStream): Tone {
  if (row.state === "halted" || row.state.includes("failed")) return "bad";
  if (row.problem !== "" || row.lag_age_ms >= LATE_MS) return "warn";
  return row.state === "copying" || row.state === "in the store" ? "good" : "plain";
}

export function Place({ row }: { row: StoredStream }): JSX.Element {
  return (
    <span class="row">
      <Badge>{row.engine}</Badge>
      {row.tier !== "" && <Badge tone="other">{row.tier}</Badge>}
    </span>
  );
}

const COLUMNS: readonly Column<TierInfo>[] = [
  { title: "Partition", cell: (row) => row.partition, number: true },
  { title: "Start", cell: (row) => whole(row.start_offset), number: true },
  { title: "Here from", cell: (row) => whole(row.local_start_offset), number: true },
  { title: "In the store up to", cell: (row) => whole(row.cold_end_offset), number: true },
  { title: "End", cell: (row) => whole(row.end_offset), number: true },
  { title: "Here", cell: (row) => bytes(row.local_bytes), number: true, wide: true },
  { title: "In the store", cell: (row) => bytes(row.cold_bytes), number: true, wide: true },
  { title: "Waits", cell: (row) => (row.lag_bytes === 0 ? "–" : `${bytes(row.lag_bytes)}, ${duration(row.lag_age_ms)}`), number: true, wide: true },
  { title: "State", cell: (row) => <span title={short(row.state, 1000)}>{short(row.state, 60)}</span>, grow: true, wide: true },
];

const TEXTS: Readonly<Record<Doing, readonly [string, string, string]>> = {
  offload: ["Move history to the store now", "Move now", "Open segments are sealed, and all that the stream holds now is copied. What the local window no longer wants then leaves the disk."],
  adopt: ["Take rewritten rows over", "Prove and take over", "Another writer replaced files of this table. Each batch is rebuilt from the rows of today and compared with the checksum of what was written; then OneLog's own files take the place of the foreign ones. If anything is not proved, nothing is changed. Turn the other writer off first."],
  "bring-back": ["Turn the tier off, and bring history back", "Bring back", "Nothing more is copied, and what is only in the store comes back to this disk. It needs the room, and goes on in the broker when you leave."],
  "delete-cold": ["Turn the tier off, and delete history in the store", "Delete", "Nothing more is copied. Records that are only in the store are gone for every reader. What is on this disk stays."],
};

async function run(doing: Doing, stream: string): Promise<string> {
  const names = [stream] as const;
  if (doing === "offload") return `${stream}: ${(await call("POST /streams/{stream}/tier/offload", { names })).said}.`;
  if (doing === "adopt") return `${stream}: ${(await call("POST /streams/{stream}/tier/adopt", { names })).said}.`;
  if (doing === "bring-back") {
    const task = await call("POST /streams/{stream}/tier/bring-back", { names });
    return `${stream}: ${plural(task.left, "piece")} come back; the list shows how far it is.`;
  }
  await call("POST /streams/{stream}/tier/delete-cold", { names });
  return `${stream} begins with what is on the disk; its objects go a little later.`;
}

export function StoredDetails({ row, onClose, onDone }: {
  row: StoredStream;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const [doing, setDoing] = useState<Doing>();
  const parts = useAsk("GET /streams/{stream}/tier", { names: [row.stream], query: { limit: ROWS_MAX } }, WATCHED_MS);
  const may = useMay("operator");
  const mayDelete = useMay("admin");
  const isTier = row.tier !== "";
  if (doing !== undefined) {
    const [title, verb, about] = TEXTS[doing];
    return (
      <Action
        title={title}
        verb={verb}
        danger={doing === "delete-cold"}
        act={() => run(doing, row.stream)}
        onClose={() => setDoing(undefined)}
        onDone={onDone}
      >
        <p>Stream <Name text={row.stream} />. {about}</p>
      </Action>
    );
  }
  return (
    <Dialog title={<Name text={row.stream} />} onClose={onClose} wide>
      {row.problem !== "" && <div class="problem" role="alert"><span>{visibleText(row.problem)}</span></div>}
      <Facts
        rows={[
          ["State", <Badge key="s" tone={toneOf(row)}>{short(row.state, 80)}</Badge>],
          ["Place", <Place key="p" row={row} />],
          ...(row.table === "" ? [] : [["Table", <Name key="t" text={row.table} />] as const]),
          ["Records", `${whole(row.offsets)}, of which ${whole(row.local_offsets)} are here`],
          ["Here", bytes(row.local_bytes)],
          ["In the store", `${bytes(row.cold_bytes)} in ${plural(row.pieces, "piece")}`],
          ["Waits for the store", row.lag_bytes === 0 ? "nothing" : `${bytes(row.lag_bytes)}, the oldest for ${duration(row.lag_age_ms)}`],
          ["Cold reads", `${whole(row.hits)} from the cache, ${whole(row.misses)} waited for the store`],
          ["Last moved", row.last_success_ms === 0 ? "not since the start" : `${time(row.last_success_ms)}, ${ago(row.last_success_ms)}`],
        ]}
      />
      <Table
        label="Partitions"
        pages={onePage(parts.data?.items, parts.error, parts.again)}
        columns={COLUMNS}
        keyOf={(part) => String(part.partition)}
        empty={<p class="faint">It has no partition.</p>}
      />
      <div class="form-end">
        <a class="button" href={link("streams", { name: row.stream })}>Settings</a>
        {may && row.engine !== "object" && (
          <>
            {isTier && <button type="button" class="primary" onClick={() => setDoing("offload")}>Move now…</button>}
            {row.table !== "" && <button type="button" onClick={() => setDoing("adopt")}>Take over rewritten rows…</button>}
            <button type="button" onClick={() => setDoing("bring-back")}>Bring back…</button>
            {mayDelete && <button type="button" onClick={() => setDoing("delete-cold")}>Delete history…</button>}
          </>
        )}
      </div>
    </Dialog>
  );
}
