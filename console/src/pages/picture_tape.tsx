// The tape: the kept log from its start to its end, and how far a reader is, per partition.
import type { JSX } from "preact";
import type { Reader, TopicPicture } from "../api/schema";
import { whole } from "../format";

const ROWS_MAX = 12;

function part(value: number, start: number, end: number): number {
  if (end <= start) return 1;
  return Math.min(1, Math.max(0, (value - start) / (end - start)));
}

/** One line a partition: done at the left, still to read at the right, a mark where it stands. */
export function Tape({ picture, reader }: {
  picture: TopicPicture;
  reader: Reader;
}): JSX.Element {
  const places = new Map(reader.places.map((row) => [row.partition, row.offset]));
  const rows = picture.partitions.slice(0, ROWS_MAX);
  return (
    <div class="tape">
      {rows.map((row) => {
        const at = places.get(row.partition) ?? row.end_offset;
        const done = part(at, row.start_offset, row.end_offset);
        const label = `partition ${row.partition}: at ${whole(at)} of ${whole(row.start_offset)} to ${whole(row.end_offset)}`;
        return (
          <div key={row.partition} class="tape-line" role="img" aria-label={label} title={label}>
            <i style={{ width: `${done * 100}%` }} />
            <b style={{ left: `${done * 100}%` }} />
          </div>
        );
      })}
      {picture.partitions.length > ROWS_MAX && (
        <span class="faint">and {picture.partitions.length - ROWS_MAX} partitions more</span>
      )}
    </div>
  );
}
