// One message: where it lies, its key and headers, its payload in every form that fits.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { useAsk } from "../api/hooks";
import type { MessageShown } from "../api/schema";
import { bytes, short, time, visible, whole } from "../format";
import { type Form, formsOf, type Payload } from "../payload";
import { link } from "../router";
import { Badge, Facts, Name } from "./basics";
import { Dialog } from "./dialog";

const WHOLE_BYTES = 1_048_576;
const FORMS: Readonly<Record<Form, string>> = {
  json: "JSON", text: "Text", protobuf: "Protobuf fields", avro: "Avro", hex: "Bytes",
};
const MEANINGS: Readonly<Record<string, string>> = {
  "~q": "MQTT QoS", "~r": "retained", "~ct": "content type", "~ce": "content encoding",
  "~rt": "reply to", "~ci": "correlation", "~id": "message id", "~ty": "type", "~ui": "user id",
  "~ai": "application", "~cl": "cluster", "~pr": "priority", "~ts": "application's time",
  "~pf": "payload format", "~ex": "expires at", "~nl": "publisher", "~dm": "delivery mode",
  "~xp": "lifetime",
};

export function payloadOf(row: MessageShown): Payload {
  const kind = row.headers.find((header) => header.name === "~ct");
  return { text: row.value_text, base64: row.value_base64, contentType: kind?.text ?? "" };
}

export function PayloadView({ row }: { row: MessageShown }): JSX.Element {
  const forms = useMemo(() => formsOf(payloadOf(row)), [row]);
  const [chosen, setChosen] = useState<Form>();
  if (row.value_text === null && row.value_base64 === null) {
    return <p class="faint">It has no value: in a compacted stream it deletes its key.</p>;
  }
  const shown = forms.find(([form]) => form === chosen) ?? forms[0];
  return (
    <div class="form">
      <div class="row">
        {forms.map(([form]) => (
          <button
            key={form}
            type="button"
            class={form === shown?.[0] ? "small on" : "small"}
            aria-pressed={form === shown?.[0]}
            onClick={() => setChosen(form)}
          >
            {FORMS[form]}
          </button>
        ))}
        <span class="faint">
          {bytes(row.value_bytes)}
          {row.truncated && ", the beginning is shown"}
        </span>
      </div>
      <pre class="payload" dir="ltr">{shown?.[1]}</pre>
    </div>
  );
}

function Headers({ row }: { row: MessageShown }): JSX.Element | null {
  if (row.headers.length === 0) return null;
  return (
    <Facts
      rows={row.headers.map((header) => [
        MEANINGS[header.name] ?? short(header.name, 60),
        <span key={header.name} class="mono">
          {short(header.text ?? (header.base64 === null ? "(none)" : `base64 ${header.base64}`), 300)}
        </span>,
      ])}
    />
  );
}

export function MessageDialog({ row, onClose }: {
  row: MessageShown;
  onClose: () => void;
}): JSX.Element {
  const [asked, setAsked] = useState(false);
  const query = {
    filter: row.topic, start: "offset", stream: row.stream, partition: row.partition,
    offset: row.offset, limit: 1, value_bytes: WHOLE_BYTES,
  } as const;
  const { data } = useAsk("GET /messages", asked ? { query } : null);
  const found = data?.items[0];
  const shown = found?.offset === row.offset ? found : row;
  const key = shown.key_text ?? (shown.key_base64 === null ? null : `base64 ${shown.key_base64}`);
  return (
    <Dialog title={<Name text={shown.topic} />} onClose={onClose} wide>
      <Facts
        rows={[
          ["Place", `${visible(shown.stream)} / ${shown.partition} / ${whole(shown.offset)}`],
          ["Time", time(shown.timestamp_ms)],
          ["Key", key === null ? "none" : <Name key="k" text={key} />],
        ]}
      />
      <PayloadView row={shown} />
      {shown.truncated && !asked && (
        <div class="row">
          <button type="button" onClick={() => setAsked(true)}>
            Show all of it
          </button>
        </div>
      )}
      <Headers row={shown} />
      <div class="row">
        <a href={link("picture", { topic: shown.topic })}>Who writes and reads this topic</a>
        <a href={link("messages", { filter: shown.topic })}>Messages of this topic</a>
        <Badge>{shown.stream}</Badge>
      </div>
    </Dialog>
  );
}
