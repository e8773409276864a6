// Backups: begin one, watch how far it is, end it; the runs since the broker started, and what is stored.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { call } from "../api/client";
import { useAsk } from "../api/hooks";
import type { BackupRun } from "../api/schema";
import { ago, bytes, duration, plural, time } from "../format";
import type { PageProps } from "../pages";
import { useMay } from "../session";
import { Badge, Card, Empty, Facts, Head, Name, Problem, type Tone } from "../ui/basics";
import { Action, Dialog, Field } from "../ui/dialog";
import { type Column, onePage, Table } from "../ui/table";
import { Tabs } from "../ui/tabs";
import { optionsOf, type Place, PlaceFields } from "./backup_place";
import { Commands, StoredBackups } from "./backups_stored";

const WATCHED_MS = 500;
const RESTING_MS = 2000;
const TONES: Readonly<Record<BackupRun["state"], Tone>> = {
  freezing: "warn", sending: "warn", done: "good", failed: "bad", cancelled: "plain",
};

function isActive(run: BackupRun): boolean {
  return run.state === "freezing" || run.state === "sending";
}

function State({ run }: { run: BackupRun }): JSX.Element {
  return <Badge tone={TONES[run.state]}>{run.state}</Badge>;
}

/** Bytes per second since it began; too early to say at first. */
function speed(run: BackupRun): string {
  const took = (run.ended_ms ?? Date.now()) - run.began_ms;
  return took < 1000 ? "–" : `${bytes((run.new_bytes / took) * 1000)}/s`;
}

const COLUMNS: readonly Column<BackupRun>[] = [
  { title: "Began", cell: (run) => <span title={time(run.began_ms)}>{ago(run.began_ms)}</span> },
  { title: "State", cell: (run) => <State run={run} /> },
  { title: "To", cell: (run) => <Name text={run.url} />, grow: true },
  { title: "Size", cell: (run) => bytes(run.size_bytes), number: true, wide: true },
  { title: "Sent", cell: (run) => bytes(run.new_bytes), number: true, wide: true },
  { title: "Took", cell: (run) => (run.ended_ms === null ? "–" : duration(run.ended_ms - run.began_ms)), number: true, wide: true },
];

function Progress({ run, onCancel }: { run: BackupRun; onCancel: (() => void) | null }): JSX.Element {
  const part = run.size_bytes > 0 ? Math.min(1, run.done_bytes / run.size_bytes) : 0;
  const percent = Math.floor(part * 100);
  return (
    <Card
      title={<>A backup to <Name text={run.url} /> is under way</>}
      extra={onCancel !== null && <button type="button" class="small" onClick={onCancel}>Cancel…</button>}
    >
      <div class="bar" role="progressbar" aria-label="Progress" aria-valuenow={percent} aria-valuemin={0} aria-valuemax={100}>
        <i style={{ width: `${part * 100}%` }} />
      </div>
      <p class="faint pad">
        {run.state === "freezing"
          ? "The broker notes what belongs to the backup."
          : `${percent} %: ${bytes(run.done_bytes)} of ${bytes(run.size_bytes)} in ${plural(run.files, "file")}, ${speed(run)} sent`}
      </p>
    </Card>
  );
}

function Details({ run, onClose }: { run: BackupRun; onClose: () => void }): JSX.Element {
  return (
    <Dialog title={<Name text={run.id} />} onClose={onClose}>
      <Problem text={run.message || undefined} />
      <Facts
        rows={[
          ["State", <State key="s" run={run} />],
          ["To", <Name key="u" text={run.url} />],
          ["Began", time(run.began_ms)],
          ["Ended", run.ended_ms === null ? "–" : time(run.ended_ms)],
          ["Holds all that was acknowledged before", run.point_ms === null ? "–" : time(run.point_ms)],
          ["Files", plural(run.files, "file")],
          ["Size", bytes(run.size_bytes)],
          ["Of which were sent", `${bytes(run.new_bytes)}, ${speed(run)}`],
        ]}
      />
      {run.left_out.length > 0 && <Problem text={`Not in it: ${run.left_out.join("; ")}`} />}
      {run.state === "done" && (
        <>
          <p>Look whether it is whole, and try a restore before you need one:</p>
          <Commands url={run.url} id={run.id} />
        </>
      )}
    </Dialog>
  );
}

function NewBackup({ last, onClose, onDone }: {
  last: string;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const [place, setPlace] = useState<Place>({ url: last, options: "" });
  const [rate, setRate] = useState("");
  const act = async (): Promise<string> => {
    const body = { url: place.url, options: optionsOf(place.options), bytes_per_s: Math.round(Number(rate) * 1e6) };
    await call("POST /backups", { body });
    return "The backup has begun.";
  };
  return (
    <Action title="New backup" verb="Begin" act={act} onClose={onClose} onDone={onDone}>
      <PlaceFields label="To" more="What is there already is not sent again." place={place} onChange={setPlace}>
        <Field label="MB per second, at most" hint="Empty: as fast as it goes.">
          <input type="number" min={0} step="any" value={rate} onInput={(event) => setRate(event.currentTarget.value)} />
        </Field>
      </PlaceFields>
      <p class="faint">The backup holds all messages and the hashes of passwords: protect it like the data directory.</p>
    </Action>
  );
}

/** The runs, newest first; a row opens with all that is known of one. */
function Runs({ runs, error, again }: { runs: readonly BackupRun[] | undefined; error: string | undefined; again: () => void }): JSX.Element {
  const [shown, setShown] = useState<string>();
  const may = useMay("admin");
  const opened = runs?.find((run) => run.id === shown);
  return (
    <>
      <Table
        label="Backups"
        pages={onePage(runs, error, again)}
        columns={COLUMNS}
        keyOf={(run) => run.id}
        open={(run) => setShown(run.id)}
        empty={
          <Empty title="No backup was made since the broker started">
            {may ? "Begin one here, or let a timer do it:" : "An administrator begins one here, or lets a timer do it:"}
            <pre>onelog backup create /srv/backups/onelog</pre>
          </Empty>
        }
      />
      {opened && <Details run={opened} onClose={() => setShown(undefined)} />}
    </>
  );
}

export default function BackupsPage({ query }: PageProps): JSX.Element {
  const [everyMs, setEveryMs] = useState(RESTING_MS);
  const [adding, setAdding] = useState(false);
  const [cancelled, setCancelled] = useState<BackupRun>();
  const { data, error, again } = useAsk("GET /backups", {}, everyMs);
  const may = useMay("admin");
  const tab = query.tab ?? "runs";
  const runs = data?.items;
  const active = runs?.find(isActive);
  const last = runs?.[0]?.url ?? "";
  const isWatched = active !== undefined;
  useEffect(() => setEveryMs(isWatched ? WATCHED_MS : RESTING_MS), [isWatched]);
  return (
    <>
      <Head title="Backups" about="Everything that the broker keeps, as of one moment, while it serves.">
        {may && (
          <button type="button" class="primary" disabled={isWatched} onClick={() => setAdding(true)}>New backup</button>
        )}
      </Head>
      {active && <Progress run={active} onCancel={may ? () => setCancelled(active) : null} />}
      <Tabs page="backups" current={tab} tabs={[["runs", "Since the start"], ["stored", "In a folder or bucket"]]} />
      {tab === "stored" ? <StoredBackups last={last} /> : <Runs runs={runs} error={error} again={again} />}
      {adding && <NewBackup last={last} onClose={() => setAdding(false)} onDone={again} />}
      {cancelled && (
        <Action
          title="Cancel this backup"
          verb="Cancel the backup"
          danger
          act={async () => {
            await call("DELETE /backups/{backup}", { names: [cancelled.id] });
            return "The backup is cancelled.";
          }}
          onClose={() => setCancelled(undefined)}
          onDone={again}
        >
          <p>There will be no backup of this moment. What was sent stays there, and the next one need not send it again.</p>
        </Action>
      )}
    </>
  );
}
