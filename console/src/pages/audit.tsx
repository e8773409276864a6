// The audit trail: who changed what, who failed to log in; by filter, and as it comes.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Query } from "../api/client";
import { usePages } from "../api/hooks";
import { follow } from "../api/live";
import type { AuditShown } from "../api/schema";
import { plural, short, time, visibleText } from "../format";
import type { PageProps } from "../pages";
import { amend, go } from "../router";
import { useMay } from "../session";
import { Badge, Choice, Empty, Facts, Head, Name, type Tone } from "../ui/basics";
import { Dialog } from "../ui/dialog";
import { type Column, Table } from "../ui/table";

/** What the server writes each record to. */
const TOPICS = "$audit/#";
const PAUSE_MS = 200;
const HOUR_MS = 3_600_000;

type Outcome = NonNullable<Query<"GET /audit">["outcome"]>;
const OUTCOMES: readonly (readonly [Outcome, string])[] = [
  ["", "every outcome"], ["ok", "ok"], ["refused", "refused"], ["failed", "failed"],
];
const TONES: Readonly<Record<string, Tone>> = { ok: "good", refused: "warn", failed: "bad" };

type Since = "" | "1" | "24" | "168";
const SINCES: readonly (readonly [Since, string])[] = [
  ["", "at any time"], ["1", "in the last hour"], ["24", "in the last day"], ["168", "in the last week"],
];
const FIELDS = [
  ["actor", "User", "The whole name of a user"],
  ["action", "Action", "An action or its beginning: user, login.failed"],
  ["resource", "Resource", "A part of what it was done to"],
  ["door", "Door", "Where it came in: mqtt, kafka, amqp, admin, management, control, offline"],
] as const;

function OutcomeBadge({ row }: { row: AuditShown }): JSX.Element {
  const { outcome, count } = row.event;
  return <Badge tone={TONES[outcome] ?? "plain"}>{count > 1 ? `${outcome}, ${plural(count, "time")}` : outcome}</Badge>;
}

const COLUMNS: readonly Column<AuditShown>[] = [
  { title: "Time", cell: (row) => <span title={time(row.event.time_ms)}>{time(row.event.time_ms).slice(0, 19)}</span>, wide: true },
  { title: "Who", cell: (row) => (row.event.actor ? <Name text={row.event.actor} most={40} /> : "–") },
  { title: "Action", cell: (row) => <Name text={row.event.action} /> },
  { title: "On", cell: (row) => <Name text={row.event.resource || row.event.reason || "–"} />, grow: true, wide: true },
  { title: "Door", cell: (row) => row.event.door, wide: true },
  { title: "Address", cell: (row) => <Name text={row.event.address || "–"} most={40} />, wide: true },
  { title: "Outcome", cell: (row) => <OutcomeBadge row={row} /> },
];

function Details({ row, onClose }: { row: AuditShown; onClose: () => void }): JSX.Element {
  const { event } = row;
  const detail = JSON.stringify(event.detail, null, 2);
  return (
    <Dialog title={<Name text={event.action} />} onClose={onClose}>
      <Facts
        rows={[
          ["Time", time(event.time_ms)],
          ["Who", event.actor ? <Name key="a" text={event.actor} /> : "not known"],
          ["Door", event.door],
          ["Address", <Name key="h" text={event.address || "–"} />],
          ["Resource", <Name key="r" text={event.resource || "–"} most={512} />],
          ["Outcome", <OutcomeBadge key="o" row={row} />],
          ["Record", String(row.offset)],
        ]}
      />
      {(event.error || event.reason) && <p>{short(`${event.error}: ${event.reason}`, 600)}</p>}
      {detail !== "{}" && <pre class="payload">{visibleText(detail)}</pre>}
    </Dialog>
  );
}

interface Following {
  readonly connected: boolean;
  readonly error: string | undefined;
}

/** Calls `act` when records come, a few times a second at most. */
function useFollowing(active: boolean, act: () => void): Following {
  const [now, setNow] = useState<Following>({ connected: false, error: undefined });
  useEffect(() => {
    if (!active) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const wake = (): void => {
      timer ??= setTimeout(() => {
        timer = undefined;
        act();
      }, PAUSE_MS);
    };
    const stop = follow(TOPICS, {
      message: wake,
      skipped: wake,
      state: (connected) => {
        setNow({ connected, error: undefined });
        if (connected) wake(); // what came before the connection stood
      },
      end: (reason) => setNow({ connected: false, error: short(reason, 60) }),
    }, 0);
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [active, act]);
  return now;
}

function Filters({ given }: { given: PageProps["query"] }): JSX.Element {
  const [texts, setTexts] = useState(given);
  useEffect(() => setTexts(given), [given]);
  const show = (change: Readonly<Record<string, string>>): void => go("audit", { ...given, ...texts, ...change });
  return (
    <form class="actions" onSubmit={(event) => { event.preventDefault(); show({}); }}>
      {FIELDS.map(([name, label, about], index) => (
        <input
          key={name}
          type="search"
          size={14}
          data-search={index === 0 ? true : undefined}
          aria-label={label}
          title={about}
          placeholder={label}
          maxLength={512}
          value={texts[name] ?? ""}
          onInput={(event) => setTexts({ ...texts, [name]: event.currentTarget.value })}
        />
      ))}
      <Choice label="Outcome" value={outcomeOf(given)} options={OUTCOMES} onChange={(outcome) => show({ outcome })} />
      <Choice label="Since" value={sinceOf(given)} options={SINCES} onChange={(since) => show({ since })} />
      <button type="submit" class="primary">Show</button>
    </form>
  );
}

function outcomeOf(given: PageProps["query"]): Outcome {
  return OUTCOMES.find(([key]) => key === given.outcome)?.[0] ?? "";
}

function sinceOf(given: PageProps["query"]): Since {
  return SINCES.find(([key]) => key === given.since)?.[0] ?? "";
}

function Trail({ given }: { given: PageProps["query"] }): JSX.Element {
  const [open, setOpen] = useState<AuditShown>();
  const isLive = given.live === "1";
  const since = sinceOf(given);
  const since_ms = useMemo(() => (since === "" ? 0 : Date.now() - Number(since) * HOUR_MS), [since]);
  const { actor = "", action = "", resource = "", door = "" } = given;
  const outcome = outcomeOf(given);
  const pages = usePages("GET /audit", { query: { actor, action, resource, door, outcome, since_ms } });
  const following = useFollowing(isLive, pages.again);
  const isFiltered = [actor, action, resource, door, outcome, since].some((text) => text !== "");
  return (
    <>
      <Head title="Audit trail" about="Who changed what, and who failed to log in, the newest first. Nobody can change it.">
        {isLive && (
          <Badge tone={following.connected ? "good" : "warn"}>{following.connected ? "following" : (following.error ?? "connecting…")}</Badge>
        )}
        <button type="button" class={isLive ? "on" : ""} aria-pressed={isLive} onClick={() => amend({ live: isLive ? "" : "1" })}>
          Follow
        </button>
        <button type="button" onClick={pages.again}>Refresh</button>
      </Head>
      <Filters given={given} />
      <Table
        label="Audit trail"
        pages={pages}
        columns={COLUMNS}
        keyOf={(row) => String(row.offset)}
        open={setOpen}
        empty={
          isFiltered ? (
            <Empty title="No record is like that">
              <button type="button" onClick={() => go("audit")}>Show all</button>
            </Empty>
          ) : (
            <Empty title="Nothing was changed yet">
              Each change by the API, the commands or Kafka's tools leaves a record here, and each login that fails.
            </Empty>
          )
        }
      />
      {open && <Details row={open} onClose={() => setOpen(undefined)} />}
    </>
  );
}

export default function AuditPage({ query }: PageProps): JSX.Element {
  if (useMay("admin")) return <Trail given={query} />;
  return (
    <>
      <Head title="Audit trail" />
      <Empty title="Only administrators see the audit trail here">
        Log in as a user with the role admin. A rule can let others read it: <code>onelog acl add allow group:auditors subscribe 'topic:$audit/#'</code>
      </Empty>
    </>
  );
}
