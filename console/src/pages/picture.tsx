// The picture of a topic: who writes it by which protocol, the log, every cursor of every protocol
// on it and where each stands; live.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { useAsk, useSettled } from "../api/hooks";
import type { Reader, TopicPicture, WriterRow } from "../api/schema";
import { ago, compact, plural, short, whole } from "../format";
import type { PageProps } from "../pages";
import { GROUP_PREFIX, go, link } from "../router";
import { Badge, Card, Empty, Head, Name, Problem, Protocol } from "../ui/basics";
import { MessageDialog, PayloadView } from "../ui/message";
import { Tape } from "./picture_tape";

const EVERY_MS = 1000;
const SPAN_S = 30;
const SHOWN_MAX = 200;

interface Sample {
  readonly at: number;
  readonly end: number;
  readonly places: ReadonlyMap<string, number>;
}

function endOf(picture: TopicPicture): number {
  return picture.partitions.reduce((sum, row) => sum + row.end_offset, 0);
}

function keyOf(row: Reader): string {
  return `${row.protocol} ${row.cursor} ${row.filter}`;
}

function placeOf(row: Reader): number {
  return row.places.reduce((sum, place) => sum + place.offset, 0);
}

/** How fast the log and each reader went on, over the last half minute. */
function useSpeeds(picture: TopicPicture | undefined): (key: string | null) => number | null {
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  useEffect(() => {
    if (!picture) return;
    const now = Date.now() / 1000;
    const next: Sample = {
      at: now,
      end: endOf(picture),
      places: new Map(picture.readers.map((row) => [keyOf(row), placeOf(row)])),
    };
    setSamples((was) => [...was.filter((row) => now - row.at < SPAN_S), next]);
  }, [picture]);
  return useMemo(() => {
    const first = samples[0];
    const last = samples[samples.length - 1];
    return (key) => {
      if (!first || !last || last.at - first.at < 0.5) return null;
      const from = key === null ? first.end : first.places.get(key);
      const to = key === null ? last.end : last.places.get(key);
      return from === undefined || to === undefined ? null : (to - from) / (last.at - first.at);
    };
  }, [samples]);
}

function Writer({ row }: { row: WriterRow }): JSX.Element {
  const several = row.connection === "";
  return (
    <li class={`who ${row.protocol}`}>
      <Protocol name={row.protocol} />
      <div>
        {several ? (
          <span class="faint">perhaps {plural(row.connections, "more client")} of <Name text={row.user} most={40} /></span>
        ) : (
          <strong title={row.address}><Name text={row.client_id || row.address} most={60} /></strong>
        )}
        {!several && <div class="faint">{short(row.user || "anonymous", 30)}</div>}
      </div>
    </li>
  );
}

function Writers({ picture }: { picture: TopicPicture }): JSX.Element {
  return (
    <section class="pic-writers" aria-label="Writers">
      <h2>Writers</h2>
      {picture.writers.length === 0 ? (
        <p class="faint">
          No client that is connected now wrote to it. A message from the page Messages, or of a
          client that left, has no writer here.
        </p>
      ) : (
        <ul class="list">
          {picture.writers.slice(0, SHOWN_MAX).map((row) => (
            <Writer key={`${row.protocol} ${row.connection} ${row.user}`} row={row} />
          ))}
        </ul>
      )}
      {picture.writers.length > SHOWN_MAX && <p class="faint">and {whole(picture.writers.length - SHOWN_MAX)} more{picture.writers_capped && ", at least"}</p>}
    </section>
  );
}

function speedText(value: number | null): string {
  if (value === null) return "measuring…";
  if (value <= 0) return "stands still";
  return value < 10 ? `${value.toFixed(1)}/s` : `${compact(value)}/s`;
}

function ReaderLine({ row, picture, speed }: {
  row: Reader;
  picture: TopicPicture;
  speed: number | null;
}): JSX.Element {
  const tone = row.lag === 0 ? "good" : row.lag < 1000 ? "plain" : "warn";
  const name = row.kind === "group" ? GROUP_PREFIX + row.cursor : row.cursor;
  return (
    <li class={`who reader ${row.protocol}`}>
      <Protocol name={row.protocol} />
      <div class="reader-name">
        <a href={link("cursors", { name })}>
          <Name text={row.cursor} most={60} />
        </a>
        <div class="faint">
          {row.kind}
          {row.open ? "" : ", away"} · <Name text={row.filter} most={50} />
        </div>
      </div>
      <Tape picture={picture} reader={row} />
      <div class="reader-lag">
        <Badge tone={tone}>{row.places.length === 0 || row.lag === 0 ? "at the end" : `${compact(row.lag)} behind`}</Badge>
        <div class="faint">{row.places.length === 0 ? "live" : speedText(speed)}</div>
      </div>
    </li>
  );
}

function Picture({ picture }: { picture: TopicPicture }): JSX.Element {
  const speedOf = useSpeeds(picture);
  const [open, setOpen] = useState(false);
  const readers = [...picture.readers].sort((one, two) => two.lag - one.lag);
  const size = picture.partitions.reduce((sum, row) => sum + row.end_offset - row.start_offset, 0);
  return (
    <>
      <div class="picture">
        <Writers picture={picture} />
        <section class="pic-log" aria-label="The log">
          <h2>The log</h2>
          <div class="log-facts">
            <a href={link("streams", { name: picture.stream })}><Name text={picture.stream} most={40} /></a>
            <span class="faint">
              {picture.partitions.length === 1
                ? `partition ${picture.partition}`
                : plural(picture.partitions.length, "partition")}
            </span>
            <span>{compact(size)} offsets kept</span>
            <strong>{picture.per_minute === null ? "" : `${picture.per_minute_capped ? "over " : ""}${plural(picture.per_minute, "message")} in the last minute`}</strong>
            <span class="faint">the log moves: {speedText(speedOf(null))}</span>
          </div>
        </section>
        <section class="pic-readers" aria-label="Readers">
          <h2>Readers</h2>
          {readers.length === 0 ? (
            <p class="faint">
              Nobody reads it now. Whoever comes may still read all that is kept: by MQTT with
              $replay, by Kafka from the earliest offset, by an AMQP queue with x-onelog-from.
            </p>
          ) : (
            <ul class="list">
              {readers.slice(0, SHOWN_MAX).map((row) => (
                <ReaderLine key={keyOf(row)} row={row} picture={picture} speed={speedOf(keyOf(row))} />
              ))}
            </ul>
          )}
          {readers.length > SHOWN_MAX && <p class="faint">and {whole(readers.length - SHOWN_MAX)} more{picture.readers_capped && ", at least"}</p>}
        </section>
      </div>
      {picture.last && (
        <Card
          title={`Last message, ${ago(picture.last.timestamp_ms)}`}
          extra={<button type="button" class="small" onClick={() => setOpen(true)}>Details</button>}
        >
          <PayloadView row={picture.last} />
        </Card>
      )}
      {open && picture.last && <MessageDialog row={picture.last} onClose={() => setOpen(false)} />}
    </>
  );
}

/** Which topic? A field that knows topics. */
function Chooser({ topic }: { topic: string }): JSX.Element {
  const [text, setText] = useState(topic);
  const settled = useSettled(text);
  useEffect(() => setText(topic), [topic]);
  const { data } = useAsk("GET /topics", { query: { search: settled, limit: 20 } });
  return (
    <form class="actions" onSubmit={(event) => { event.preventDefault(); go("picture", { topic: text }); }}>
      <input
        type="search"
        class="search"
        data-search
        list="topics"
        maxLength={1024}
        placeholder="Topic"
        aria-label="Topic"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <datalist id="topics">
        {data?.items.map((row) => <option key={row.topic} value={row.topic} />)}
      </datalist>
      <button type="submit" class="primary">Show</button>
    </form>
  );
}

function Suggestions(): JSX.Element {
  const { data } = useAsk("GET /topics", { query: { limit: 12 } });
  return (
    <Empty title="Choose a topic">
      {data?.items.length === 0
        ? "There is no topic yet: publish a first message by any protocol."
        : "Its writers, its place in the log and all its readers are one picture."}
      <div class="row center">
        {data?.items.map((row) => (
          <a key={row.topic} class="badge" href={link("picture", { topic: row.topic })}>{short(row.topic, 60)}</a>
        ))}
      </div>
    </Empty>
  );
}

function Shown({ topic }: { topic: string }): JSX.Element {
  const { data, error, again } = useAsk("GET /topics/{topic}", { names: [topic] }, EVERY_MS);
  return (
    <>
      <Problem text={error} again={again} />
      {data ? <Picture picture={data} /> : !error && <p class="faint pad">Loading…</p>}
    </>
  );
}

export default function PicturePage({ query }: PageProps): JSX.Element {
  const topic = query.topic ?? "";
  return (
    <>
      <Head
        title={topic ? <Name text={topic} /> : "Picture"}
        about="Who writes a topic, where it lies in the log, and every cursor of every protocol on it: live."
      >
        {topic && <a href={link("messages", { filter: topic, start: "live" })}>Watch messages</a>}
      </Head>
      <Chooser topic={topic} />
      {topic ? <Shown key={topic} topic={topic} /> : <Suggestions />}
    </>
  );
}
