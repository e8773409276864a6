// A table of any length: only the rows in sight are in the page, further ones are asked for when
// the reader comes near the end. Arrow keys walk, Enter opens.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Pages } from "../api/hooks";
import { plural } from "../format";
import { Problem } from "./basics";

const ROW_PX = 38;
const AHEAD = 12;

export interface Column<R> {
  readonly title: string;
  readonly cell: (row: R) => ComponentChildren;
  /** Numbers stand at the right. */
  readonly number?: boolean;
  /** Left out on a phone. */
  readonly wide?: boolean;
  /** Takes the room that is left. */
  readonly grow?: boolean;
}

export interface TableProps<R> {
  readonly pages: Pages<R>;
  readonly columns: readonly Column<R>[];
  readonly keyOf: (row: R) => string;
  readonly empty: ComponentChildren;
  readonly open?: (row: R) => void;
  readonly label: string;
}

/** Rows that are here already, as a list of one page. */
export function onePage<R>(
  rows: readonly R[] | undefined,
  error?: string,
  again: () => void = () => undefined,
): Pages<R> {
  return {
    rows: rows ?? [],
    loading: rows === undefined && error === undefined,
    error,
    hasMore: false,
    more: () => undefined,
    again,
  };
}

export function Table<R>(props: TableProps<R>): JSX.Element {
  const { pages, columns, keyOf, open } = props;
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(800);
  const { rows, hasMore, loading } = pages;

  useEffect(() => {
    const measure = (): void => setHeight(box.current?.clientHeight ?? 800);
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);

  const first = Math.max(0, Math.floor(top / ROW_PX) - AHEAD);
  const last = Math.min(rows.length, Math.ceil((top + height) / ROW_PX) + AHEAD);
  useEffect(() => {
    if (hasMore && !loading && last >= rows.length - AHEAD) pages.more();
  }, [last, rows.length, hasMore, loading]);

  const walk = (event: KeyboardEvent): void => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    const line = event.target instanceof Element ? event.target.closest("tr") : null;
    if (step === undefined || line === null) return;
    const other = step > 0 ? line.nextElementSibling : line.previousElementSibling;
    if (other instanceof HTMLElement && other.tabIndex === 0) {
      event.preventDefault();
      other.focus();
    }
  };

  if (pages.error !== undefined && rows.length === 0) {
    return <Problem text={pages.error} again={pages.again} />;
  }
  if (rows.length === 0) {
    return loading || hasMore ? <p class="faint pad">Loading…</p> : <>{props.empty}</>;
  }
  return (
    <div class="table-frame">
      <Problem text={pages.error} again={pages.again} />
      <div class="table-box" ref={box} onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
        <table aria-label={props.label} aria-rowcount={hasMore ? -1 : rows.length} onKeyDown={walk}>
          <thead>
            <tr>
              {columns.map((column) => (
                <th key={column.title} class={classOf(column)} scope="col">
                  {column.title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {first > 0 && <Gap rows={first} />}
            {rows.slice(first, last).map((row) => (
              <tr
                key={keyOf(row)}
                class={open ? "opens" : ""}
                tabIndex={0}
                onClick={open && ((event) => openBy(event, () => open(row)))}
                onKeyDown={
                  open &&
                  ((event) => {
                    if (event.key !== "Enter" || event.target !== event.currentTarget) return;
                    event.preventDefault(); // else it would press the first button of a dialog
                    open(row);
                  })
                }
              >
                {columns.map((column) => (
                  <td key={column.title} class={classOf(column)}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            ))}
            {last < rows.length && <Gap rows={rows.length - last} />}
          </tbody>
        </table>
      </div>
      <p class="table-count faint">
        {hasMore ? `${plural(rows.length, "row")} so far` : plural(rows.length, "row")}
        {loading && " · loading…"}
      </p>
    </div>
  );
}

/** A click on a button or link of a row is that button's, and selecting text opens nothing. */
function openBy(event: MouseEvent, act: () => void): void {
  const inside = event.target instanceof Element && event.target.closest("a, button, input");
  if (!inside && !String(getSelection() ?? "")) act();
}

function classOf<R>(column: Column<R>): string {
  return [column.number && "number", column.wide && "wide-only", column.grow && "grow"]
    .filter(Boolean)
    .join(" ");
}

function Gap({ rows }: { rows: number }): JSX.Element {
  return (
    <tr aria-hidden="true">
      <td class="gap" style={{ height: `${rows * ROW_PX}px` }} />
    </tr>
  );
}
