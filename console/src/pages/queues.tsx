// AMQP: queues, exchanges and the bindings between them.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { usePages, useSettled } from "../api/hooks";
import type { BindingRow, ExchangeRow, QueueRow } from "../api/schema";
import { compact, plural, short, whole } from "../format";
import type { PageProps } from "../pages";
import { link } from "../router";
import { useMay } from "../session";
import { Badge, Empty, Facts, Head, Name, Search } from "../ui/basics";
import { Action, Dialog } from "../ui/dialog";
import { type Column, Table } from "../ui/table";
import { Tabs } from "../ui/tabs";

const exchangeName = (name: string): JSX.Element =>
  name === "" ? <i class="faint">(default)</i> : <Name text={name} />;

const QUEUES: readonly Column<QueueRow>[] = [
  { title: "Queue", cell: (row) => <Name text={row.name} />, grow: true },
  { title: "Virtual host", cell: (row) => <Name text={row.vhost} />, wide: true },
  { title: "Type", cell: (row) => row.type, wide: true },
  { title: "Ready", cell: (row) => <Badge tone={row.ready > 1000 ? "warn" : "plain"}>{compact(row.ready)}</Badge>, number: true },
  { title: "Unacked", cell: (row) => compact(row.unacked), number: true },
  { title: "Consumers", cell: (row) => whole(row.consumers), number: true, wide: true },
  { title: "In", cell: (row) => compact(row.published), number: true, wide: true },
  { title: "Out", cell: (row) => compact(row.delivered), number: true, wide: true },
];

const EXCHANGES: readonly Column<ExchangeRow>[] = [
  { title: "Exchange", cell: (row) => exchangeName(row.name), grow: true },
  { title: "Virtual host", cell: (row) => <Name text={row.vhost} />, wide: true },
  { title: "Type", cell: (row) => row.type },
  {
    title: "Kept",
    cell: (row) => [row.durable ? "durable" : "in memory", row.auto_delete && "auto delete", row.internal && "internal"].filter(Boolean).join(", "),
    wide: true,
  },
];

const BINDINGS: readonly Column<BindingRow>[] = [
  { title: "From", cell: (row) => exchangeName(row.source) },
  { title: "Key", cell: (row) => <Name text={row.routing_key} />, grow: true },
  { title: "To", cell: (row) => <Name text={row.destination} /> },
  { title: "That is", cell: (row) => row.destination_type, wide: true },
  { title: "Virtual host", cell: (row) => <Name text={row.vhost} />, wide: true },
];

type Doing = { readonly verb: "purge" | "delete"; readonly row: QueueRow };

function Queues({ search }: { search: string }): JSX.Element {
  const [shown, setShown] = useState<QueueRow>();
  const [doing, setDoing] = useState<Doing>();
  const pages = usePages("GET /amqp/queues", { query: { search } });
  const may = useMay("operator");
  const act = async ({ verb, row }: Doing): Promise<string> => {
    const names = [row.vhost, row.name] as const;
    if (verb === "delete") {
      await call("DELETE /amqp/queues/{vhost}/{queue}", { names });
      return "The queue is deleted.";
    }
    const done = await call("POST /amqp/queues/{vhost}/{queue}/purge", { names });
    return `${plural(done.messages, "message")} settled.`;
  };
  const begin = (verb: Doing["verb"]): void => {
    if (shown) setDoing({ verb, row: shown });
    setShown(undefined);
  };
  return (
    <>
      <Table
        label="Queues"
        pages={pages}
        columns={QUEUES}
        keyOf={(row) => `${row.vhost}\n${row.name}`}
        open={setShown}
        empty={
          <Empty title={search ? "No queue is like that" : "There is no queue yet"}>
            An AMQP client declares queues. A queue bound to amq.topic takes messages of every protocol.
          </Empty>
        }
      />
      {shown && (
        <Dialog title={<Name text={shown.name} />} onClose={() => setShown(undefined)}>
          <Facts
            rows={[
              ["Virtual host", <Name key="v" text={shown.vhost} />],
              ["Type", shown.type],
              ["Ready", whole(shown.ready)],
              ["Unacknowledged", whole(shown.unacked)],
              ["Consumers", whole(shown.consumers)],
              ["Messages in", whole(shown.published)],
              ["Messages out", whole(shown.delivered)],
              ["Kept", [shown.durable ? "durable" : "in memory", shown.exclusive && "exclusive", shown.auto_delete && "auto delete"].filter(Boolean).join(", ")],
              ["Cursor", <a key="c" href={link("cursors", { name: shown.cursor })}>{short(shown.cursor, 60)}</a>],
            ]}
          />
          {may && (
            <div class="form-end">
              <button type="button" onClick={() => begin("purge")}>Purge…</button>
              <button type="button" class="danger" onClick={() => begin("delete")}>Delete…</button>
            </div>
          )}
        </Dialog>
      )}
      {doing && (
        <Action
          title={doing.verb === "purge" ? `Settle all that waits in ${short(doing.row.name, 60)}` : `Delete the queue ${short(doing.row.name, 60)}`}
          verb={doing.verb === "purge" ? "Purge" : "Delete"}
          danger
          act={() => act(doing)}
          onClose={() => setDoing(undefined)}
          onDone={pages.again}
        >
          <p>
            {plural(doing.row.ready, "message")} that waits here goes to no consumer of this queue. The
            log keeps the records for everybody else.
          </p>
        </Action>
      )}
    </>
  );
}

function Exchanges({ search }: { search: string }): JSX.Element {
  const pages = usePages("GET /amqp/exchanges", { query: { search } });
  return (
    <Table label="Exchanges" pages={pages} columns={EXCHANGES} keyOf={(row) => `${row.vhost}\n${row.name}`} empty={<Empty title="No exchange is like that" />} />
  );
}

function Bindings({ search }: { search: string }): JSX.Element {
  const pages = usePages("GET /amqp/bindings", { query: { search } });
  return (
    <Table
      label="Bindings"
      pages={pages}
      columns={BINDINGS}
      keyOf={(row) => JSON.stringify(row)}
      empty={<Empty title={search ? "No binding is like that" : "Nothing is bound yet"}>A binding leads messages of an exchange to a queue.</Empty>}
    />
  );
}

export default function QueuesPage({ query }: PageProps): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  const tab = query.tab ?? "queues";
  return (
    <>
      <Head title="AMQP" about="Exchanges lead messages to queues. The messages themselves stay in the log.">
        <Search value={search} onChange={setSearch} />
      </Head>
      <Tabs page="queues" current={tab} tabs={[["queues", "Queues"], ["exchanges", "Exchanges"], ["bindings", "Bindings"]]} />
      {tab === "exchanges" ? <Exchanges search={settled} /> : tab === "bindings" ? <Bindings search={settled} /> : <Queues search={settled} />}
    </>
  );
}
