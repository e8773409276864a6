// Forms that make exchanges, queues and bindings, and the questions before one goes.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { BindingRow, ExchangeRow } from "../api/schema";
import { short } from "../format";
import { Choice } from "../ui/basics";
import { Action, Field } from "../ui/dialog";

interface FormProps {
  readonly onClose: () => void;
  readonly onDone: () => void;
}

const TYPES = ["direct", "topic", "fanout", "headers"] as const;
const NAME_MAX = 255;

/** Arguments as lines of NAME=VALUE, where a value that is JSON is what it says. */
function argumentsOf(text: string): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const line of text.split("\n").map((row) => row.trim()).filter((row) => row !== "")) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`write an argument as NAME=VALUE, not ${short(line, 60)}`);
    const value = line.slice(at + 1).trim();
    try {
      found[line.slice(0, at).trim()] = JSON.parse(value);
    } catch {
      found[line.slice(0, at).trim()] = value;
    }
  }
  return found;
}

function Text({ label, value, onChange, hint, required }: {
  label: string;
  value: string;
  onChange: (value: string) => void;
  hint?: string;
  required?: boolean;
}): JSX.Element {
  return (
    <Field label={label} hint={hint}>
      <input required={required ?? false} maxLength={NAME_MAX} value={value} onInput={(event) => onChange(event.currentTarget.value)} />
    </Field>
  );
}

function Arguments({ value, onChange, example }: {
  value: string;
  onChange: (value: string) => void;
  example: string;
}): JSX.Element {
  return (
    <Field label="Arguments" hint="NAME=VALUE, one in a line.">
      <textarea rows={3} placeholder={example} value={value} onInput={(event) => onChange(event.currentTarget.value)} />
    </Field>
  );
}

function Durable({ value, onChange }: { value: boolean; onChange: (value: boolean) => void }): JSX.Element {
  return (
    <label class="row">
      <input type="checkbox" checked={value} onChange={(event) => onChange(event.currentTarget.checked)} />
      Durable: it is there after a restart
    </label>
  );
}

export function NewQueue({ onClose, onDone }: FormProps): JSX.Element {
  const [vhost, setVhost] = useState("/");
  const [name, setName] = useState("");
  const [durable, setDurable] = useState(true);
  const [text, setText] = useState("");
  const act = async (): Promise<string> => {
    const body = { durable, arguments: argumentsOf(text) };
    await call("PUT /amqp/queues/{vhost}/{queue}", { names: [vhost, name], body });
    return "The queue is there.";
  };
  return (
    <Action title="New queue" verb="Declare" act={act} onClose={onClose} onDone={onDone}>
      <Text label="Name" value={name} onChange={setName} required />
      <Text label="Virtual host" value={vhost} onChange={setVhost} required />
      <Durable value={durable} onChange={setDurable} />
      <Arguments value={text} onChange={setText} example="x-queue-type=quorum" />
    </Action>
  );
}

export function NewExchange({ onClose, onDone }: FormProps): JSX.Element {
  const [vhost, setVhost] = useState("/");
  const [name, setName] = useState("");
  const [type, setType] = useState<(typeof TYPES)[number]>("topic");
  const [durable, setDurable] = useState(true);
  const [text, setText] = useState("");
  const act = async (): Promise<string> => {
    const body = { type, durable, arguments: argumentsOf(text) };
    await call("PUT /amqp/exchanges/{vhost}/{exchange}", { names: [vhost, name], body });
    return "The exchange is there.";
  };
  return (
    <Action title="New exchange" verb="Declare" act={act} onClose={onClose} onDone={onDone}>
      <Text label="Name" value={name} onChange={setName} required />
      <Text label="Virtual host" value={vhost} onChange={setVhost} required />
      <Field label="Type">
        <Choice label="Type" value={type} options={TYPES.map((one) => [one, one] as const)} onChange={setType} />
      </Field>
      <Durable value={durable} onChange={setDurable} />
      <Arguments value={text} onChange={setText} example="alternate-exchange=others" />
    </Action>
  );
}

export function NewBinding({ onClose, onDone }: FormProps): JSX.Element {
  const [vhost, setVhost] = useState("/");
  const [source, setSource] = useState("");
  const [kind, setKind] = useState<"queue" | "exchange">("queue");
  const [destination, setDestination] = useState("");
  const [key, setKey] = useState("");
  const [text, setText] = useState("");
  const act = async (): Promise<string> => {
    const body = { source, destination, destination_type: kind, routing_key: key, arguments: argumentsOf(text) };
    await call("POST /amqp/bindings/{vhost}", { names: [vhost], body });
    return "They are bound.";
  };
  return (
    <Action title="New binding" verb="Bind" act={act} onClose={onClose} onDone={onDone}>
      <Text label="From exchange" value={source} onChange={setSource} required />
      <Text label="Routing key" value={key} onChange={setKey} hint="Of a topic exchange: words with * and #, as in plant.*.alarm" />
      <Field label="That leads to">
        <Choice label="That leads to" value={kind} options={[["queue", "a queue"], ["exchange", "an exchange"]]} onChange={setKind} />
      </Field>
      <Text label="Named" value={destination} onChange={setDestination} required />
      <Text label="Virtual host" value={vhost} onChange={setVhost} required />
      <Arguments value={text} onChange={setText} example="x-match=any" />
    </Action>
  );
}

export function DeleteExchange({ row, onClose, onDone }: FormProps & { row: ExchangeRow }): JSX.Element {
  const act = async (): Promise<string> => {
    await call("DELETE /amqp/exchanges/{vhost}/{exchange}", { names: [row.vhost, row.name] });
    return "The exchange is deleted.";
  };
  return (
    <Action title={`Delete the exchange ${short(row.name, 60)}`} verb="Delete" danger act={act} onClose={onClose} onDone={onDone}>
      <p>Its bindings go with it, and clients cannot publish to it any more. What was sent stays in the log.</p>
    </Action>
  );
}

export function Unbind({ row, onClose, onDone }: FormProps & { row: BindingRow }): JSX.Element {
  const act = async (): Promise<string> => {
    const { source, destination, routing_key, key } = row;
    const destination_type = row.destination_type === "exchange" ? "exchange" : "queue";
    const query = { source, destination, destination_type, routing_key, key } as const;
    await call("DELETE /amqp/bindings/{vhost}", { names: [row.vhost], query });
    return "They are not bound any more.";
  };
  return (
    <Action title={`Unbind ${short(row.destination, 40)} from ${short(row.source, 40)}`} verb="Unbind" danger act={act} onClose={onClose} onDone={onDone}>
      <p>Messages with the key {short(row.routing_key, 80) || "(none)"} do not go there any more. What went there stays.</p>
    </Action>
  );
}
