// How pages ask: once, again and again, or page by page.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { type Answer, ApiError, call, type Key, type Options } from "./client";

export interface Asked<T> {
  readonly data: T | undefined;
  readonly error: string | undefined;
  readonly again: () => void;
}

export function textOf(error: unknown): string {
  return error instanceof ApiError || error instanceof Error ? error.message : String(error);
}

function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Ask now, and every `everyMs` while the page is visible. null: do not ask. */
export function useAsk<K extends Key>(
  key: K,
  options: Options<K> | null = {},
  everyMs = 0,
): Asked<Answer<K>> {
  const [data, setData] = useState<Answer<K>>();
  const [error, setError] = useState<string>();
  const [round, setRound] = useState(0);
  const asked = JSON.stringify(options);
  useEffect(() => {
    setData(undefined);
    setError(undefined);
  }, [key, asked]);
  useEffect(() => {
    if (options === null) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const next = (): void => {
      if (everyMs > 0 && !stop.signal.aborted) timer = setTimeout(ask, everyMs);
    };
    const ask = (): void => {
      if (document.hidden && everyMs > 0) {
        next();
        return;
      }
      call(key, { ...options, signal: stop.signal })
        .then((found) => {
          setData(() => found);
          setError(undefined);
        })
        .catch((problem: unknown) => {
          if (!isAbort(problem)) setError(textOf(problem));
        })
        .finally(next);
    };
    ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, asked, everyMs, round]);
  return { data, error, again: useCallback(() => setRound((was) => was + 1), []) };
}

type Item<T> = T extends { readonly items: readonly (infer R)[] } ? R : never;

export interface Pages<R> {
  readonly rows: readonly R[];
  readonly loading: boolean;
  readonly error: string | undefined;
  readonly hasMore: boolean;
  readonly more: () => void;
  readonly again: () => void;
}

interface PageShape {
  readonly items: readonly unknown[];
  readonly next_cursor: string | null;
}

type ListKey = { [K in Key]: Answer<K> extends PageShape ? K : never }[Key];

/** A list, page by page. */
export function usePages<K extends ListKey>(
  key: K,
  options: Options<K> = {},
  limit = 200,
): Pages<Item<Answer<K>>> {
  type R = Item<Answer<K>>;
  const [rows, setRows] = useState<readonly R[]>([]);
  const [cursor, setCursor] = useState<string | null>("");
  const [loading, setLoading] = useState(true);
  const [error, setError] = useState<string>();
  const [round, setRound] = useState(0);
  const run = useRef(0);
  const asked = JSON.stringify(options);

  const load = useCallback(
    (from: string, before: readonly R[], current: number) => {
      setLoading(true);
      const query = { ...options.query, limit, cursor: from };
      call(key, { ...options, query } as Options<K>)
        .then((answer) => {
          if (run.current !== current) return;
          const page = answer as unknown as { items: readonly R[]; next_cursor: string | null };
          setRows([...before, ...page.items]);
          setCursor(page.next_cursor);
          setError(undefined);
        })
        .catch((problem: unknown) => {
          if (run.current === current) setError(textOf(problem));
        })
        .finally(() => {
          if (run.current === current) setLoading(false);
        });
    },
    [key, asked, limit],
  );

  useEffect(() => {
    run.current += 1;
    load("", [], run.current);
    return () => {
      run.current += 1;
    };
  }, [load, round]);

  const more = useCallback(() => {
    if (!loading && cursor) load(cursor, rows, run.current);
  }, [loading, cursor, rows, load]);
  const again = useCallback(() => setRound((was) => was + 1), []);
  return { rows, loading, error, hasMore: Boolean(cursor), more, again };
}

/** Text that settles: it follows `value` after a pause in typing. */
export function useSettled(value: string, pauseMs = 250): string {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), pauseMs);
    return () => clearTimeout(timer);
  }, [value, pauseMs]);
  return settled;
}
