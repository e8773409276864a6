// Messages: browse by filter from the newest, the oldest, a time or an offset; or watch them come.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { call, type Query } from "../api/client";
import { type Pages, textOf } from "../api/hooks";
import { follow } from "../api/live";
import type { MessageShown } from "../api/schema";
import { bytes, plural, time, whole } from "../format";
import type { PageProps } from "../pages";
import { previewOf } from "../payload";
import { go } from "../router";
import { useMay } from "../session";
import { Badge, Choice, Empty, Head, Name } from "../ui/basics";
import { MessageDialog, payloadOf } from "../ui/message";
import { type Column, onePage, Table } from "../ui/table";
import { PublishForm } from "./publish_form";

const TAIL_MAX = 500;
const AT_ONCE = 100;
type Start = "newest" | "earliest" | "time" | "offset" | "live";
const STARTS: readonly (readonly [Start, string])[] = [
  ["newest", "the newest"],
  ["earliest", "from the start"],
  ["time", "from a time on"],
  ["offset", "from an offset on"],
  ["live", "live: as they come"],
];

const COLUMNS: readonly Column<MessageShown>[] = [
  { title: "Time", cell: (row) => <span title={time(row.timestamp_ms)}>{time(row.timestamp_ms).slice(11)}</span>, wide: true },
  { title: "Topic", cell: (row) => <Name text={row.topic} /> },
  { title: "Payload", cell: (row) => <bdi class="mono">{previewOf(payloadOf(row))}</bdi>, grow: true },
  { title: "Size", cell: (row) => bytes(row.value_bytes), number: true, wide: true },
  { title: "Partition", cell: (row) => `${row.stream.slice(0, 30)}/${row.partition}`, wide: true },
  { title: "Offset", cell: (row) => whole(row.offset), number: true, wide: true },
];

const keyOf = (row: MessageShown): string => `${row.stream}/${row.partition}/${row.offset}`;

/** Pages of messages: the newest come as one page, the others go on forward. */
function useMessages(query: Query<"GET /messages">, active: boolean): Pages<MessageShown> & { complete: boolean } {
  const [rows, setRows] = useState<readonly MessageShown[]>([]);
  const [cursor, setCursor] = useState<string | null>(null);
  const [complete, setComplete] = useState(true);
  const [loading, setLoading] = useState(active);
  const [error, setError] = useState<string>();
  const [round, setRound] = useState(0);
  const run = useRef(0);
  const asked = JSON.stringify(query);
  const load = (from: string, before: readonly MessageShown[], current: number): void => {
    setLoading(true);
    call("GET /messages", { query: { ...query, limit: AT_ONCE, value_bytes: 4096, cursor: from } })
      .then((found) => {
        if (run.current !== current) return;
        setRows([...before, ...found.items]);
        setCursor(found.next_cursor);
        setComplete(found.complete);
        setError(undefined);
      })
      .catch((problem: unknown) => run.current === current && setError(textOf(problem)))
      .finally(() => run.current === current && setLoading(false));
  };
  useEffect(() => {
    run.current += 1;
    setRows([]);
    setError(undefined);
    if (active) load("", [], run.current);
    return () => {
      run.current += 1;
    };
  }, [asked, active, round]);
  const more = (): void => {
    if (cursor && !loading) load(cursor, rows, run.current);
  };
  const again = (): void => setRound((was) => was + 1);
  return { rows, loading, error, complete, hasMore: Boolean(cursor), more, again };
}

interface Tail {
  readonly rows: readonly MessageShown[];
  readonly skipped: number;
  readonly connected: boolean;
  readonly error: string | undefined;
}

const QUIET: Tail = { rows: [], skipped: 0, connected: false, error: undefined };

/** Messages as they come, the newest first; the page is drawn a few times a second at most. */
function useTail(filter: string, active: boolean): Tail {
  const [tail, setTail] = useState(QUIET);
  useEffect(() => {
    if (!active) return;
    let came: MessageShown[] = [];
    let missed = 0;
    setTail(QUIET);
    const draw = setInterval(() => {
      if (came.length === 0 && missed === 0) return;
      const fresh = came.reverse();
      const skipped = missed;
      came = [];
      missed = 0;
      setTail((was) => ({
        ...was,
        rows: [...fresh, ...was.rows].slice(0, TAIL_MAX),
        skipped: was.skipped + skipped,
      }));
    }, 200);
    const stop = follow(filter, {
      message: (row) => {
        if (came.length >= TAIL_MAX) {
          came.shift();
          missed += 1;
        }
        came.push(row);
      },
      skipped: (offsets) => {
        missed += offsets;
      },
      state: (connected) => setTail((was) => ({ ...was, connected })),
      end: (reason) => setTail((was) => ({ ...was, connected: false, error: reason })),
    });
    return () => {
      clearInterval(draw);
      stop();
    };
  }, [filter, active]);
  return tail;
}

function queryOf(given: Readonly<Record<string, string>>, start: Start): Query<"GET /messages"> {
  const filter = given.filter || "#";
  if (start === "time") return { filter, start, time_ms: Number(given.time_ms) || 0 };
  if (start === "offset") {
    const partition = Number(given.partition) || 0;
    return { filter, start, stream: given.stream || "main", partition, offset: Number(given.offset) || 0 };
  }
  return { filter, start: start === "live" ? "newest" : start };
}

/** `2026-01-31T12:00:00` of a time, for the browser's field. */
function local(ms: string | undefined): string {
  const value = Number(ms);
  return value > 0 ? time(value).replace(" ", "T").slice(0, 19) : "";
}

function Controls({ given, start }: {
  given: Readonly<Record<string, string>>;
  start: Start;
}): JSX.Element {
  const [filter, setFilter] = useState(given.filter ?? "");
  useEffect(() => setFilter(given.filter ?? ""), [given.filter]);
  const show = (change: Readonly<Record<string, string>>): void => go("messages", { ...given, filter, ...change });
  return (
    <form class="actions" onSubmit={(event) => { event.preventDefault(); show({}); }}>
      <input
        type="search"
        class="search"
        data-search
        placeholder="Topic or filter: sensors/+/temp, orders/#"
        aria-label="Topic or filter"
        maxLength={4096}
        value={filter}
        onInput={(event) => setFilter(event.currentTarget.value)}
      />
      <Choice label="From where" value={start} options={STARTS} onChange={(next) => show({ start: next })} />
      {start === "time" && (
        <input
          type="datetime-local"
          step={1}
          aria-label="Time"
          value={local(given.time_ms)}
          onChange={(event) => show({ time_ms: String(new Date(event.currentTarget.value).getTime() || 0) })}
        />
      )}
      {start === "offset" && (
        <>
          <input aria-label="Stream" size={12} placeholder="main" value={given.stream ?? ""} onChange={(event) => show({ stream: event.currentTarget.value })} />
          <input aria-label="Partition" type="number" min={0} size={5} placeholder="partition" value={given.partition ?? ""} onChange={(event) => show({ partition: event.currentTarget.value })} />
          <input aria-label="Offset" type="number" min={0} placeholder="offset" value={given.offset ?? ""} onChange={(event) => show({ offset: event.currentTarget.value })} />
        </>
      )}
      <button type="submit" class="primary">Show</button>
    </form>
  );
}

export default function MessagesPage({ query }: PageProps): JSX.Element {
  const start = STARTS.find(([key]) => key === query.start)?.[0] ?? "newest";
  const isLive = start === "live";
  const [open, setOpen] = useState<MessageShown>();
  const [publishing, setPublishing] = useState(query.publish === "1");
  const found = useMessages(queryOf(query, start), !isLive);
  const tail = useTail(query.filter || "#", isLive);
  const pages = isLive ? { ...onePage(tail.rows), error: tail.error } : found;
  return (
    <>
      <Head title="Messages" about="Looking changes nothing: no cursor moves and nobody misses a message.">
        {!isLive && <button type="button" onClick={found.again}>Refresh</button>}
        {useMay("operator") && (
          <button type="button" class="primary" onClick={() => setPublishing(true)}>Publish</button>
        )}
      </Head>
      <Controls given={query} start={start} />
      {isLive && (
        <div class="row">
          <Badge tone={tail.connected ? "good" : "warn"}>{tail.connected ? "following" : "connecting…"}</Badge>
          {tail.skipped > 0 && <Badge tone="warn">{plural(tail.skipped, "message")} left out: too many to show</Badge>}
        </div>
      )}
      {!found.complete && !isLive && !found.hasMore && !found.loading && found.rows.length < AT_ONCE && (
        <div class="banner">The look ended before the whole log was read: narrow the filter, or begin later.</div>
      )}
      <Table
        label="Messages"
        pages={pages}
        columns={COLUMNS}
        keyOf={keyOf}
        open={setOpen}
        empty={
          isLive ? (
            <Empty title="Nothing came yet">Messages show up here the moment they are durable.</Empty>
          ) : (
            <Empty title="No message is there">
              {query.filter ? "No message of this filter is in the log, or none from here on." : "The log is empty. Publish a first message by any protocol:"}
              {!query.filter && <pre>onelog pub sensors/d1/temperature '{"{"}"c": 21.5{"}"}'</pre>}
            </Empty>
          )
        }
      />
      {open && <MessageDialog row={open} onClose={() => setOpen(undefined)} />}
      {publishing && (
        <PublishForm
          topic={query.filter && !/[+#]/.test(query.filter) ? query.filter : ""}
          onClose={() => setPublishing(false)}
          onDone={found.again}
        />
      )}
    </>
  );
}

