// Cursors of every kind in one table: sessions, queues, share groups, Kafka's groups, programs.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Answer, call } from "../api/client";
import { useAsk, usePages, useSettled } from "../api/hooks";
import type { ConsumerGroupRow, CursorInfo } from "../api/schema";
import { compact, plural, short, whole } from "../format";
import type { PageProps } from "../pages";
import { go, link } from "../router";
import { useMay } from "../session";
import { Badge, Card, Choice, Empty, Facts, Head, Name, Problem, Protocol, Search } from "../ui/basics";
import { Action } from "../ui/dialog";
import { Plot } from "../ui/plot";
import { type Column, onePage, Table } from "../ui/table";
import { SeekForm, type SeekTo } from "./seek_form";

const WATCHED_MS = 2000;
const HISTORY_MAX = 300;

function LagBadge({ lag }: { lag: number }): JSX.Element {
  return <Badge tone={lag === 0 ? "good" : lag < 1000 ? "plain" : "warn"}>{compact(lag)}</Badge>;
}

const COLUMNS: readonly Column<CursorInfo>[] = [
  { title: "Cursor", cell: (row) => <Name text={row.name} />, grow: true },
  { title: "Protocol", cell: (row) => <Protocol name={row.protocol} /> },
  { title: "Kind", cell: (row) => row.kind, wide: true },
  { title: "Reads", cell: (row) => <Name text={row.filter} />, wide: true },
  { title: "Lag", cell: (row) => <LagBadge lag={row.lag} />, number: true },
  { title: "Pending", cell: (row) => whole(row.pending), number: true, wide: true },
  { title: "Open", cell: (row) => (row.connected > 0 ? "yes" : "no"), wide: true },
  { title: "Kept", cell: (row) => (row.durable ? "on disk" : "in memory"), wide: true },
];

/** A group of Kafka as a cursor like the others. */
function asCursor(row: ConsumerGroupRow): CursorInfo {
  return {
    name: row.name,
    kind: "group",
    protocol: "kafka",
    filter: [...new Set(row.positions.map((place) => place.topic))].join(", "),
    durable: true,
    positions: row.positions.map((place) => ({
      stream: place.topic,
      partition: place.partition,
      offset: place.offset,
      end: place.end ?? place.offset,
    })),
    lag: row.lag,
    pending: 0,
    connected: row.member_count,
  };
}

type Wanted = "" | "mqtt" | "amqp" | "kafka" | "embedded";

function List({ protocol }: { protocol: Wanted }): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  const own = protocol === "kafka" ? "" : protocol;
  const cursors = usePages("GET /cursors", { query: { search: settled, protocol: own } });
  const groups = usePages("GET /kafka/groups", { query: { search: settled } });
  const withGroups = protocol === "" || protocol === "kafka";
  const rows = useMemo(() => {
    const found = withGroups ? groups.rows.map(asCursor) : [];
    return protocol === "kafka" ? found : [...found, ...cursors.rows.filter((row) => row.kind !== "group")];
  }, [cursors.rows, groups.rows, protocol]);
  const pages = {
    ...cursors,
    rows,
    loading: cursors.loading || (withGroups && groups.loading),
    hasMore: cursors.hasMore && protocol !== "kafka",
  };
  return (
    <>
      <Head
        title="Cursors"
        about="Everybody who reads is a cursor over the log: a session, a queue, a group, a program. Lag is how many offsets are still before it."
      >
        <Search value={search} onChange={setSearch} label="Search cursors" />
        <Choice
          label="Protocol"
          value={protocol}
          options={[["", "every protocol"], ["mqtt", "MQTT"], ["kafka", "Kafka"], ["amqp", "AMQP"], ["embedded", "programs"]]}
          onChange={(next) => go("cursors", { protocol: next })}
        />
        <button type="button" onClick={() => { cursors.again(); groups.again(); }}>
          Refresh
        </button>
      </Head>
      <Table
        label="Cursors"
        pages={pages}
        columns={COLUMNS}
        keyOf={(row) => `${row.kind} ${row.name}`}
        open={(row) => go("cursors", { name: row.name, kind: row.kind })}
        empty={
          <Empty title={settled ? "No cursor has this in its name" : "Nobody reads yet"}>
            Subscribe by MQTT, consume an AMQP queue or read with a Kafka group: each shows up here.
            <pre>onelog sub 'sensors/#'</pre>
          </Empty>
        }
      />
    </>
  );
}

interface LagHistory {
  readonly times: readonly number[];
  readonly lags: readonly number[];
}

/** The lag of the last minutes, as long as this page is open; one point for each answer. */
function useLagHistory(lag: number, answer: object): LagHistory {
  const [history, setHistory] = useState<LagHistory>({ times: [], lags: [] });
  useEffect(() => {
    setHistory((was) => ({
      times: [...was.times.slice(1 - HISTORY_MAX), Date.now() / 1000],
      lags: [...was.lags.slice(1 - HISTORY_MAX), lag],
    }));
  }, [answer]);
  return history;
}

function Details({ row, answer, again, children }: {
  row: CursorInfo;
  answer: object;
  again: () => void;
  children: JSX.Element | false;
}): JSX.Element {
  const { times, lags } = useLagHistory(row.lag, answer);
  const line = useMemo(() => [{ label: "lag", color: row.protocol === "embedded" ? "other" : row.protocol, values: lags }], [lags]);
  return (
    <>
      <Head title={<Name text={row.name} />} about={<><Protocol name={row.protocol} /> {row.kind} cursor</>}>
        <a href={link("cursors")}>All cursors</a>
        <button type="button" onClick={again}>Refresh</button>
        {children}
      </Head>
      <Card>
        <Facts
          rows={[
            ["Reads", <Name key="f" text={row.filter} />],
            ["Lag", whole(row.lag)],
            ["Handed out, not settled", whole(row.pending)],
            [row.kind === "group" ? "Members" : "Open", row.kind === "group" ? whole(row.connected) : row.connected > 0 ? "yes" : "no"],
            ["Kept", row.durable ? "on disk: it survives a restart" : "in memory"],
          ]}
        />
      </Card>
      <Card title="Lag">
        <Plot label="Lag over time" times={times} lines={line} format={(value) => compact(value)} />
      </Card>
      <Table
        label="Positions"
        pages={onePage(row.positions)}
        keyOf={(place) => `${place.stream} ${place.partition}`}
        columns={[
          { title: row.kind === "group" ? "Kafka topic" : "Stream", cell: (place) => <Name text={place.stream} />, grow: true },
          { title: "Partition", cell: (place) => place.partition, number: true },
          { title: "Stands at", cell: (place) => whole(place.offset), number: true },
          { title: "End", cell: (place) => whole(place.end), number: true, wide: true },
          { title: "Behind", cell: (place) => <LagBadge lag={Math.max(0, place.end - place.offset)} />, number: true },
        ]}
        empty={<Empty title="It has no position: it follows the end of the log" />}
      />
    </>
  );
}

type Doing = "seek" | "purge" | "delete" | undefined;

function One({ name }: { name: string }): JSX.Element {
  const { data, error, again } = useAsk("GET /cursors/{cursor}", { names: [name] }, WATCHED_MS);
  const [doing, setDoing] = useState<Doing>();
  const may = useMay("operator");
  if (!data) return <><Problem text={error} again={again} />{!error && <p class="faint pad">Loading…</p>}</>;
  const close = (): void => setDoing(undefined);
  const seek = async (to: SeekTo): Promise<string> => {
    await call("POST /cursors/{cursor}/seek", { names: [name], body: to });
    return "The cursor goes on there.";
  };
  return (
    <>
      <Problem text={error} again={again} />
      <Details row={data} answer={data} again={again}>
        {may && (
          <>
            {data.kind === "offset" && <button type="button" onClick={() => setDoing("seek")}>Move…</button>}
            {data.kind === "queue" && <button type="button" onClick={() => setDoing("purge")}>Purge…</button>}
            {data.kind === "session" && <a href={link("sessions")}>Its session</a>}
            {data.kind === "routed" && <a href={link("queues")}>Its queue</a>}
            {data.protocol === "embedded" && data.kind !== "tail" && (
              <button type="button" onClick={() => setDoing("delete")}>Forget…</button>
            )}
          </>
        )}
      </Details>
      {doing === "seek" && <SeekForm title="Move the cursor" act={seek} onClose={close} onDone={again} />}
      {doing === "purge" && (
        <Action
          title="Settle all that waits"
          verb="Purge"
          danger
          act={async () => {
            const done = await call("POST /cursors/{cursor}/purge", { names: [name] });
            return `${plural(done.records, "record")} settled.`;
          }}
          onClose={close}
          onDone={again}
        >
          <p>Nobody of this queue gets these messages any more. The log keeps them.</p>
        </Action>
      )}
      {doing === "delete" && (
        <Action
          title={`Forget ${short(name, 60)}`}
          verb="Forget"
          danger
          act={async () => {
            await call("DELETE /cursors/{cursor}", { names: [name] });
            return "The cursor is forgotten.";
          }}
          onClose={close}
          onDone={() => go("cursors")}
        >
          <p>Its program begins anew. The log keeps the records.</p>
        </Action>
      )}
    </>
  );
}

function Group({ name }: { name: string }): JSX.Element {
  const { data, error, again } = useAsk("GET /kafka/groups/{group}", { names: [name] }, WATCHED_MS);
  if (!data) return <><Problem text={error} again={again} />{!error && <p class="faint pad">Loading…</p>}</>;
  const group: Answer<"GET /kafka/groups/{group}"> = data;
  return (
    <Details row={asCursor(group)} answer={group} again={again}>
      <a href={link("groups", { name })}>Members and actions</a>
    </Details>
  );
}

export default function CursorsPage({ query }: PageProps): JSX.Element {
  const protocol = (["mqtt", "amqp", "kafka", "embedded"] as const).find((row) => row === query.protocol);
  if (!query.name) return <List protocol={protocol ?? ""} />;
  return query.kind === "group" ? <Group key={query.name} name={query.name} /> : <One key={query.name} name={query.name} />;
}
