// Cursors of every kind in one table: sessions, queues, share groups, Kafka's groups, programs.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { call } from "../api/client";
import { useAsk, usePages, useSettled } from "../api/hooks";
import type { CursorInfo } from "../api/schema";
import { compact, plural, whole } from "../format";
import type { PageProps } from "../pages";
import { GROUP_PREFIX, go, link } from "../router";
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

type Wanted = "" | "mqtt" | "amqp" | "kafka" | "embedded";

function List({ protocol }: { protocol: Wanted }): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  const pages = usePages("GET /cursors", { query: { search: settled, protocol } });
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
        <button type="button" onClick={pages.again}>Refresh</button>
      </Head>
      <Table
        label="Cursors"
        pages={pages}
        columns={COLUMNS}
        keyOf={(row) => row.name}
        open={(row) => go("cursors", { name: row.name })}
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
function useLagHistory(row: CursorInfo): LagHistory {
  const [history, setHistory] = useState<LagHistory>({ times: [], lags: [] });
  useEffect(() => {
    setHistory((was) => ({
      times: [...was.times.slice(1 - HISTORY_MAX), Date.now() / 1000],
      lags: [...was.lags.slice(1 - HISTORY_MAX), row.lag],
    }));
  }, [row]);
  return history;
}

/** Who reads by a cursor now: members, consumers, or one reader that is there or not. */
function counted(row: CursorInfo): [string, string] {
  if (row.kind === "group") return ["Members", whole(row.connected)];
  if (row.kind === "routed") return ["Consumers", whole(row.connected)];
  return ["Open", row.connected > 0 ? "yes" : "no"];
}

function Details({ row, again, children }: {
  row: CursorInfo;
  again: () => void;
  children: JSX.Element | false;
}): JSX.Element {
  const { times, lags } = useLagHistory(row);
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
            counted(row),
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

type Doing = "seek" | "reset" | "purge" | "redrive" | "delete";

interface Deed {
  readonly title: string;
  readonly verb: string;
  readonly about: string;
  readonly act: (name: string) => Promise<string>;
}

const DEEDS: Readonly<Record<Exclude<Doing, "seek">, Deed>> = {
  reset: {
    title: "Begin as a new cursor",
    verb: "Reset",
    about: "A queue or session goes to the end, any other cursor to the start of what is kept.",
    act: async (name) => {
      await call("POST /cursors/{cursor}/reset", { names: [name] });
      return "The cursor begins anew.";
    },
  },
  purge: {
    title: "Skip all that waits",
    verb: "Purge",
    about: "Nobody of this cursor gets these messages any more. The log keeps them.",
    act: async (name) => {
      const done = await call("POST /cursors/{cursor}/purge", { names: [name] });
      return done.records === null ? "The cursor is at the end." : `${plural(done.records, "record")} skipped.`;
    },
  },
  redrive: {
    title: "Let dead letters come again",
    verb: "Redrive",
    about: "Messages that this queue gave up are given to its consumers once more.",
    act: async (name) => {
      const done = await call("POST /cursors/{cursor}/redrive", { names: [name] });
      const more = done.complete ? "" : " There are more: do it again.";
      return `${plural(done.records, "message waits", "messages wait")} again, ${plural(done.gone, "is", "are")} gone.${more}`;
    },
  },
  delete: {
    title: "Forget the cursor",
    verb: "Forget",
    about: "Its reader begins anew, if it comes again. The log keeps the records.",
    act: async (name) => {
      await call("DELETE /cursors/{cursor}", { names: [name] });
      return "The cursor is forgotten.";
    },
  },
};

function Deeds({ row, onChoose }: {
  row: CursorInfo;
  onChoose: (doing: Doing) => void;
}): JSX.Element {
  const isQueue = row.kind === "queue" || row.kind === "routed";
  return (
    <>
      <button type="button" onClick={() => onChoose("seek")}>Move…</button>
      <button type="button" onClick={() => onChoose("reset")}>Reset…</button>
      <button type="button" onClick={() => onChoose("purge")}>Purge…</button>
      {isQueue && <button type="button" onClick={() => onChoose("redrive")}>Redrive…</button>}
      <button type="button" onClick={() => onChoose("delete")}>Forget…</button>
    </>
  );
}

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
  const deed = doing === undefined || doing === "seek" ? undefined : DEEDS[doing];
  return (
    <>
      <Problem text={error} again={again} />
      <Details row={data} again={again}>
        <>
          {data.kind === "group" && <a href={link("groups", { name: name.slice(GROUP_PREFIX.length) })}>Members</a>}
          {may && data.kind !== "table" && data.kind !== "tail" && <Deeds row={data} onChoose={setDoing} />}
        </>
      </Details>
      {doing === "seek" && <SeekForm title="Move the cursor" act={seek} onClose={close} onDone={again} />}
      {deed && (
        <Action
          title={deed.title}
          verb={deed.verb}
          danger
          act={() => deed.act(name)}
          onClose={close}
          onDone={doing === "delete" ? () => go("cursors") : again}
        >
          <p><Name text={name} /></p>
          <p>{deed.about}</p>
        </Action>
      )}
    </>
  );
}

export default function CursorsPage({ query }: PageProps): JSX.Element {
  const protocol = (["mqtt", "amqp", "kafka", "embedded"] as const).find((row) => row === query.protocol);
  if (!query.name) return <List protocol={protocol ?? ""} />;
  return <One key={query.name} name={query.name} />;
}
