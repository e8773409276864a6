// Connections of every protocol: find one, end one.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { usePages, useSettled } from "../api/hooks";
import type { ConnectionRow } from "../api/schema";
import { ago, bytes, time, whole } from "../format";
import type { PageProps } from "../pages";
import { go } from "../router";
import { useMay } from "../session";
import { Badge, Choice, Empty, Facts, Head, Name, Protocol, Search } from "../ui/basics";
import { Action, Dialog, Field } from "../ui/dialog";
import { type Column, Table } from "../ui/table";

const COLUMNS: readonly Column<ConnectionRow>[] = [
  { title: "Client", cell: (row) => (row.client_id ? <Name text={row.client_id} /> : <Name text={row.address} />), grow: true },
  { title: "Protocol", cell: (row) => <Protocol name={row.protocol} /> },
  { title: "User", cell: (row) => (row.user === null ? "–" : <Name text={row.user} most={40} />) },
  { title: "Address", cell: (row) => row.address, wide: true },
  { title: "By", cell: (row) => row.via, wide: true },
  { title: "State", cell: (row) => <Badge tone={row.state === "connected" ? "good" : "warn"}>{row.state}</Badge>, wide: true },
  { title: "Subscriptions", cell: (row) => whole(row.subscriptions), number: true, wide: true },
];

function Details({ row, onClose, onKick }: {
  row: ConnectionRow;
  onClose: () => void;
  onKick: (() => void) | null;
}): JSX.Element {
  return (
    <Dialog title={<Name text={row.client_id || row.id} />} onClose={onClose}>
      <Facts
        rows={[
          ["Protocol", <span key="p"><Protocol name={row.protocol} /> {row.version}</span>],
          ["User", row.user === null ? "not logged in" : <Name key="u" text={row.user} />],
          ["State", row.state],
          ["Address", row.address],
          ["Listener", `${row.listener} (${row.via})`],
          ["Since", row.connected_ms === null ? "–" : `${time(row.connected_ms)}, ${ago(row.connected_ms)}`],
          ["Received", bytes(row.received_bytes)],
          ["Sent", bytes(row.sent_bytes)],
          ["Subscriptions", whole(row.subscriptions)],
        ]}
      />
      {onKick !== null && (
        <div class="form-end">
          <button type="button" class="danger" onClick={onKick}>
            Disconnect…
          </button>
        </div>
      )}
    </Dialog>
  );
}

type Wanted = "" | "mqtt" | "kafka" | "amqp";
const PROTOCOLS: readonly (readonly [Wanted, string])[] = [
  ["", "every protocol"], ["mqtt", "MQTT"], ["kafka", "Kafka"], ["amqp", "AMQP"],
];

export default function ConnectionsPage({ query }: PageProps): JSX.Element {
  const [search, setSearch] = useState("");
  const [shown, setShown] = useState<ConnectionRow>();
  const [kicked, setKicked] = useState<ConnectionRow>();
  const [reason, setReason] = useState("");
  const protocol = PROTOCOLS.find(([key]) => key === query.protocol)?.[0] ?? "";
  const settled = useSettled(search);
  const pages = usePages("GET /connections", { query: { search: settled, protocol } });
  const may = useMay("operator");
  const kick = async (row: ConnectionRow): Promise<string> => {
    const body = reason === "" ? {} : { reason };
    await call("POST /connections/{connection}/kick", { names: [row.id], body });
    return "The connection is ended.";
  };
  return (
    <>
      <Head title="Connections" about="Clients that are connected now, whatever they speak.">
        <Search value={search} onChange={setSearch} label="Search clients" about="Search client, user, address" />
        <Choice
          label="Protocol"
          value={protocol}
          options={PROTOCOLS}
          onChange={(next) => go("connections", { protocol: next })}
        />
        <button type="button" onClick={pages.again}>Refresh</button>
      </Head>
      <Table
        label="Connections"
        pages={pages}
        columns={COLUMNS}
        keyOf={(row) => row.id}
        open={setShown}
        empty={
          <Empty title={settled ? "No connection is like that" : "Nobody is connected"}>
            Clients find the broker at the addresses on the page Nodes.
          </Empty>
        }
      />
      {shown && (
        <Details
          row={shown}
          onClose={() => setShown(undefined)}
          onKick={may ? () => { setKicked(shown); setShown(undefined); } : null}
        />
      )}
      {kicked && (
        <Action
          title="End this connection"
          verb="Disconnect"
          danger
          act={() => kick(kicked)}
          onClose={() => setKicked(undefined)}
          onDone={pages.again}
        >
          <p>The client may connect again at once. Disable its user to keep it out.</p>
          <Field label="Reason" hint="The client sees it where its protocol can say it.">
            <input maxLength={200} placeholder="ended by an operator" value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
          </Field>
        </Action>
      )}
    </>
  );
}

