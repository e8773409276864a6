// Named views: filters that have a name, which Kafka clients read as one topic.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { usePages } from "../api/hooks";
import type { NamedView } from "../api/schema";
import { short } from "../format";
import { link } from "../router";
import { useMay } from "../session";
import { Empty, Name } from "../ui/basics";
import { Action, Field } from "../ui/dialog";
import { type Column, Table } from "../ui/table";

function NewView({ onClose, onDone }: { onClose: () => void; onDone: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const [filter, setFilter] = useState("");
  const act = async (): Promise<string> => {
    await call("POST /views", { body: { name: name.trim(), filter: filter.trim() } });
    return "Kafka clients see it as a topic now.";
  };
  return (
    <Action title="New view" verb="Make it" act={act} onClose={onClose} onDone={onDone}>
      <Field label="Name" hint="As Kafka clients call it: letters, digits, dots, dashes.">
        <input required maxLength={249} value={name} placeholder="all-sensors" onInput={(event) => setName(event.currentTarget.value)} />
      </Field>
      <Field label="Filter" hint="Which topics it shows. + is any one level, # is all that follows.">
        <input required value={filter} placeholder="sensors/#" onInput={(event) => setFilter(event.currentTarget.value)} />
      </Field>
    </Action>
  );
}

export function Views({ search }: { search: string }): JSX.Element {
  const [adding, setAdding] = useState(false);
  const [removed, setRemoved] = useState<NamedView>();
  const pages = usePages("GET /views", { query: { search } });
  const may = useMay("operator");
  const columns: readonly Column<NamedView>[] = [
    { title: "View", cell: (row) => <Name text={row.name} /> },
    { title: "Filter", cell: (row) => <Name text={row.filter} />, grow: true },
    { title: "", cell: (row) => <a href={link("messages", { filter: row.filter })}>messages</a>, wide: true },
    ...(may ? [{ title: " ", cell: (row: NamedView) => <button type="button" class="small" onClick={() => setRemoved(row)}>Remove…</button> }] : []),
  ];
  return (
    <>
      {may && (
        <div class="row">
          <button type="button" class="primary" onClick={() => setAdding(true)}>New view</button>
        </div>
      )}
      <Table
        label="Views"
        pages={pages}
        keyOf={(row) => row.name}
        columns={columns}
        empty={
          <Empty title={search ? "No view is like that" : "No filter has a name yet"}>
            A view lets Kafka clients read a filter as one topic, past messages included.
            <pre>onelog view create all-sensors 'sensors/#'</pre>
          </Empty>
        }
      />
      {adding && <NewView onClose={() => setAdding(false)} onDone={pages.again} />}
      {removed && (
        <Action
          title={`Take the name ${short(removed.name, 60)} away`}
          verb="Remove"
          danger
          act={async () => {
            await call("DELETE /views/{view}", { names: [removed.name] });
            return "The view is gone; no record is deleted.";
          }}
          onClose={() => setRemoved(undefined)}
          onDone={pages.again}
        >
          <p>Kafka clients that read it get an error. No record is deleted.</p>
        </Action>
      )}
    </>
  );
}
