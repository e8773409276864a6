// Forms that make and change streams.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { ChangedStream, NewStream as NewStreamBody, StreamInfo } from "../api/schema";
import { Choice } from "../ui/basics";
import { Action, Field } from "../ui/dialog";

const HOUR_MS = 3_600_000;
const MIB = 1_048_576;

type Durability = NonNullable<NewStreamBody["durability"]>;

/** One filter a line. */
function filters(text: string): readonly string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

function scaled(text: string, unit: number): number | undefined {
  return text.trim() === "" ? undefined : Math.round(Number(text) * unit);
}

interface Chosen {
  readonly partitions: string;
  readonly hours: string;
  readonly mib: string;
  readonly durability: Durability | "";
}

function settingsOf(chosen: Chosen): ChangedStream {
  const partitions = scaled(chosen.partitions, 1);
  const age = scaled(chosen.hours, HOUR_MS);
  const size = scaled(chosen.mib, MIB);
  return {
    ...(partitions === undefined ? {} : { partitions }),
    ...(age === undefined ? {} : { retention_age_ms: age < 0 ? -1 : age }),
    ...(size === undefined ? {} : { retention_bytes: size < 0 ? -1 : size }),
    ...(chosen.durability === "" ? {} : { durability: chosen.durability }),
  };
}

function Settings({ chosen, onChange, kept }: {
  chosen: Chosen;
  onChange: (next: Chosen) => void;
  kept: string;
}): JSX.Element {
  const set = (change: Partial<Chosen>): void => onChange({ ...chosen, ...change });
  return (
    <div class="pair">
      <Field label="Partitions">
        <input
          type="number"
          min={1}
          max={100_000}
          placeholder={kept}
          value={chosen.partitions}
          onInput={(event) => set({ partitions: event.currentTarget.value })}
        />
      </Field>
      <Field label="Keep for hours" hint="-1: for ever">
        <input
          type="number"
          min={-1}
          step="any"
          placeholder={kept}
          value={chosen.hours}
          onInput={(event) => set({ hours: event.currentTarget.value })}
        />
      </Field>
      <Field label="Keep up to MiB" hint="-1: without a bound">
        <input
          type="number"
          min={-1}
          step="any"
          placeholder={kept}
          value={chosen.mib}
          onInput={(event) => set({ mib: event.currentTarget.value })}
        />
      </Field>
      <Field label="Durable at" hint="When publishers get their answer">
        <Choice
          label="Durable at"
          value={chosen.durability}
          options={[["", kept], ["memory", "memory"], ["os", "the system's cache"], ["fsync", "the disk"]]}
          onChange={(durability) => set({ durability })}
        />
      </Field>
    </div>
  );
}

const NOTHING: Chosen = { partitions: "", hours: "", mib: "", durability: "" };

export function NewStream({ onClose, onDone }: {
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const [name, setName] = useState("");
  const [captures, setCaptures] = useState("");
  const [chosen, setChosen] = useState(NOTHING);
  const act = async (): Promise<string> => {
    const body = { name, captures: filters(captures), ...settingsOf(chosen) };
    await call("POST /streams", { body });
    return `The stream ${name} is made.`;
  };
  return (
    <Action title="New stream" verb="Make it" act={act} onClose={onClose} onDone={onDone}>
      <Field label="Name">
        <input
          required
          maxLength={255}
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
      </Field>
      <Field
        label="Captures"
        hint="Topics or filters, one a line: + is one level, # is all that follow. What they match lives here from now on."
      >
        <textarea
          rows={3}
          placeholder={"sensors/+/telemetry\norders/#"}
          value={captures}
          onInput={(event) => setCaptures(event.currentTarget.value)}
        />
      </Field>
      <Settings chosen={chosen} onChange={setChosen} kept="default" />
    </Action>
  );
}

export function AlterStream({ stream, onClose, onDone }: {
  stream: StreamInfo;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const [captures, setCaptures] = useState(stream.captures.join("\n"));
  const [chosen, setChosen] = useState(NOTHING);
  const act = async (): Promise<string> => {
    const wanted = filters(captures);
    const body: ChangedStream = {
      ...settingsOf(chosen),
      capture: wanted.filter((text) => !stream.captures.includes(text)),
      release: stream.captures.filter((text) => !wanted.includes(text)),
    };
    await call("PATCH /streams/{stream}", { names: [stream.name], body });
    return "The stream is changed.";
  };
  return (
    <Action title="Change the stream" verb="Change it" act={act} onClose={onClose} onDone={onDone}>
      <Field label="Captures" hint="What is left out stays readable where it is.">
        <textarea
          rows={3}
          value={captures}
          onInput={(event) => setCaptures(event.currentTarget.value)}
        />
      </Field>
      <Settings chosen={chosen} onChange={setChosen} kept="as it is" />
    </Action>
  );
}
