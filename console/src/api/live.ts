// Live events: one connection for rates and alarms, whoever looks; one more for each tail.
import { useEffect, useState } from "preact/hooks";
import type { MessageShown, Overview, TroubleInfo } from "./schema";

export interface RatesEvent {
  readonly time_ms: number;
  readonly totals: Overview["totals"];
  readonly rates: Overview["rates"];
}

export interface Live {
  readonly connected: boolean;
  readonly status: string;
  readonly alarms: readonly TroubleInfo[];
  readonly history: readonly RatesEvent[];
}

const HISTORY_MAX = 300;

let live: Live = { connected: false, status: "ok", alarms: [], history: [] };
const watchers = new Set<(next: Live) => void>();
let source: EventSource | null = null;
let onBack: () => void = () => undefined;

/** What to do when the broker answers again: it may be another one, which knows no sessions. */
export function whenBack(act: () => void): void {
  onBack = act;
}

function publish(change: Partial<Live>): void {
  live = { ...live, ...change };
  for (const tell of watchers) tell(live);
}

function on<T>(stream: EventSource, name: string, act: (body: T) => void): void {
  stream.addEventListener(name, (event) => {
    act(JSON.parse((event as MessageEvent<string>).data) as T);
  });
}

function open(): void {
  source = new EventSource("/api/v1/events?interval_ms=1000");
  source.onopen = () => {
    const wasLost = !live.connected && live.history.length > 0;
    publish({ connected: true });
    if (wasLost) onBack();
  };
  source.onerror = () => publish({ connected: false });
  on<RatesEvent>(source, "rates", (row) => {
    publish({ connected: true, history: [...live.history.slice(1 - HISTORY_MAX), row] });
  });
  on<{ status: string; alarms: readonly TroubleInfo[] }>(source, "alarms", (row) => {
    publish({ status: row.status, alarms: row.alarms });
  });
}

/** Begin to follow again, as somebody else. */
export function reopenLive(): void {
  source?.close();
  source = null;
  if (watchers.size > 0) open();
}

/** Rates and alarms of the last minutes. */
export function useLive(): Live {
  const [now, setNow] = useState(live);
  useEffect(() => {
    watchers.add(setNow);
    if (source === null) open();
    setNow(live);
    return () => {
      watchers.delete(setNow);
      if (watchers.size === 0) {
        source?.close();
        source = null;
      }
    };
  }, []);
  return now;
}

export interface TailHandlers {
  readonly message: (row: MessageShown) => void;
  readonly skipped: (offsets: number) => void;
  readonly state: (connected: boolean) => void;
  readonly end: (reason: string) => void;
}

/** Follow the messages of a filter, with so many bytes of each value; returns what ends it. */
export function follow(filter: string, handlers: TailHandlers, valueBytes = 4096): () => void {
  const query = new URLSearchParams({ filter, interval_ms: "1000", value_bytes: String(valueBytes) });
  const stream = new EventSource(`/api/v1/events?${query.toString()}`);
  stream.onopen = () => handlers.state(true);
  stream.onerror = () => handlers.state(false);
  on<MessageShown>(stream, "message", handlers.message);
  on<{ offsets: number }>(stream, "skipped", (row) => handlers.skipped(row.offsets));
  on<{ reason: string }>(stream, "end", (row) => {
    stream.close();
    handlers.end(row.reason);
  });
  return () => stream.close();
}
