// The whole at a glance: what flows by which protocol, what there is, what is wrong.
import type { JSX } from "preact";
import { useAsk } from "../api/hooks";
import { type RatesEvent, useLive } from "../api/live";
import type { Overview, SeenCluster, TroubleInfo } from "../api/schema";
import { ago, byteRate, bytes, compact, duration, plural, rate, short, whole } from "../format";
import { link } from "../router";
import { Badge, Card, Empty, Facts, Head, Name, Problem, Protocol, Stat, type Tone } from "../ui/basics";
import { type Line, Plot } from "../ui/plot";

type Rates = RatesEvent["rates"];
type Field = keyof Rates["protocols"][string];

const PROTOCOLS = ["mqtt", "kafka", "amqp"] as const;

function lines(history: readonly RatesEvent[], field: Field): readonly Line[] {
  return PROTOCOLS.map((name) => ({
    label: name,
    color: name,
    values: history.map((row) => row.rates.protocols[name]?.[field] ?? null),
  }));
}

function Traffic({ history }: { history: readonly RatesEvent[] }): JSX.Element {
  const times = history.map((row) => row.time_ms / 1000);
  const last = history[history.length - 1];
  return (
    <div class="cards">
      <Card title="Messages in">
        <Plot
          label="Messages received per second, by protocol"
          times={times}
          lines={lines(history, "received_messages")}
          format={(value) => rate(value)}
        />
      </Card>
      <Card title="Bytes out">
        <Plot
          label="Bytes sent per second, by protocol"
          times={times}
          lines={lines(history, "sent_bytes")}
          format={(value) => byteRate(value)}
        />
      </Card>
      <Card title="Protocols" wide>
        <div class="scroll-x">
          <table aria-label="Protocols">
            <thead>
              <tr>
                <th>Protocol</th>
                <th class="number">Connections</th>
                <th class="number">In</th>
                <th class="number">Out</th>
                <th class="number wide-only">Bytes in</th>
                <th class="number wide-only">Bytes out</th>
                <th class="number wide-only">Messages since the start</th>
              </tr>
            </thead>
            <tbody>
              {PROTOCOLS.map((name) => {
                const rates = last?.rates.protocols[name];
                const totals = last?.totals.protocols[name];
                return (
                  <tr key={name}>
                    <td>
                      <a href={link("connections", { protocol: name })}>
                        <Protocol name={name} />
                      </a>
                    </td>
                    <td class="number">{totals ? whole(totals.connections) : "not served"}</td>
                    <td class="number">{rate(rates?.received_messages)}</td>
                    <td class="number">{rate(rates?.sent_messages)}</td>
                    <td class="number wide-only">{byteRate(rates?.received_bytes)}</td>
                    <td class="number wide-only">{byteRate(rates?.sent_bytes)}</td>
                    <td class="number wide-only">{compact(totals?.received_messages)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      </Card>
    </div>
  );
}

function Trouble({ row }: { row: TroubleInfo }): JSX.Element {
  return (
    <li>
      <div class="row">
        <Badge tone={row.standing ? "bad" : "warn"}>{row.standing ? "lasts" : "over"}</Badge>
        <strong>{short(row.kind)}</strong>
        <Name text={row.place} />
        <span class="faint">
          {plural(row.count, "time")}, last {ago(row.last_ms)}
        </span>
      </div>
      <div>{short(row.error, 400)}</div>
    </li>
  );
}

function Troubles({ overview }: { overview: Overview }): JSX.Element {
  const rows = [...overview.alarms, ...overview.incidents].reverse();
  return (
    <Card title="Alarms and incidents">
      {rows.length === 0 ? (
        <p class="faint">Nothing is wrong, and nothing was since the start.</p>
      ) : (
        <ul class="list">
          {rows.map((row) => (
            <Trouble key={`${row.kind} ${row.place}`} row={row} />
          ))}
        </ul>
      )}
    </Card>
  );
}

function Disk({ overview }: { overview: Overview }): JSX.Element {
  const disk = overview.disk;
  if (disk === null) {
    return (
      <Card title="Disk">
        <Empty title="The disk did not answer in time" />
      </Card>
    );
  }
  const used = disk.total_bytes - disk.free_bytes;
  const part = disk.total_bytes > 0 ? used / disk.total_bytes : 0;
  const tone = disk.full || part > 0.95 ? "bad" : part > 0.85 ? "warn" : "";
  return (
    <Card title="Disk" extra={disk.full && <Badge tone="bad">full: writes are refused</Badge>}>
      <div class={`bar ${tone}`}>
        <i style={{ width: `${Math.round(part * 100)}%` }} />
      </div>
      <p class="pad">
        {bytes(disk.free_bytes)} free of {bytes(disk.total_bytes)}; records take{" "}
        {bytes(overview.size_bytes)}.
      </p>
    </Card>
  );
}

/** The cluster in a line; the page of nodes has the rest. */
function Cluster({ seen }: { seen: SeenCluster }): JSX.Element {
  const up = seen.nodes.filter((row) => row.epoch > 0).length;
  return (
    <a class={seen.is_healthy ? "card line" : "banner line"} href={link("nodes")}>
      <span>
        <Badge tone={seen.is_healthy ? "good" : "bad"}>{seen.is_healthy ? "healthy" : "unhealthy"}</Badge>{" "}
        {seen.is_healthy ? `Cluster of ${plural(seen.nodes.length, "node")}, all ${whole(seen.totals.partitions)} partitions with all replicas in sync` : short(seen.summary.replace(/^unhealthy: /, ""), 300)}
      </span>
      <span>{up} of {plural(seen.nodes.length, "node")} run ▸</span>
    </a>
  );
}

const TONES: Readonly<Record<string, Tone>> = { ok: "good", degraded: "warn", failing: "bad" };

export default function OverviewPage(): JSX.Element {
  const live = useLive();
  const { data, error, again } = useAsk("GET /overview", {}, 5000);
  const cluster = useAsk("GET /cluster", {}, 5000).data;
  const rates = live.history[live.history.length - 1]?.rates ?? data?.rates;
  const counts = data?.counts;
  const server = data?.server;
  const status = error === undefined ? (data?.status ?? "…") : "not known";
  return (
    <>
      <Head
        title="Overview"
        about={
          server && (
            <>
              <Name text={server.node_name} /> · OneLog {server.version} · up{" "}
              {duration(server.uptime_s * 1000)}
              {cluster?.mode === "etcd" && <> · rates, connections and alarms of this node</>}
            </>
          )
        }
      />
      <Problem text={error} again={again} />
      {cluster?.mode === "etcd" && <Cluster seen={cluster} />}
      <div class="stats">
        <Stat label="Status" value={status} tone={TONES[status] ?? "plain"} />
        <Stat label="Published" value={rate(rates?.published_messages)} />
        <Stat label="Syncs to disk" value={rate(rates?.syncs)} />
        <Stat label="Connections" value={whole(counts?.connections)} />
        <Stat label="Sessions" value={whole(counts?.sessions)} note={counts && `${whole(counts.sessions_attached)} online`} />
        <Stat label="Streams" value={whole(counts?.streams)} note={counts && plural(counts.partitions, "partition")} />
        <Stat
          label="Stopped partitions"
          value={whole(counts?.stopped_partitions)}
          tone={counts && counts.stopped_partitions > 0 ? "bad" : "plain"}
        />
        <Stat label="Cursors" value={whole(counts?.cursors)} />
      </div>
      <Traffic history={live.history} />
      {data && (
        <div class="cards">
          <Troubles overview={data} />
          <Disk overview={data} />
          <Card title="Process" wide>
            <Facts
              rows={[
                ["Kernel", server?.kernel ?? "–"],
                ["Python", server?.python ?? "–"],
                ["Event loop", server?.event_loop ?? "–"],
                ["Process", String(server?.pid ?? "–")],
                ["Data", <Name key="d" text={server?.data_dir ?? ""} />],
                ["Configuration", server?.config_file ? <Name text={server.config_file} /> : "none: defaults"],
                ...(server?.listeners ?? []).map(
                  (row) => [`Listener ${row.name}`, row.url || row.address] as const,
                ),
              ]}
            />
          </Card>
        </div>
      )}
    </>
  );
}
