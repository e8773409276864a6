// The table of pages: one row, one file. A page is loaded when somebody goes there.
import type { ComponentType } from "preact";

export interface PageProps {
  readonly query: Readonly<Record<string, string>>;
}

export interface PageRow {
  readonly path: string;
  readonly title: string;
  readonly group: "Now" | "Log" | "Protocols" | "Broker";
  /** Pressed after `g`, it leads here. */
  readonly key: string;
  readonly load: () => Promise<{ readonly default: ComponentType<PageProps> }>;
}

type Load = PageRow["load"];

function row(path: string, title: string, group: PageRow["group"], key: string, load: Load): PageRow {
  return { path, title, group, key, load };
}

export const PAGES: readonly PageRow[] = [
  row("overview", "Overview", "Now", "o", () => import("./pages/overview")),
  row("picture", "Picture", "Now", "p", () => import("./pages/picture")),
  row("messages", "Messages", "Now", "m", () => import("./pages/messages")),
  row("topics", "Topics", "Log", "t", () => import("./pages/topics")),
  row("streams", "Streams", "Log", "s", () => import("./pages/streams")),
  row("storage", "Storage", "Log", "h", () => import("./pages/storage")),
  row("cursors", "Cursors", "Log", "c", () => import("./pages/cursors")),
  row("connections", "Connections", "Protocols", "n", () => import("./pages/connections")),
  row("sessions", "MQTT", "Protocols", "q", () => import("./pages/sessions")),
  row("groups", "Kafka", "Protocols", "k", () => import("./pages/groups")),
  row("queues", "AMQP", "Protocols", "a", () => import("./pages/queues")),
  row("access", "Access", "Broker", "u", () => import("./pages/access")),
  row("quotas", "Quotas", "Broker", "x", () => import("./pages/quotas")),
  row("audit", "Audit trail", "Broker", "r", () => import("./pages/audit")),
  row("backups", "Backups", "Broker", "b", () => import("./pages/backups")),
  row("pipelines", "Pipelines", "Broker", "l", () => import("./pages/pipelines")),
  row("nodes", "Nodes", "Broker", "d", () => import("./pages/nodes")),
];
