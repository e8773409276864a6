// MQTT: sessions that outlive their connection, retained messages, wills.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { usePages, useSettled } from "../api/hooks";
import type { MessageShown, SessionShown } from "../api/schema";
import { ago, bytes, duration, plural, short } from "../format";
import type { PageProps } from "../pages";
import { previewOf } from "../payload";
import { link } from "../router";
import { useMay } from "../session";
import { Badge, Empty, Head, Name, Search } from "../ui/basics";
import { Action } from "../ui/dialog";
import { MessageDialog, payloadOf } from "../ui/message";
import { Table } from "../ui/table";
import { Tabs } from "../ui/tabs";

function Sessions({ search }: { search: string }): JSX.Element {
  const [ended, setEnded] = useState<SessionShown>();
  const pages = usePages("GET /sessions", { query: { search } });
  const may = useMay("operator");
  return (
    <>
      <Table
        label="Sessions"
        pages={pages}
        keyOf={(row) => row.client_id}
        columns={[
          { title: "Client", cell: (row) => <Name text={row.client_id} />, grow: true },
          { title: "State", cell: (row) => <Badge tone={row.attached ? "good" : "plain"}>{row.attached ? "online" : "away"}</Badge> },
          { title: "Owner", cell: (row) => <Name text={row.owner} />, wide: true },
          { title: "Away since", cell: (row) => (row.detached_ms === null ? "–" : ago(row.detached_ms)), wide: true },
          { title: "Kept for", cell: (row) => (row.expiry_ms === null ? "ever" : row.expiry_ms === 0 ? "while online" : duration(row.expiry_ms)), wide: true },
          {
            title: "Cursor",
            wide: true,
            cell: (row) => row.cursors[0] !== undefined && <a href={link("cursors", { name: row.cursors[0] })}>{short(row.cursors[0], 40)}</a>,
          },
          {
            title: "",
            cell: (row) => may && !row.attached && (
              <button type="button" class="small" onClick={() => setEnded(row)}>End…</button>
            ),
          },
        ]}
        empty={<Empty title={search ? "No session is like that" : "No client keeps a session"}>A client that connects with a session gets what it missed while it was away.</Empty>}
      />
      {ended && (
        <Action
          title={`End the session of ${short(ended.client_id, 60)}`}
          verb="End it"
          danger
          act={async () => {
            await call("DELETE /sessions/{client}", { names: [ended.client_id] });
            return "The session is over.";
          }}
          onClose={() => setEnded(undefined)}
          onDone={pages.again}
        >
          <p>The client loses what waits for it. The log keeps the messages.</p>
        </Action>
      )}
    </>
  );
}

function Retained({ filter }: { filter: string }): JSX.Element {
  const [shown, setShown] = useState<MessageShown>();
  const [clearing, setClearing] = useState(false);
  const may = useMay("operator");
  const chosen = filter || "#";
  const pages = usePages("GET /mqtt/retained", { query: { filter: chosen } });
  return (
    <>
      {may && (
        <div class="form-end">
          <button type="button" onClick={() => setClearing(true)}>Clear all of {short(chosen, 60)}…</button>
        </div>
      )}
      {clearing && (
        <Action
          title={`Clear what is retained of ${short(chosen, 60)}`}
          verb="Clear"
          danger
          act={async () => {
            const done = await call("DELETE /mqtt/retained", { query: { filter: chosen } });
            return `Nothing is retained any more on ${plural(done.topics, "topic")}.`;
          }}
          onClose={() => setClearing(false)}
          onDone={pages.again}
        >
          <p>Later subscribers do not get these messages any more. The log keeps them.</p>
        </Action>
      )}
      <Table
        label="Retained messages"
        pages={pages}
        keyOf={(row) => row.topic}
        open={setShown}
        columns={[
          { title: "Topic", cell: (row) => <Name text={row.topic} />, grow: true },
          { title: "Value", cell: (row) => <bdi class="mono">{previewOf(payloadOf(row), 100)}</bdi> },
          { title: "Size", cell: (row) => bytes(row.value_bytes), number: true, wide: true },
          { title: "When", cell: (row) => ago(row.timestamp_ms), wide: true },
        ]}
        empty={<Empty title="No message is retained">A message that is published with the flag retain is given to later subscribers.</Empty>}
      />
      {shown && <MessageDialog row={shown} onClose={() => setShown(undefined)} />}
    </>
  );
}

function Wills({ search }: { search: string }): JSX.Element {
  const pages = usePages("GET /mqtt/wills", { query: { search } });
  return (
    <Table
      label="Wills"
      pages={pages}
      keyOf={(row) => row.client_id}
      columns={[
        { title: "Client", cell: (row) => <Name text={row.client_id} /> },
        { title: "Topic", cell: (row) => <Name text={row.topic} />, grow: true },
        { title: "QoS", cell: (row) => row.qos, number: true, wide: true },
        { title: "Size", cell: (row) => bytes(row.payload_bytes), number: true, wide: true },
        { title: "Published", cell: (row) => (row.due_ms === null ? "when the client is lost" : `in ${duration(Math.max(0, row.due_ms - Date.now()))}`) },
      ]}
      empty={<Empty title="No client left a will">A client names a message that the broker publishes when the client is lost.</Empty>}
    />
  );
}

export default function SessionsPage({ query }: PageProps): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  const tab = query.tab ?? "sessions";
  return (
    <>
      <Head title="MQTT" about="What MQTT keeps beside the log.">
        <Search value={search} onChange={setSearch} label={tab === "retained" ? "Topic or filter" : "Search clients"} />
      </Head>
      <Tabs page="sessions" current={tab} tabs={[["sessions", "Sessions"], ["retained", "Retained"], ["wills", "Wills"]]} />
      {tab === "retained" ? <Retained filter={settled} /> : tab === "wills" ? <Wills search={settled} /> : <Sessions search={settled} />}
    </>
  );
}

