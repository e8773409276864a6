// Where a reader is to go on: the start, the end, a time or an offset.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { Choice } from "../ui/basics";
import { Action, Field } from "../ui/dialog";

export interface SeekTo {
  readonly to: "earliest" | "latest" | "time" | "offset";
  readonly value?: number;
}

export function SeekForm({ title, act, onClose, onDone, children }: {
  title: string;
  act: (to: SeekTo) => Promise<string>;
  onClose: () => void;
  onDone: () => void;
  children?: ComponentChildren;
}): JSX.Element {
  const [to, setTo] = useState<SeekTo["to"]>("earliest");
  const [at, setAt] = useState("");
  const [offset, setOffset] = useState("0");
  const run = (): Promise<string> => {
    if (to === "time") return act({ to, value: new Date(at).getTime() });
    return act(to === "offset" ? { to, value: Number(offset) } : { to });
  };
  return (
    <Action title={title} verb="Move" act={run} onClose={onClose} onDone={onDone}>
      {children}
      <Field label="To">
        <Choice
          label="To"
          value={to}
          options={[
            ["earliest", "the oldest record: read everything again"],
            ["latest", "the end: skip everything"],
            ["time", "a time"],
            ["offset", "an offset"],
          ]}
          onChange={setTo}
        />
      </Field>
      {to === "time" && (
        <Field label="Time">
          <input
            type="datetime-local"
            step={1}
            required
            value={at}
            onInput={(event) => setAt(event.currentTarget.value)}
          />
        </Field>
      )}
      {to === "offset" && (
        <Field label="Offset">
          <input
            type="number"
            min={0}
            required
            value={offset}
            onInput={(event) => setOffset(event.currentTarget.value)}
          />
        </Field>
      )}
    </Action>
  );
}
