// Publish one message; the answer comes when it is durable.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { HeaderGiven } from "../api/schema";
import { whole } from "../format";
import { Choice } from "../ui/basics";
import { Action, Field } from "../ui/dialog";

type Form = "text" | "base64";

/** `name: value`, one a line. */
function headersOf(text: string): readonly HeaderGiven[] {
  return text
    .split("\n")
    .filter((line) => line.trim() !== "")
    .map((line) => {
      const at = line.indexOf(":");
      if (at < 1) throw new Error(`a header is written "name: value", not "${line}"`);
      return { name: line.slice(0, at).trim(), value: line.slice(at + 1).trim() };
    });
}

export function PublishForm({ topic: given, onClose, onDone }: {
  topic: string;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const [topic, setTopic] = useState(given);
  const [value, setValue] = useState("");
  const [form, setForm] = useState<Form>("text");
  const [key, setKey] = useState("");
  const [kind, setKind] = useState("");
  const [headers, setHeaders] = useState("");
  const [retain, setRetain] = useState(false);
  const act = async (): Promise<string> => {
    const done = await call("POST /messages", {
      body: {
        topic,
        [form]: form === "base64" ? value.replace(/\s+/g, "") : value,
        ...(key === "" ? {} : { key }),
        ...(kind === "" ? {} : { content_type: kind }),
        headers: headersOf(headers),
        retain,
      },
    });
    return `It is durable at ${done.stream}/${done.partition}, offset ${whole(done.offset)}.`;
  };
  return (
    <Action title="Publish a message" verb="Publish" act={act} onClose={onClose} onDone={onDone} wide>
      <Field label="Topic">
        <input
          required
          maxLength={65_535}
          placeholder="sensors/d1/temperature"
          value={topic}
          onInput={(event) => setTopic(event.currentTarget.value)}
        />
      </Field>
      <Field label="Value">
        <textarea
          name="value"
          rows={6}
          spellcheck={false}
          value={value}
          onInput={(event) => setValue(event.currentTarget.value)}
        />
      </Field>
      <div class="pair">
        <Field label="The value is">
          <Choice
            label="The value is"
            value={form}
            options={[["text", "text"], ["base64", "bytes, as base64"]]}
            onChange={setForm}
          />
        </Field>
        <Field label="Content type">
          <input
            maxLength={255}
            placeholder="application/json"
            value={kind}
            onInput={(event) => setKind(event.currentTarget.value)}
          />
        </Field>
        <Field label="Key" hint="Empty: the topic, as for MQTT">
          <input value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        </Field>
      </div>
      <Field label="Headers" hint="name: value, one a line">
        <textarea
          rows={2}
          spellcheck={false}
          value={headers}
          onInput={(event) => setHeaders(event.currentTarget.value)}
        />
      </Field>
      <label class="row">
        <input
          type="checkbox"
          checked={retain}
          onChange={(event) => setRetain(event.currentTarget.checked)}
        />
        Retain: MQTT gives it to later subscribers, too
      </label>
    </Action>
  );
}
