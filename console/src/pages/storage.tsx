// Storage: which streams have history in the object store, how far it is there, and what it costs.
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { call } from "../api/client";
import { useAsk, useSettled } from "../api/hooks";
import type { StoredStream, StoreStatus } from "../api/schema";
import { ago, bytes, compact, duration, plural, short, time, whole } from "../format";
import { useMay } from "../session";
import { Badge, Empty, Head, Name, Problem, Search, Stat } from "../ui/basics";
import { Action } from "../ui/dialog";
import { type Column, onePage, Table } from "../ui/table";
import { Place, StoredDetails, toneOf } from "./storage_stream";

const WATCHED_MS = 2000;
const ROWS_MAX = 1000;

function dollars(value: number): string {
  return value > 0 && value < 0.01 ? "< $0.01" : `$${value.toFixed(2)}`;
}

const COLUMNS: readonly Column<StoredStream>[] = [
  { title: "Stream", cell: (row) => <Name text={row.stream} />, grow: true },
  { title: "Place", cell: (row) => <Place row={row} />, wide: true },
  { title: "Here", cell: (row) => bytes(row.local_bytes), number: true, wide: true },
  { title: "In the store", cell: (row) => bytes(row.cold_bytes), number: true },
  {
    title: "Waits",
    cell: (row) =>
      row.lag_bytes === 0 ? "–" : <span title={`the oldest for ${duration(row.lag_age_ms)}`}>{bytes(row.lag_bytes)}, {duration(row.lag_age_ms)}</span>,
    number: true,
    wide: true,
  },
  {
    title: "Cold reads",
    cell: (row) =>
      row.hits + row.misses === 0 ? "–" : <span title={`${plural(row.hits, "read")} found their bytes in the cache, ${whole(row.misses)} waited for the store`}>{compact(row.hits)} / {compact(row.misses)}</span>,
    number: true,
    wide: true,
  },
  { title: "Moved", cell: (row) => (row.last_success_ms === 0 ? "–" : <span title={time(row.last_success_ms)}>{ago(row.last_success_ms)}</span>), wide: true },
  { title: "State", cell: (row) => <Badge tone={toneOf(row)}>{short(row.state, 40)}</Badge> },
];

function Numbers({ store }: { store: StoreStatus }): JSX.Element {
  const { hour } = store;
  const requests = hour.put + hour.get + hour.list + hour.delete;
  return (
    <>
      <Problem text={store.last_error === "" ? undefined : `The store failed: ${store.last_error}`} />
      <div class="stats">
        <Stat
          label="Store"
          value={store.last_success_ms === 0 ? "not asked yet" : store.last_error === "" ? "answers" : "fails"}
          tone={store.last_error !== "" ? "bad" : store.last_success_ms === 0 ? "plain" : "good"}
          note={<span title={store.url}>{short(store.url, 60)}{store.last_success_ms > 0 && `, ${ago(store.last_success_ms)}`}</span>}
        />
        <Stat label="Requests, last hour" value={compact(requests)} note={`${compact(hour.put)} put, ${compact(hour.get)} get, ${compact(hour.list)} list, ${compact(hour.delete)} delete`} />
        <Stat label="Bytes, last hour" value={bytes(hour.sent_bytes)} note={`sent; ${bytes(hour.received_bytes)} received`} />
        <Stat label="Cost, last hour" value={dollars(hour.dollars)} note={`${dollars(store.month_dollars)} for a month like it, without storage`} />
        <Stat label="Failed" value={compact(store.errors)} tone={store.errors > 0 ? "warn" : "plain"} note={`${compact(store.throttled)} throttled, ${compact(store.refused)} refused`} />
        <Stat label="Couriers" value={whole(store.couriers)} tone={store.waiting > 0 ? "warn" : "plain"} note={store.waiting > 0 ? `${plural(store.waiting, "cold read")} wait` : "for cold reads; none waits"} />
      </div>
    </>
  );
}

/** What to write into the configuration, for a broker without a store. */
function NoStore(): JSX.Element {
  return (
    <Empty title="This broker has no object store">
      Name one in its configuration, and start it again. Then streams can keep their history there.
      <pre>
        [store]{"\n"}
        url = "s3://BUCKET/PREFIX"   # or a folder: "file:///srv/objects"
      </pre>
    </Empty>
  );
}

function NoStream({ searched }: { searched: boolean }): JSX.Element {
  if (searched) return <Empty title="No stream with history in the store has this in its name" />;
  return (
    <Empty title="No stream has history in the object store yet">
      Give a stream a tier: sealed segments are copied to the store, and readers go on as before.
      <pre>
        onelog stream alter main --tier log --local-age 2d{"\n"}
        onelog stream create plant --capture 'plant/#' --tier iceberg
      </pre>
    </Empty>
  );
}

function Check({ onClose }: { onClose: () => void }): JSX.Element {
  const act = async (): Promise<string> => {
    const found = await call("POST /store/check");
    return `The store keeps what a log needs: a write takes ${found.create_ms} ms, a read ${found.get_ms} ms.`;
  };
  return (
    <Action title="Check the object store" verb="Check" act={act} onClose={onClose}>
      <p>Several writers race for one name, and ranges, listings and clocks are compared. It takes some seconds and some dozen requests.</p>
    </Action>
  );
}

function Sweep({ onClose }: { onClose: () => void }): JSX.Element {
  const [dry, setDry] = useState(true);
  const act = async (): Promise<string> => {
    const found = await call("POST /store/sweep", { body: { dry_run: dry } });
    const what = `${whole(found.deleted)} of ${plural(found.seen, "object")}, ${bytes(found.deleted_bytes)}`;
    return dry ? `A sweep would delete ${what}.` : `Deleted ${what}.`;
  };
  return (
    <Action title="Sweep the object store" verb={dry ? "Look" : "Delete"} danger={!dry} act={act} onClose={onClose}>
      <p>Interrupted uploads leave objects that nothing names. Those that are older than a day go. The broker does this each day by itself.</p>
      <label class="row">
        <input type="checkbox" checked={dry} onChange={(event) => setDry(event.currentTarget.checked)} />
        only look what would go
      </label>
    </Action>
  );
}

export default function StoragePage(): JSX.Element {
  const [search, setSearch] = useState("");
  const [internal, setInternal] = useState(false);
  const [shown, setShown] = useState<string>();
  const [doing, setDoing] = useState<"check" | "sweep">();
  const settled = useSettled(search);
  const list = useAsk("GET /store/streams", { query: { search: settled, internal, limit: ROWS_MAX } }, WATCHED_MS);
  const url = useRef<string | undefined>(undefined);
  url.current = list.data?.store ?? url.current; // it stays while another list is asked for
  const isMissing = url.current === "";
  const store = useAsk("GET /store", url.current ? {} : null, WATCHED_MS);
  const mayCheck = useMay("operator");
  const maySweep = useMay("admin");
  const rows = list.data?.items;
  const opened = rows?.find((row) => row.stream === shown);
  return (
    <>
      <Head title="Storage" about="History in the object store: how far each stream is there, what still waits, and what the store costs.">
        <Search value={search} onChange={setSearch} label="Search streams" />
        <label class="row">
          <input type="checkbox" checked={internal} onChange={(event) => setInternal(event.currentTarget.checked)} />
          the broker's own
        </label>
        {mayCheck && !isMissing && <button type="button" onClick={() => setDoing("check")}>Check…</button>}
        {maySweep && !isMissing && <button type="button" onClick={() => setDoing("sweep")}>Sweep…</button>}
      </Head>
      <Problem text={store.error} again={store.again} />
      {store.data && <Numbers store={store.data} />}
      {isMissing ? (
        <NoStore />
      ) : (
        <Table
          label="Streams in the store"
          pages={onePage(rows, list.error, list.again)}
          columns={COLUMNS}
          keyOf={(row) => row.stream}
          open={(row) => setShown(row.stream)}
          empty={<NoStream searched={settled !== ""} />}
        />
      )}
      {list.data?.next_cursor && <p class="faint">The first {whole(ROWS_MAX)} streams; search for others.</p>}
      {opened && <StoredDetails row={opened} onClose={() => setShown(undefined)} onDone={list.again} />}
      {doing === "check" && <Check onClose={() => setDoing(undefined)} />}
      {doing === "sweep" && <Sweep onClose={() => setDoing(undefined)} />}
    </>
  );
}
