// Kafka: consumer groups with their members and offsets, and transactions.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { useAsk, usePages, useSettled } from "../api/hooks";
import type { ConsumerGroupRow, TransactionRow } from "../api/schema";
import { ago, compact, duration, plural, short, whole } from "../format";
import type { PageProps } from "../pages";
import { GROUP_PREFIX, go, link } from "../router";
import { useMay } from "../session";
import { Badge, Card, Choice, Empty, Head, Name, Problem, Search } from "../ui/basics";
import { Action, Field } from "../ui/dialog";
import { type Column, onePage, Table } from "../ui/table";
import { Tabs } from "../ui/tabs";
import { SeekForm, type SeekTo } from "./seek_form";

const GROUPS: readonly Column<ConsumerGroupRow>[] = [
  { title: "Group", cell: (row) => <Name text={row.name} />, grow: true },
  { title: "State", cell: (row) => <Badge tone={row.state === "Stable" ? "good" : "plain"}>{row.state}</Badge> },
  { title: "Members", cell: (row) => whole(row.member_count), number: true, wide: true },
  { title: "Topics", cell: (row) => <Name text={[...new Set(row.positions.map((at) => at.topic))].join(", ")} />, wide: true },
  { title: "Lag", cell: (row) => <Badge tone={row.lag > 1000 ? "warn" : "plain"}>{compact(row.lag)}</Badge>, number: true },
];

const TRANSACTIONS: readonly Column<TransactionRow>[] = [
  { title: "Transactional id", cell: (row) => <Name text={row.id} />, grow: true },
  { title: "State", cell: (row) => <Badge>{row.state}</Badge> },
  { title: "Producer", cell: (row) => `${row.producer_id}, epoch ${row.epoch}`, wide: true },
  { title: "Open for", cell: (row) => (row.started_ms === null ? "–" : duration(Date.now() - row.started_ms)), wide: true },
  { title: "Partitions", cell: (row) => <Name text={row.partitions.join(", ")} />, wide: true },
  { title: "Changed", cell: (row) => ago(row.updated_ms), wide: true },
];

function List({ tab }: { tab: string }): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  return (
    <>
      <Head title="Kafka" about="Groups share the partitions of Kafka topics. Any topic and any view is a Kafka topic, too.">
        <Search value={search} onChange={setSearch} />
      </Head>
      <Tabs page="groups" current={tab} tabs={[["groups", "Groups"], ["transactions", "Transactions"]]} />
      {tab === "transactions" ? <Transactions search={settled} /> : <Groups search={settled} />}
    </>
  );
}

function Groups({ search }: { search: string }): JSX.Element {
  const pages = usePages("GET /kafka/groups", { query: { search } });
  return (
    <Table
      label="Groups"
      pages={pages}
      columns={GROUPS}
      keyOf={(row) => row.name}
      open={(row) => go("groups", { name: row.name })}
      empty={<Empty title={search ? "No group is like that" : "There is no group yet"}>A Kafka consumer with a group.id makes one.</Empty>}
    />
  );
}

function Transactions({ search }: { search: string }): JSX.Element {
  const pages = usePages("GET /kafka/transactions", { query: { search } });
  const [aborted, setAborted] = useState<TransactionRow>();
  const may = useMay("operator");
  const abort: Column<TransactionRow> = {
    title: "",
    cell: (row) => row.state === "Ongoing" && <button type="button" class="small" onClick={() => setAborted(row)}>Abort…</button>,
  };
  return (
    <>
      <Table
        label="Transactions"
        pages={pages}
        columns={may ? [...TRANSACTIONS, abort] : TRANSACTIONS}
        keyOf={(row) => row.id}
        empty={<Empty title="No producer has a transactional id" />}
      />
      {aborted && (
        <Action
          title={`Abort the transaction of ${short(aborted.id, 60)}`}
          verb="Abort"
          danger
          act={async () => {
            await call("POST /kafka/transactions/{transaction}/abort", { names: [aborted.id] });
            return "The transaction is aborted.";
          }}
          onClose={() => setAborted(undefined)}
          onDone={pages.again}
        >
          <p>What it wrote is skipped by consumers that read committed records, and its producer is fenced: it has to begin anew.</p>
        </Action>
      )}
    </>
  );
}

function SeekGroup({ group, onClose, onDone }: {
  group: ConsumerGroupRow;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const topics = [...new Set(group.positions.map((row) => row.topic))];
  const [topic, setTopic] = useState(topics[0] ?? "");
  const act = async (to: SeekTo): Promise<string> => {
    await call("POST /kafka/groups/{group}/seek", { names: [group.name], body: { topic, ...to } });
    return "The group goes on there.";
  };
  return (
    <SeekForm title="Move the group" act={act} onClose={onClose} onDone={onDone}>
      <Field label="Kafka topic">
        {topics.length > 0 ? (
          <Choice label="Kafka topic" value={topic} options={topics.map((name) => [name, short(name, 80)] as const)} onChange={setTopic} />
        ) : (
          <input required value={topic} maxLength={249} onInput={(event) => setTopic(event.currentTarget.value)} />
        )}
      </Field>
    </SeekForm>
  );
}

function One({ name }: { name: string }): JSX.Element {
  const { data, error, again } = useAsk("GET /kafka/groups/{group}", { names: [name] }, 2000);
  const [doing, setDoing] = useState<"seek" | "delete">();
  const may = useMay("operator");
  const close = (): void => setDoing(undefined);
  const busy = (data?.member_count ?? 0) > 0;
  return (
    <>
      <Head title={<Name text={name} />} about={data && `${data.state}, generation ${data.generation}, ${plural(data.member_count, "member")}, lag ${whole(data.lag)}`}>
        <a href={link("groups")}>All groups</a>
        <a href={link("cursors", { name: GROUP_PREFIX + name })}>Lag over time</a>
        {may && data && (
          <>
            <button type="button" disabled={busy} title={busy ? "Stop its members first" : ""} onClick={() => setDoing("seek")}>Move…</button>
            <button type="button" disabled={busy} title={busy ? "Stop its members first" : ""} onClick={() => setDoing("delete")}>Forget…</button>
          </>
        )}
      </Head>
      <Problem text={error} again={again} />
      {data && (
        <>
          <Card title="Offsets">
            <Table
              label="Offsets"
              pages={onePage(data.positions)}
              keyOf={(row) => `${row.topic}\n${row.partition}`}
              columns={[
                { title: "Kafka topic", cell: (row) => <Name text={row.topic} />, grow: true },
                { title: "Partition", cell: (row) => row.partition, number: true },
                { title: "Committed", cell: (row) => whole(row.offset), number: true },
                { title: "End", cell: (row) => whole(row.end), number: true, wide: true },
                { title: "Lag", cell: (row) => (row.end === null ? "–" : whole(Math.max(0, row.end - row.offset))), number: true },
                { title: "When", cell: (row) => ago(row.committed_ms), wide: true },
              ]}
              empty={<Empty title="It committed no offset yet" />}
            />
          </Card>
          <Card title="Members">
            <Table
              label="Members"
              pages={onePage(data.members)}
              keyOf={(row) => row.id}
              columns={[
                { title: "Client", cell: (row) => <Name text={row.client_id} /> },
                { title: "Host", cell: (row) => row.host },
                { title: "Member", cell: (row) => <Name text={row.id} />, grow: true, wide: true },
              ]}
              empty={<Empty title="Nobody reads for this group now" />}
            />
          </Card>
        </>
      )}
      {doing === "seek" && data && <SeekGroup group={data} onClose={close} onDone={again} />}
      {doing === "delete" && (
        <Action
          title={`Forget the group ${short(name, 60)}`}
          verb="Forget"
          danger
          act={async () => {
            await call("DELETE /kafka/groups/{group}", { names: [name] });
            return "The group is forgotten.";
          }}
          onClose={close}
          onDone={() => go("groups")}
        >
          <p>Its offsets are gone. Consumers that use the name again begin where their settings say.</p>
        </Action>
      )}
    </>
  );
}

export default function GroupsPage({ query }: PageProps): JSX.Element {
  return query.name ? <One key={query.name} name={query.name} /> : <List tab={query.tab ?? "groups"} />;
}
