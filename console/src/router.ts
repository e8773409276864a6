// Where the reader is: the part of the address after #, as a path and a query.
import { useEffect, useState } from "preact/hooks";

/** Groups of Kafka are cursors, too: this stands before their names there. */
export const GROUP_PREFIX = "kafka:";

export interface Place {
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
}

export function placeNow(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path || "overview", query: Object.fromEntries(new URLSearchParams(query)) };
}

/** The address of a page. */
export function link(path: string, query: Readonly<Record<string, string>> = {}): string {
  const kept = Object.entries(query).filter(([, value]) => value !== "");
  const text = new URLSearchParams(kept).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export function go(path: string, query: Readonly<Record<string, string>> = {}): void {
  location.hash = link(path, query);
}

/** Change the query of this page without a new step in the browser's history. */
export function amend(change: Readonly<Record<string, string>>): void {
  const { path, query } = placeNow();
  history.replaceState(null, "", link(path, { ...query, ...change }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function usePlace(): Place {
  const [place, setPlace] = useState(placeNow);
  useEffect(() => {
    const move = (): void => setPlace(placeNow());
    addEventListener("hashchange", move);
    return () => removeEventListener("hashchange", move);
  }, []);
  return place;
}
