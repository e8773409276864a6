// The form that sets a quota, and the words of quotas: whom they are for, and what they bound.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, call } from "../api/client";
import type { QuotaInfo, QuotaLimits } from "../api/schema";
import { bytes, short, whole } from "../format";
import { Choice } from "../ui/basics";
import { Action, Field } from "../ui/dialog";

type LimitName = keyof QuotaLimits;
type Kind = "user" | "client" | "user,client" | "listener" | "ip";
type Part = "user" | "client" | "listener" | "ip";

export interface LimitRow {
  readonly name: LimitName;
  readonly title: string;
  /** What the number counts. */
  readonly unit: "bytes/s" | "/s" | "at once";
  /** Whom it can be set for. */
  readonly kinds: readonly Kind[];
}

const CLIENTS: readonly Kind[] = ["user", "client", "user,client", "listener"];

export const LIMITS: readonly LimitRow[] = [
  { name: "publish_bytes", title: "Publish bytes", unit: "bytes/s", kinds: CLIENTS },
  { name: "publish_messages", title: "Publish messages", unit: "/s", kinds: CLIENTS },
  { name: "fetch_bytes", title: "Fetch bytes", unit: "bytes/s", kinds: CLIENTS },
  { name: "requests", title: "Requests", unit: "/s", kinds: CLIENTS },
  { name: "connections", title: "Connections", unit: "at once", kinds: CLIENTS },
  { name: "subscriptions", title: "Subscriptions", unit: "at once", kinds: CLIENTS },
  { name: "queues", title: "Queues", unit: "at once", kinds: CLIENTS },
  { name: "connects", title: "New connections", unit: "/s", kinds: ["ip"] },
];

const KINDS: readonly (readonly [Kind, string])[] = [
  ["user", "a user"],
  ["client", "a client"],
  ["user,client", "a client of a user"],
  ["listener", "a listener"],
  ["ip", "an address"],
];

const LABELS: Readonly<Record<Part, string>> = {
  user: "User", client: "Client id", listener: "Listener", ip: "Address",
};

export function shownLimit(limit: LimitRow, value: number | undefined): string {
  if (limit.unit === "bytes/s") return `${bytes(value)}/s`;
  return limit.unit === "/s" ? `${whole(value)}/s` : whole(value);
}

function isPart(text: string): text is Part {
  return text in LABELS;
}

/** Parts and names of an entity, such as user:alice,client:pump. An empty name: each other one. */
export function partsOf(entity: string): readonly (readonly [Part, string])[] {
  return entity.split(",").flatMap((word) => {
    const colon = word.indexOf(":");
    const part = colon < 0 ? word : word.slice(0, colon);
    return isPart(part) ? [[part, colon < 0 ? "" : unquoted(word.slice(colon + 1))] as const] : [];
  });
}

function unquoted(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    return name; // the server's own form, which is shown as it is
  }
}

/** A name as the server writes it: what could be taken for the end of a part is escaped. */
function quoted(name: string): string {
  return name.replace(/[^\w.\- /:@!$&'()*+;=?#[\]<>|{}~"^`\\]/gu, (mark) => encodeURIComponent(mark));
}

type Names = Readonly<Record<Part, string>>;
type Values = Readonly<Partial<Record<LimitName, string>>>;

function kindOf(quota: QuotaInfo | undefined): Kind {
  const text = quota === undefined ? "user" : partsOf(quota.entity).map(([part]) => part).join(",");
  return KINDS.find(([kind]) => kind === text)?.[0] ?? "user";
}

function valuesOf(quota: QuotaInfo | undefined): Values {
  return Object.fromEntries(Object.entries(quota?.limits ?? {}).map(([name, value]) => [name, String(value)]));
}

function entityOf(kind: Kind, names: Names): string {
  const parts = kind.split(",").filter(isPart);
  return parts.map((part) => (names[part] === "" ? part : `${part}:${quoted(names[part])}`)).join(",");
}

/** The limits that were filled in. Throws when there is none: that would be no quota. */
function bodyOf(rows: readonly LimitRow[], values: Values): QuotaLimits {
  const given = rows.filter((row) => (values[row.name] ?? "") !== "");
  if (given.length === 0) throw new Error("set at least one limit; to bound nothing, remove the quota");
  return Object.fromEntries(given.map((row) => [row.name, Number(values[row.name])]));
}

/** A new quota must not take the place of one that is there, unseen. */
async function refuseTaken(entity: string): Promise<void> {
  try {
    await call("GET /quotas/{entity}", { names: [entity] });
  } catch (problem) {
    if (problem instanceof ApiError && problem.status === 404) return;
    throw problem;
  }
  throw new Error(`${short(entity, 80)} has a quota already: close this, and open it in the list`);
}

export function QuotaForm({ quota, onClose, onDone, onRemove }: {
  quota?: QuotaInfo;
  onClose: () => void;
  onDone: () => void;
  onRemove?: () => void;
}): JSX.Element {
  const [kind, setKind] = useState<Kind>(kindOf(quota));
  const [names, setNames] = useState<Names>({ user: "", client: "", listener: "", ip: "" });
  const [values, setValues] = useState<Values>(valuesOf(quota));
  const rows = LIMITS.filter((row) => row.kinds.includes(kind));
  const act = async (): Promise<string> => {
    const body = bodyOf(rows, values);
    const entity = quota?.entity ?? entityOf(kind, names);
    if (quota === undefined) await refuseTaken(entity);
    await call("PUT /quotas/{entity}", { names: [entity], body });
    return "The quota holds now, for open connections too.";
  };
  return (
    <Action
      title={quota === undefined ? "New quota" : `Quota of ${short(quota.entity, 80)}`}
      verb="Set it"
      act={act}
      onClose={onClose}
      onDone={onDone}
    >
      {quota === undefined && (
        <>
          <Field label="For">
            <Choice label="For" value={kind} options={KINDS} onChange={setKind} />
          </Field>
          {kind.split(",").filter(isPart).map((part) => (
            <Field key={part} label={LABELS[part]} hint="Empty: each one that has no quota of its own.">
              <input maxLength={512} value={names[part]} onInput={(event) => setNames({ ...names, [part]: event.currentTarget.value })} />
            </Field>
          ))}
        </>
      )}
      <p class="faint">An empty field is no bound.</p>
      <div class="pair">
        {rows.map((row) => (
          <Field key={row.name} label={row.title} hint={row.unit === "at once" ? row.unit : `${row.unit === "/s" ? "" : "bytes "}per second`}>
            <input
              type="number"
              min={row.unit === "at once" ? 1 : 0}
              step={row.unit === "at once" ? 1 : "any"}
              value={values[row.name] ?? ""}
              onInput={(event) => setValues({ ...values, [row.name]: event.currentTarget.value })}
            />
          </Field>
        ))}
      </div>
      {onRemove !== undefined && (
        <div class="row">
          <button type="button" class="small" onClick={onRemove}>Remove the quota…</button>
        </div>
      )}
    </Action>
  );
}
