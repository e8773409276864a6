// Topics: a tree to walk down, or a search over all of them, with the last value of each.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useAsk, usePages, useSettled } from "../api/hooks";
import type { ListedTopic, TreeLevel } from "../api/schema";
import { useTopicNow } from "../api/topic_now";
import { ago, compact, plural, visible } from "../format";
import type { PageProps } from "../pages";
import { previewOf } from "../payload";
import { go, link } from "../router";
import { Empty, Head, Name, Search } from "../ui/basics";
import { payloadOf } from "../ui/message";
import { type Column, onePage, Table } from "../ui/table";
import { Tabs } from "../ui/tabs";
import { Views } from "./views";

const NO_TOPIC = (
  <Empty title="No topic yet">
    A topic exists when a message was sent to it; nothing has to be made before.
    <pre>onelog pub sensors/d1/temperature 21.5</pre>
  </Empty>
);

/** The last value of a topic, when it came, and how many came in the last minute. */
function Now({ topic }: { topic: string | null }): JSX.Element {
  const found = useTopicNow(topic);
  if (topic === null) return <></>;
  if (found === undefined) return <span class="faint">…</span>;
  if (found === null || found.last === null) return <span class="faint">–</span>;
  return (
    <span class="now">
      <bdi class="mono last">{previewOf(payloadOf(found.last), 80)}</bdi>
      <span class="faint wide-only">{ago(found.last.timestamp_ms)}</span>
      <span class="faint wide-only">{found.per_minute ? `${compact(found.per_minute)}/min` : ""}</span>
    </span>
  );
}

const LISTED: readonly Column<ListedTopic>[] = [
  { title: "Topic", cell: (row) => <Name text={row.topic} />, grow: true },
  { title: "Last value", cell: (row) => <Now topic={row.topic} /> },
  { title: "Stream", cell: (row) => <Name text={row.stream} />, wide: true },
  { title: "Partition", cell: (row) => row.partition, number: true, wide: true },
];

function Found({ search, filter }: { search: string; filter: string }): JSX.Element {
  const pages = usePages("GET /topics", { query: { search, filter: filter || "#" } });
  return (
    <Table
      label="Topics"
      pages={pages}
      columns={LISTED}
      keyOf={(row) => row.topic}
      open={(row) => go("picture", { topic: row.topic })}
      empty={<Empty title="No topic is like that" />}
    />
  );
}

function Steps({ prefix }: { prefix: string }): JSX.Element {
  const levels = prefix === "" ? [] : prefix.split("/");
  return (
    <nav class="row" aria-label="Levels">
      <a href={link("topics")}>all topics</a>
      {levels.map((name, at) => {
        const up = levels.slice(0, at + 1).join("/");
        return (
          <span key={up} class="row">
            <span class="faint">/</span>
            <a href={link("topics", { prefix: up })}>{name === "" ? "(empty level)" : visible(name).slice(0, 80)}</a>
          </span>
        );
      })}
      {prefix !== "" && (
        <a class="badge" href={link("messages", { filter: `${prefix}/#` })}>
          messages below
        </a>
      )}
    </nav>
  );
}

function Tree({ prefix }: { prefix: string }): JSX.Element {
  const { data, error, again } = useAsk("GET /topic-tree", { query: { prefix } });
  const columns: readonly Column<TreeLevel>[] = [
    {
      title: "Level",
      grow: true,
      cell: (row) => (
        <>
          <span class="faint">{row.below > 0 ? "▸ " : "  "}</span>
          <Name text={row.name} />
        </>
      ),
    },
    { title: "Last value", cell: (row) => <Now topic={row.is_topic ? row.topic : null} /> },
    { title: "Topics below", cell: (row) => (row.below > 0 ? compact(row.below) : ""), number: true },
    {
      title: "",
      cell: (row) =>
        row.is_topic && (
          <span class="row">
            <a href={link("picture", { topic: row.topic })}>picture</a>
            <a class="wide-only" href={link("messages", { filter: row.topic })}>messages</a>
          </span>
        ),
    },
  ];
  return (
    <>
      <Steps prefix={prefix} />
      {data && !data.complete && (
        <div class="banner">
          <span>The log is still being looked at, or it is too large to show all of it: there may be more.</span>
          <button type="button" class="quiet" onClick={again}>Look again</button>
        </div>
      )}
      <Table
        label="Levels of topics"
        pages={onePage(data?.items, error, again)}
        columns={columns}
        keyOf={(row) => row.topic}
        open={(row) =>
          row.below > 0 ? go("topics", { prefix: row.topic }) : go("picture", { topic: row.topic })
        }
        empty={prefix === "" ? NO_TOPIC : <Empty title={`Nothing is below ${plural(prefix.split("/").length, "level")}`} />}
      />
    </>
  );
}

export default function TopicsPage({ query }: PageProps): JSX.Element {
  const [search, setSearch] = useState(query.search ?? "");
  const settled = useSettled(search);
  const isFilter = /[+#]/.test(settled);
  const views = query.tab === "views";
  return (
    <>
      <Head
        title="Topics"
        about={views ? "Filters that have a name. Kafka clients read each as one topic." : "Walk down the levels, or search: a part of a name, or a filter with + and #."}
      >
        <Search value={search} onChange={setSearch} label={views ? "Search views" : "Search topics"} />
      </Head>
      <Tabs page="topics" current={views ? "views" : "topics"} tabs={[["topics", "Topics"], ["views", "Views"]]} />
      {views ? <Views search={settled} /> : settled === "" ? (
        <Tree key={query.prefix ?? ""} prefix={query.prefix ?? ""} />
      ) : (
        <Found search={isFilter ? "" : settled} filter={isFilter ? settled : ""} />
      )}
    </>
  );
}
