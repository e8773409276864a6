// Streams: what there is, and one stream with its partitions, segments and settings.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { useAsk, usePages, useSettled } from "../api/hooks";
import type { PartitionInfo, StreamInfo } from "../api/schema";
import { bytes, compact, duration, plural, setting, short, time, visible, whole } from "../format";
import type { PageProps } from "../pages";
import { go, link } from "../router";
import { useMay } from "../session";
import { Badge, Card, Empty, Facts, Head, Name, Problem, Search } from "../ui/basics";
import { Action, Dialog, Field } from "../ui/dialog";
import { type Column, Table } from "../ui/table";
import { AlterStream, NewStream } from "./stream_forms";

function retention(row: StreamInfo): string {
  const parts = [
    row.retention.age_ms === null ? "" : duration(row.retention.age_ms),
    row.retention.bytes === null ? "" : bytes(row.retention.bytes),
    row.retention.consumed ? "until consumed" : "",
  ].filter(Boolean);
  return parts.length > 0 ? parts.join(", ") : "for ever";
}

const COLUMNS: readonly Column<StreamInfo>[] = [
  { title: "Stream", cell: (row) => <Name text={row.name} />, grow: true },
  { title: "Captures", cell: (row) => <Name text={row.captures.join(", ")} />, wide: true },
  { title: "Partitions", cell: (row) => whole(row.partitions), number: true, wide: true },
  { title: "Records", cell: (row) => compact(row.records), number: true },
  { title: "Size", cell: (row) => bytes(row.size_bytes), number: true },
  { title: "Kept", cell: retention, wide: true },
  { title: "Durable at", cell: (row) => row.durability, wide: true },
];

function List(): JSX.Element {
  const [search, setSearch] = useState("");
  const [internal, setInternal] = useState(false);
  const [adding, setAdding] = useState(false);
  const settled = useSettled(search);
  const pages = usePages("GET /streams", { query: { search: settled, internal } });
  return (
    <>
      <Head
        title="Streams"
        about="A stream is a log on disk. It captures the topics that its filters match; every other topic goes to main."
      >
        <Search value={search} onChange={setSearch} label="Search streams" about="Search streams and captures" />
        <label class="row">
          <input
            type="checkbox"
            checked={internal}
            onChange={(event) => setInternal(event.currentTarget.checked)}
          />
          the broker's own
        </label>
        {useMay("operator") && (
          <button type="button" class="primary" onClick={() => setAdding(true)}>
            New stream
          </button>
        )}
      </Head>
      <Table
        label="Streams"
        pages={pages}
        columns={COLUMNS}
        keyOf={(row) => row.id}
        open={(row) => go("streams", { name: row.name })}
        empty={
          <Empty title={settled ? "No stream has this in its name or captures" : "There is no stream yet"}>
            A stream of your own keeps topics apart: with partitions, a time to keep and a place of
            their own.
          </Empty>
        }
      />
      {adding && <NewStream onClose={() => setAdding(false)} onDone={pages.again} />}
    </>
  );
}

function Partitions({ stream, internal }: { stream: string; internal: boolean }): JSX.Element {
  const [shown, setShown] = useState<number>();
  const [trimmed, setTrimmed] = useState<PartitionInfo>();
  const pages = usePages("GET /streams/{stream}/partitions", { names: [stream] });
  const may = useMay("operator") && !internal;
  const columns: readonly Column<PartitionInfo>[] = [
    { title: "Partition", cell: (row) => row.partition, number: true },
    { title: "Start", cell: (row) => whole(row.start_offset), number: true },
    { title: "End", cell: (row) => whole(row.high_watermark), number: true },
    { title: "On disk up to", cell: (row) => whole(row.durable_offset), number: true, wide: true },
    { title: "Stable up to", cell: (row) => whole(row.last_stable_offset), number: true, wide: true },
    { title: "Size", cell: (row) => bytes(row.size_bytes), number: true },
    { title: "Segments", cell: (row) => whole(row.segments), number: true, wide: true },
    {
      title: "State",
      grow: true,
      cell: (row) => (
        <Badge tone={row.state === "running" ? "good" : "bad"}>{short(row.state, 80)}</Badge>
      ),
    },
    {
      title: "",
      wide: true,
      cell: (row) => (
        <div class="row">
          <a href={link("messages", { filter: "#", start: "offset", stream, partition: String(row.partition), offset: String(row.start_offset) })}>
            Messages
          </a>
          {may && (
            <button type="button" class="small" onClick={() => setTrimmed(row)}>
              Trim…
            </button>
          )}
        </div>
      ),
    },
  ];
  return (
    <>
      <Table
        label="Partitions"
        pages={pages}
        columns={columns}
        keyOf={(row) => String(row.partition)}
        open={(row) => setShown(row.partition)}
        empty={<Empty title="This stream has no partition" />}
      />
      {shown !== undefined && (
        <Segments stream={stream} partition={shown} onClose={() => setShown(undefined)} />
      )}
      {trimmed && (
        <Trim stream={stream} row={trimmed} onClose={() => setTrimmed(undefined)} onDone={pages.again} />
      )}
    </>
  );
}

function Segments({ stream, partition, onClose }: {
  stream: string;
  partition: number;
  onClose: () => void;
}): JSX.Element {
  const pages = usePages("GET /streams/{stream}/partitions/{partition}/segments", {
    names: [stream, String(partition)],
  });
  return (
    <Dialog title={`Segments of partition ${partition}`} onClose={onClose} wide>
      <Table
        label="Segments"
        pages={pages}
        keyOf={(row) => String(row.base_offset)}
        columns={[
          { title: "From", cell: (row) => whole(row.base_offset), number: true },
          { title: "To", cell: (row) => whole(row.end_offset), number: true },
          { title: "Size", cell: (row) => bytes(row.size_bytes), number: true },
          { title: "Newest record", cell: (row) => time(row.newest_ms), wide: true },
          { title: "Made", cell: (row) => time(row.created_ms), wide: true },
          { title: "State", cell: (row) => (row.sealed ? "sealed" : "written to"), grow: true },
        ]}
        empty={<Empty title="Nothing was written to this partition yet" />}
      />
    </Dialog>
  );
}

function Trim({ stream, row, onClose, onDone }: {
  stream: string;
  row: PartitionInfo;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const [before, setBefore] = useState(String(row.start_offset));
  const act = async (): Promise<string> => {
    const names = [stream, String(row.partition)] as const;
    const path = "POST /streams/{stream}/partitions/{partition}/trim";
    const after = await call(path, { names, body: { before: Number(before) } });
    return `Partition ${row.partition} begins at ${whole(after.start_offset)} now.`;
  };
  return (
    <Action title={`Delete records of partition ${row.partition}`} verb="Delete records" danger act={act} onClose={onClose} onDone={onDone}>
      <Field
        label="Below the offset"
        hint={`Records from ${whole(row.start_offset)} up to this offset are gone for every reader. The end is ${whole(row.high_watermark)}.`}
      >
        <input
          type="number"
          min={row.start_offset}
          max={row.high_watermark}
          required
          value={before}
          onInput={(event) => setBefore(event.currentTarget.value)}
        />
      </Field>
    </Action>
  );
}

function One({ name }: { name: string }): JSX.Element {
  const { data, error, again } = useAsk("GET /streams/{stream}", { names: [name] });
  const [doing, setDoing] = useState<"alter" | "delete">();
  const may = useMay("operator");
  const stream = data?.stream;
  const settings = Object.entries(data?.settings ?? {});
  return (
    <>
      <Head
        title={<Name text={name} />}
        about={
          stream && (
            <>
              {plural(stream.records, "record")}, {bytes(stream.size_bytes)}, kept {retention(stream)}
            </>
          )
        }
      >
        <a href={link("streams")}>All streams</a>
        {may && stream && !stream.internal && (
          <>
            <button type="button" onClick={() => setDoing("alter")}>
              Change…
            </button>
            <button type="button" onClick={() => setDoing("delete")}>
              Delete…
            </button>
          </>
        )}
      </Head>
      <Problem text={error} again={again} />
      {stream && (
        <>
          <Card title="Captures">
            {stream.captures.length === 0 ? (
              <p class="faint">No filter leads here.</p>
            ) : (
              <div class="row">
                {stream.captures.map((text) => (
                  <a key={text} class="badge" href={link("messages", { filter: text })}>
                    {visible(text)}
                  </a>
                ))}
              </div>
            )}
          </Card>
          <Partitions stream={name} internal={stream.internal} />
          <Card title="Settings">
            <Facts rows={settings.map(([key, value]) => [key, <span key={key} title={short(JSON.stringify(value), 400)}>{setting(key, value)}</span>] as const)} />
          </Card>
        </>
      )}
      {doing === "alter" && stream && (
        <AlterStream stream={stream} onClose={() => setDoing(undefined)} onDone={again} />
      )}
      {doing === "delete" && (
        <Action
          title={`Delete the stream ${short(name, 60)}`}
          verb="Delete"
          danger
          act={async () => {
            await call("DELETE /streams/{stream}", { names: [name] });
            return "The stream is deleted.";
          }}
          onClose={() => setDoing(undefined)}
          onDone={() => go("streams")}
        >
          <p>Its records are gone for every protocol. Topics that it captured go to main from now on.</p>
        </Action>
      )}
    </>
  );
}

export default function StreamsPage({ query }: PageProps): JSX.Element {
  return query.name ? <One key={query.name} name={query.name} /> : <List />;
}

