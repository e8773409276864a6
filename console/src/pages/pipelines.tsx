// Pipelines: what `onelog pipeline` runs on this broker's data, and how far each target is.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useAsk, usePages, useSettled } from "../api/hooks";
import type { PipelineInfo } from "../api/schema";
import { ago, compact, duration, short } from "../format";
import type { PageProps } from "../pages";
import { go, link } from "../router";
import { Badge, Card, Empty, Facts, Head, Name, Problem, Search, type Tone } from "../ui/basics";
import { type Column, onePage, Table } from "../ui/table";

const TONES: Readonly<Record<string, Tone>> = {
  running: "good", starting: "warn", failed: "bad", killed: "bad",
};

/** How long ago a run began; its own words where these are no time. */
function since(text: string): string {
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? short(text, 25) : ago(ms);
}

function Phase({ name }: { name: string }): JSX.Element {
  return <Badge tone={TONES[name] ?? "plain"}>{name}</Badge>;
}

const COLUMNS: readonly Column<PipelineInfo>[] = [
  { title: "Pipeline", cell: (row) => <Name text={row.name} />, grow: true },
  { title: "Phase", cell: (row) => <Phase name={row.phase} /> },
  { title: "Targets", cell: (row) => row.targets.length, number: true },
  { title: "Rows", cell: (row) => compact(row.targets.reduce((sum, one) => sum + one.rows, 0)), number: true, wide: true },
  { title: "Lag", cell: (row) => compact(row.targets.reduce((sum, one) => sum + one.lag, 0)), number: true },
  { title: "Started", cell: (row) => <span title={short(row.started, 40)}>{since(row.started)}</span>, wide: true },
];

function List(): JSX.Element {
  const [search, setSearch] = useState("");
  const settled = useSettled(search);
  const pages = usePages("GET /pipelines", { query: { search: settled } });
  return (
    <>
      <Head title="Pipelines" about="Topics that become tables and other topics, on Spark.">
        <Search value={search} onChange={setSearch} label="Search pipelines" />
        <button type="button" onClick={pages.again}>Refresh</button>
      </Head>
      <Table
        label="Pipelines"
        pages={pages}
        columns={COLUMNS}
        keyOf={(row) => row.name}
        open={(row) => go("pipelines", { name: row.name })}
        empty={
          <Empty title={settled ? "No pipeline is like that" : "No pipeline has run on this data"}>
            A file says which topics become which tables; one command runs it.
            <pre>make spark{"\n"}onelog pipeline run my-pipeline.toml</pre>
          </Empty>
        }
      />
    </>
  );
}

function One({ name }: { name: string }): JSX.Element {
  const { data, error, again } = useAsk("GET /pipelines/{pipeline}", { names: [name] }, 2000);
  return (
    <>
      <Head title={<Name text={name} />} about={data && <Phase name={data.phase} />}>
        <a href={link("pipelines")}>All pipelines</a>
      </Head>
      <Problem text={error} again={again} />
      {data && (
        <>
          <Problem text={data.error || undefined} />
          <Card>
            <Facts
              rows={[
                ["File", <Name key="f" text={data.file} />],
                ["Spark", <Name key="m" text={data.master} />],
                ["Mode", data.mode],
                ["Process", String(data.pid)],
                ["Started", short(data.started, 40)],
              ]}
            />
          </Card>
          <Table
            label="Targets"
            pages={onePage(data.targets)}
            keyOf={(row) => row.target}
            columns={[
              { title: "Target", cell: (row) => <Name text={row.target} />, grow: true },
              { title: "State", cell: (row) => <Name text={row.state} /> },
              { title: "Rows", cell: (row) => compact(row.rows), number: true },
              { title: "Rows/s", cell: (row) => compact(row.rows_per_s), number: true, wide: true },
              { title: "Lag", cell: (row) => compact(row.lag), number: true },
              { title: "Batch", cell: (row) => row.batch, number: true, wide: true },
              { title: "Took", cell: (row) => duration(row.batch_ms), number: true, wide: true },
            ]}
            empty={<Empty title="No target is known yet" />}
          />
        </>
      )}
    </>
  );
}

export default function PipelinesPage({ query }: PageProps): JSX.Element {
  return query.name ? <One key={query.name} name={query.name} /> : <List />;
}
