// Where backups lie: a folder or a bucket, and the options by which its store is reached.
import type { JSX } from "preact";
import { short } from "../format";
import { Field } from "../ui/dialog";

/** As it is typed. */
export interface Place {
  readonly url: string;
  readonly options: string;
}

/** Options as lines of NAME=VALUE. Throws for a line that is none. */
export function optionsOf(text: string): Readonly<Record<string, string>> {
  const lines = text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`write an option as NAME=VALUE, not ${short(line, 60)}`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }),
  );
}

const A_PLACE = "A folder of the broker's machine by its whole path, or s3://BUCKET/PREFIX.";

export function PlaceFields({ label, more = "", place, onChange, children }: {
  label: string;
  /** What else is to be said of the place. */
  more?: string;
  place: Place;
  onChange: (place: Place) => void;
  children?: JSX.Element;
}): JSX.Element {
  return (
    <>
      <Field label={label} hint={`${A_PLACE} ${more}`}>
        <input required maxLength={4096} placeholder="/srv/backups/onelog" value={place.url} onInput={(event) => onChange({ ...place, url: event.currentTarget.value })} />
      </Field>
      {children}
      <Field label="Options of the object storage" hint="NAME=VALUE, one in a line. They are not shown again.">
        <textarea rows={3} autocomplete="off" placeholder="aws_region=eu-central-1" value={place.options} onInput={(event) => onChange({ ...place, options: event.currentTarget.value })} />
      </Field>
    </>
  );
}
