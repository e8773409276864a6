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
import { DeleteExchange, NewBinding, NewExchange, NewQueue, Unbind } from "./queue_forms";

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

interface ListProps {
  readonly search: string;
  /** Whether the form for a new one is open. */
  readonly adding: boolean;
  readonly onAdded: () => void;
}

function Queues({ search, adding, onAdded }: ListProps): JSX.Element {
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
      {adding && <NewQueue onClose={onAdded} onDone={pages.again} />}
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

function Exchanges({ search, adding, onAdded }: ListProps): JSX.Element {
  const pages = usePages("GET /amqp/exchanges", { query: { search } });
  const [going, setGoing] = useState<ExchangeRow>();
  const may = useMay("operator");
  const isOwn = ({ name }: ExchangeRow): boolean => name !== "" && !name.startsWith("amq.");
  const end: Column<ExchangeRow> = {
    title: "",
    cell: (row) => isOwn(row) && <button type="button" class="small" onClick={() => setGoing(row)}>Delete…</button>,
  };
  return (
    <>
      <Table
        label="Exchanges"
        pages={pages}
        columns={may ? [...EXCHANGES, end] : EXCHANGES}
        keyOf={(row) => `${row.vhost}\n${row.name}`}
        empty={<Empty title="No exchange is like that" />}
      />
      {adding && <NewExchange onClose={onAdded} onDone={pages.again} />}
      {going && <DeleteExchange row={going} onClose={() => setGoing(undefined)} onDone={pages.again} />}
    </>
  );
}

function Bindings({ search, adding, onAdded }: ListProps): JSX.Element {
  const pages = usePages("GET /amqp/bindings", { query: { search } });
  const [going, setGoing] = useState<BindingRow>();
  const may = useMay("operator");
  const end: Column<BindingRow> = {
    title: "",
    cell: (row) => <button type="button" class="small" onClick={() => setGoing(row)}>Unbind…</button>,
  };
  return (
    <>
      <Table
        label="Bindings"
        pages={pages}
        columns={may ? [...BINDINGS, end] : BINDINGS}
        keyOf={(row) => JSON.stringify(row)}
        empty={<Empty title={search ? "No binding is like that" : "Nothing is bound yet"}>A binding leads messages of an exchange to a queue.</Empty>}
      />
      {adding && <NewBinding onClose={onAdded} onDone={pages.again} />}
      {going && <Unbind row={going} onClose={() => setGoing(undefined)} onDone={pages.again} />}
    </>
  );
}

const LISTS = { queues: Queues, exchanges: Exchanges, bindings: Bindings } as const;
const ADDS = { queues: "New queue", exchanges: "New exchange", bindings: "New binding" } as const;

export default function QueuesPage({ query }: PageProps): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  const [adding, setAdding] = useState(false);
  const may = useMay("operator");
  const tab = query.tab === "exchanges" || query.tab === "bindings" ? query.tab : "queues";
  const List = LISTS[tab];
  return (
    <>
      <Head title="AMQP" about="Exchanges lead messages to queues. The messages themselves stay in the log.">
        <Search value={search} onChange={setSearch} />
        {may && <button type="button" class="primary" onClick={() => setAdding(true)}>{ADDS[tab]}</button>}
      </Head>
      <Tabs page="queues" current={tab} tabs={[["queues", "Queues"], ["exchanges", "Exchanges"], ["bindings", "Bindings"]]} />
      <List search={settled} adding={adding} onAdded={() => setAdding(false)} />
    </>
  );
}
