// Access rules: one list for every protocol, and the tester that says which rule decides.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import { textOf, useAsk, usePages } from "../api/hooks";
import type { AccessAnswered, AccessRule, RuleFields } from "../api/schema";
import { plural, short } from "../format";
import { Badge, Card, Choice, Empty, Name, Problem } from "../ui/basics";
import { Action, Field } from "../ui/dialog";
import { type Column, Table } from "../ui/table";

const ACTIONS = ["publish", "subscribe", "consume", "create", "configure", "delete", "describe", "admin"] as const;

function words(text: string): readonly string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

function RuleForm({ rule, onClose, onDone, remove }: {
  rule: AccessRule | null;
  onClose: () => void;
  onDone: () => void;
  remove?: () => void;
}): JSX.Element {
  const [effect, setEffect] = useState<RuleFields["effect"]>(rule?.effect ?? "allow");
  const [who, setWho] = useState(rule?.who.join(" ") ?? "");
  const [actions, setActions] = useState<readonly string[]>(rule?.actions ?? ["publish", "subscribe"]);
  const [resource, setResource] = useState(rule?.resource ?? "topic:");
  const [note, setNote] = useState(rule?.note ?? "");
  const turn = (name: string): void =>
    setActions((was) => (was.includes(name) ? was.filter((one) => one !== name) : [...was, name]));
  const act = async (): Promise<string> => {
    const body: RuleFields = { effect, who: words(who), actions, resource, note };
    if (rule === null) await call("POST /access/rules", { body });
    else await call("PUT /access/rules/{rule}", { names: [rule.id], body });
    return "The rule applies now, to open connections too.";
  };
  return (
    <Action title={rule === null ? "New rule" : `Rule ${short(rule.id, 40)}`} verb={rule === null ? "Make it" : "Change it"} act={act} onClose={onClose} onDone={onDone}>
      <div class="pair">
        <Field label="Effect" hint="Deny wins over allow.">
          <Choice label="Effect" value={effect} options={[["allow", "allow"], ["deny", "deny"]]} onChange={setEffect} />
        </Field>
        <Field label="Who" hint="user:alice, group:devices, certificate:cn, claim:role=x, anonymous, everyone">
          <input required value={who} placeholder="user:alice group:devices" onInput={(event) => setWho(event.currentTarget.value)} />
        </Field>
      </div>
      <fieldset class="field">
        <legend>May</legend>
        <div class="row">
          {[...ACTIONS, "all"].map((name) => (
            <label key={name} class="row">
              <input type="checkbox" checked={actions.includes(name)} onChange={() => turn(name)} />
              {name}
            </label>
          ))}
        </div>
      </fieldset>
      <Field label="On" hint="topic:FILTER (%u is the user, %c the client id), prefix:TEXT, cursor:PATTERN such as cursor:group/*, or server">
        <input required value={resource} onInput={(event) => setResource(event.currentTarget.value)} />
      </Field>
      <Field label="Note">
        <input maxLength={200} value={note} onInput={(event) => setNote(event.currentTarget.value)} />
      </Field>
      {remove && (
        <div>
          <button type="button" class="small" onClick={remove}>Remove this rule…</button>
        </div>
      )}
    </Action>
  );
}

/** Every action that a resource of this kind has. */
const WHOLE: Readonly<Record<string, number>> = { topic: 6, prefix: 6, cursor: 3, server: 2 };

function may(row: AccessRule): string {
  const kind = /^\w+/.exec(row.resource)?.[0] ?? "";
  return row.actions.length === WHOLE[kind] ? "all" : row.actions.join(", ");
}

const COLUMNS: readonly Column<AccessRule>[] = [
  { title: "Rule", cell: (row) => short(row.id, 24), wide: true },
  { title: "", cell: (row) => <Badge tone={row.effect === "allow" ? "good" : "bad"}>{row.effect}</Badge> },
  { title: "Who", cell: (row) => <Name text={row.who.join(", ")} /> },
  { title: "May", cell: may },
  { title: "On", cell: (row) => <Name text={row.resource} />, grow: true },
  { title: "Note", cell: (row) => <Name text={row.note || "–"} />, wide: true },
];

function Verdict({ answer }: { answer: AccessAnswered }): JSX.Element {
  return (
    <p role="status">
      <Badge tone={answer.allowed ? "good" : "bad"}>{answer.allowed ? "allowed" : "denied"}</Badge>{" "}
      {short(answer.reason, 400)}
      {answer.rule && (
        <>
          {" "}
          <code>{short(`${answer.rule.id}: ${answer.rule.text}`, 300)}</code>
        </>
      )}
    </p>
  );
}

function Tester(): JSX.Element {
  const [who, setWho] = useState("user:");
  const [action, setAction] = useState<string>("publish");
  const [resource, setResource] = useState("topic:");
  const [client, setClient] = useState("");
  const [answer, setAnswer] = useState<AccessAnswered>();
  const [error, setError] = useState<string>();
  const ask = (event: Event): void => {
    event.preventDefault();
    setError(undefined);
    call("POST /access/test", { body: { who, action, resource, client_id: client } })
      .then(setAnswer)
      .catch((problem: unknown) => {
        setAnswer(undefined);
        setError(textOf(problem));
      });
  };
  return (
    <Card title="May somebody do something?">
      <form class="form" onSubmit={ask}>
        <div class="pair">
          <Field label="Who">
            <input required value={who} onInput={(event) => setWho(event.currentTarget.value)} />
          </Field>
          <Field label="Does">
            <Choice label="Does" value={action} options={ACTIONS.map((name) => [name as string, name] as const)} onChange={setAction} />
          </Field>
          <Field label="On">
            <input required value={resource} onInput={(event) => setResource(event.currentTarget.value)} />
          </Field>
          <Field label="As MQTT client">
            <input value={client} placeholder="any" onInput={(event) => setClient(event.currentTarget.value)} />
          </Field>
        </div>
        <div class="row">
          <button type="submit" class="primary">Ask</button>
          {answer && <Verdict answer={answer} />}
        </div>
        <Problem text={error} />
      </form>
    </Card>
  );
}

export function Rules({ search }: { search: string }): JSX.Element {
  const [adding, setAdding] = useState(false);
  const [changed, setChanged] = useState<AccessRule>();
  const [removed, setRemoved] = useState<AccessRule>();
  const state = useAsk("GET /access");
  const pages = usePages("GET /access/rules", { query: { search } });
  const again = (): void => {
    pages.again();
    state.again();
  };
  const isLast = state.data?.rules === 1;
  const columns: readonly Column<AccessRule>[] = [
    ...COLUMNS,
    { title: " ", cell: (row) => <button type="button" class="small" onClick={() => setRemoved(row)}>Remove…</button>, wide: true },
  ];
  return (
    <>
      {state.data?.open && (
        <div class="banner">There is no rule: everybody who is let in may do everything. From the first rule on, only what a rule allows is allowed.</div>
      )}
      {state.data && state.data.unreadable.length > 0 && (
        <Problem text={`${plural(state.data.unreadable.length, "rule")} cannot be read, so nothing is allowed: ${state.data.unreadable.join(", ")}. Remove them with onelog acl remove.`} />
      )}
      <Tester />
      <div class="row">
        <button type="button" class="primary" onClick={() => setAdding(true)}>New rule</button>
      </div>
      <Table
        label="Access rules"
        pages={pages}
        columns={columns}
        keyOf={(row) => row.id}
        open={(row) => setChanged(row)}
        empty={
          <Empty title={search ? "No rule is like that" : "There is no rule yet"}>
            Begin with a rule for those who run the broker, such as: allow user:alice all on topic:#
          </Empty>
        }
      />
      {adding && <RuleForm rule={null} onClose={() => setAdding(false)} onDone={again} />}
      {changed && (
        <RuleForm
          rule={changed}
          onClose={() => setChanged(undefined)}
          onDone={again}
          remove={() => {
            setRemoved(changed);
            setChanged(undefined);
          }}
        />
      )}
      {removed && (
        <Action
          title={`Remove the rule ${short(removed.id, 40)}`}
          verb={isLast ? "Remove it and open everything" : "Remove"}
          danger
          act={async () => {
            await call("DELETE /access/rules/{rule}", { names: [removed.id], query: { may_open: isLast } });
            return "The rule is gone.";
          }}
          onClose={() => setRemoved(undefined)}
          onDone={again}
        >
          <p><code>{short(removed.text, 300)}</code></p>
          {isLast && <p>It is the last rule: without rules, everybody who is let in may do everything.</p>}
        </Action>
      )}
    </>
  );
}

export function UserGroups({ search }: { search: string }): JSX.Element {
  const pages = usePages("GET /access/groups", { query: { search } });
  return (
    <Table
      label="Groups of users"
      pages={pages}
      keyOf={(row) => row.name}
      columns={[
        { title: "Group", cell: (row) => <Name text={row.name} /> },
        { title: "Users", cell: (row) => <Name text={row.users.join(", ")} />, grow: true },
        { title: "Rules", cell: (row) => <Name text={row.rules.join(", ")} />, wide: true },
      ]}
      empty={<Empty title="There is no group">A rule that names group:devices makes one; users get groups by their administrator.</Empty>}
    />
  );
}
