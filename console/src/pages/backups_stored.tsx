// Stored backups: what lies in a folder or bucket, whether it is whole, and what of it may go.
// Nothing is asked before the reader says so: an address alone sends the broker to no store.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type Answer, call } from "../api/client";
import { textOf } from "../api/hooks";
import { ago, bytes, plural, time, visible, whole } from "../format";
import { useMay } from "../session";
import { Card, Empty, Facts, Name, Problem } from "../ui/basics";
import { Action, Dialog, Field } from "../ui/dialog";
import { type Column, onePage, Table } from "../ui/table";
import { optionsOf, type Place, PlaceFields } from "./backup_place";

const DAY_MS = 86_400_000;
const KEPT = "7";

type Listed = Answer<"POST /stored-backups/{url}/list">;
type Stored = Listed["items"][number];
type Verified = Answer<"POST /stored-backups/{url}/verify">;
type Pruned = Answer<"POST /stored-backups/{url}/prune">;

const COLUMNS: readonly Column<Stored>[] = [
  { title: "Point", cell: (row) => <span title={time(row.point_ms)}>{ago(row.point_ms)}</span> },
  { title: "Id", cell: (row) => <Name text={row.id} />, grow: true },
  { title: "Streams", cell: (row) => whole(row.streams), number: true, wide: true },
  { title: "Files", cell: (row) => whole(row.files), number: true, wide: true },
  { title: "Size", cell: (row) => bytes(row.size_bytes), number: true },
  { title: "Sent for it", cell: (row) => bytes(row.new_bytes), number: true, wide: true },
];

/** The commands that work on one backup of a store. */
export function Commands({ url, id }: { url: string; id: string }): JSX.Element {
  return (
    <pre>
      onelog backup verify {visible(url)} --id {visible(id)}{"\n"}
      onelog restore {visible(url)} --data-dir NEW-FOLDER --id {visible(id)}
    </pre>
  );
}

function Found({ found }: { found: Verified }): JSX.Element {
  const what = `${plural(found.backups, "backup")}, ${plural(found.objects, "object")}, ${bytes(found.size_bytes)}`;
  if (found.problems.length === 0) return <p role="status">Whole: {what}. Every checksum is right.</p>;
  return (
    <>
      {found.problems.map((text) => <Problem key={text} text={text} />)}
      <p role="status">{plural(found.problems.length, "problem")} in {what}. Delete what is damaged by hand, then make a new backup: it sends again what is missing.</p>
    </>
  );
}

interface DoingProps {
  readonly place: Place;
  readonly onClose: () => void;
}

/** Without an id: all backups. */
function Verify({ place, id, onClose }: DoingProps & { id: string }): JSX.Element {
  const [found, setFound] = useState<Verified>();
  const act = async (): Promise<undefined> => {
    setFound(undefined);
    const body = { id, options: optionsOf(place.options) };
    setFound(await call("POST /stored-backups/{url}/verify", { names: [place.url], body }));
  };
  return (
    <Action title={id === "" ? "Verify all backups" : <>Verify <Name text={id} /></>} verb="Verify" act={act} onClose={onClose} stays>
      <p>The broker reads everything that {id === "" ? "these backups need" : "this backup needs"} and compares every checksum. A large store takes long.</p>
      {found && <Found found={found} />}
    </Action>
  );
}

function Gone({ found }: { found: Pruned }): JSX.Element {
  return (
    <div role="status">
      <p>{plural(found.backups.length, "backup")} would go, and {bytes(found.size_bytes)} that no backup needs then.</p>
      {found.kept_objects > 0 && <p class="faint">{plural(found.kept_objects, "object")} more will go when they are a day old.</p>}
      {found.backups.length > 0 && <pre>{found.backups.map(visible).join("\n")}</pre>}
    </div>
  );
}

function Prune({ place, onClose, onDone }: DoingProps & { onDone: () => void }): JSX.Element {
  const [keep, setKeep] = useState(KEPT);
  const [days, setDays] = useState("");
  const [dry, setDry] = useState(true);
  const [found, setFound] = useState<{ readonly asked: string; readonly pruned: Pruned }>();
  const asked = JSON.stringify([keep, days, dry]); // what is found goes when the question changes
  const act = async (): Promise<string | undefined> => {
    setFound(undefined);
    const body = {
      keep: Number(keep),
      older_than_ms: days === "" ? null : Math.round(Number(days) * DAY_MS),
      dry_run: dry,
      options: optionsOf(place.options),
    };
    const pruned = await call("POST /stored-backups/{url}/prune", { names: [place.url], body });
    if (dry) {
      setFound({ asked, pruned });
      return undefined;
    }
    onDone();
    return `Deleted ${plural(pruned.backups.length, "backup")}, and ${bytes(pruned.size_bytes)} that no backup needs.`;
  };
  return (
    <Action title="Prune old backups" verb={dry ? "Look" : "Delete"} danger={!dry} act={act} onClose={onClose} stays={dry}>
      <p>Old backups go, and what only they needed. What no backup needs goes when it is a day old.</p>
      <div class="pair">
        <Field label="Keep the newest">
          <input type="number" required min={1} step={1} value={keep} onInput={(event) => setKeep(event.currentTarget.value)} />
        </Field>
        <Field label="Older than, in days" hint="Empty: whatever their age.">
          <input type="number" min={0} step="any" value={days} onInput={(event) => setDays(event.currentTarget.value)} />
        </Field>
      </div>
      <label class="row">
        <input type="checkbox" checked={dry} onChange={(event) => setDry(event.currentTarget.checked)} />
        only look what would go
      </label>
      {found?.asked === asked && <Gone found={found.pruned} />}
    </Action>
  );
}

function Details({ place, row, onVerify, onClose }: DoingProps & { row: Stored; onVerify: () => void }): JSX.Element {
  return (
    <Dialog title={<Name text={row.id} />} onClose={onClose}>
      <Facts
        rows={[
          ["Holds all that was acknowledged before", time(row.point_ms)],
          ["Done", time(row.done_ms)],
          ["Streams", plural(row.streams, "stream")],
          ["Partitions", plural(row.partitions, "partition")],
          ["Files", plural(row.files, "file")],
          ["Size", bytes(row.size_bytes)],
          ["Of which were sent", bytes(row.new_bytes)],
          ["Version of the broker", <Name key="v" text={row.onelog || "–"} />],
        ]}
      />
      {row.left_out.length > 0 && <Problem text={`Not in it: ${row.left_out.join("; ")}`} />}
      <Commands url={place.url} id={row.id} />
      <div class="form-end">
        <button type="button" onClick={onVerify}>Verify…</button>
      </div>
    </Dialog>
  );
}

interface Look {
  /** As it was when the reader asked: what is typed afterwards is another place. */
  readonly place: Place;
  readonly answer: Listed;
}

type Doing = { readonly verb: "open" | "verify"; readonly id: string } | { readonly verb: "prune" };

function Backups({ look, again }: { look: Look; again: () => void }): JSX.Element {
  const [doing, setDoing] = useState<Doing>();
  const { place, answer } = look;
  const rows = answer.items.toReversed(); // the newest first, as runs are
  const close = (): void => setDoing(undefined);
  const row = doing?.verb === "open" ? rows.find((one) => one.id === doing.id) : undefined;
  return (
    <>
      {answer.problems.map((text) => <Problem key={text} text={text} />)}
      {rows.length > 0 && (
        <div class="actions">
          <button type="button" onClick={() => setDoing({ verb: "verify", id: "" })}>Verify all…</button>
          <button type="button" onClick={() => setDoing({ verb: "prune" })}>Prune…</button>
        </div>
      )}
      <Table
        label="Stored backups"
        pages={onePage(rows)}
        columns={COLUMNS}
        keyOf={(one) => one.id}
        open={(one) => setDoing({ verb: "open", id: one.id })}
        empty={<Empty title="There is no backup that can be read">Look at the path, or make a first backup there.</Empty>}
      />
      {row && <Details place={place} row={row} onVerify={() => setDoing({ verb: "verify", id: row.id })} onClose={close} />}
      {doing?.verb === "verify" && <Verify place={place} id={doing.id} onClose={close} />}
      {doing?.verb === "prune" && <Prune place={place} onClose={close} onDone={again} />}
    </>
  );
}

/** `last`: where the newest run went. */
export function StoredBackups({ last }: { last: string }): JSX.Element {
  const [typed, setTyped] = useState<Place>();
  const [look, setLook] = useState<Look>();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string>();
  const may = useMay("admin");
  const place = typed ?? { url: last, options: "" };
  const ask = async (wanted: Place): Promise<void> => {
    setBusy(true);
    setError(undefined);
    try {
      const body = { options: optionsOf(wanted.options) };
      const answer = await call("POST /stored-backups/{url}/list", { names: [wanted.url], body });
      setLook({ place: wanted, answer });
    } catch (problem) {
      setLook(undefined);
      setError(textOf(problem));
    } finally {
      setBusy(false);
    }
  };
  if (!may) return <Empty title="Only an administrator looks into a folder or bucket">Backups hold all messages and the hashes of passwords.</Empty>;
  return (
    <>
      <Card>
        <form class="form" onSubmit={(event) => { event.preventDefault(); void ask(place); }}>
          <PlaceFields label="Where" place={place} onChange={setTyped} />
          <div class="form-end">
            <button type="submit" class="primary" disabled={busy}>{busy ? "…" : "Look"}</button>
          </div>
        </form>
      </Card>
      <Problem text={error} />
      {look && <Backups look={look} again={() => void ask(look.place)} />}
    </>
  );
}
