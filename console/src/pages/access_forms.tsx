// Forms that make and change users and tokens.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { ChangedUser, NewToken as NewTokenBody, NewUser as NewUserBody, UserInfo } from "../api/schema";
import { short, time } from "../format";
import { Choice } from "../ui/basics";
import { Action, Dialog, Field } from "../ui/dialog";

type Given = NonNullable<NewUserBody["role"]>;
type TokenRole = NewTokenBody["role"];

const ROLES: readonly (readonly [Given, string])[] = [
  ["none", "none: a client of the protocols only"],
  ["viewer", "viewer: look at everything"],
  ["operator", "operator: also change what runs"],
  ["admin", "admin: also change users and settings"],
];
const DAY_MS = 86_400_000;

interface FormProps {
  readonly onClose: () => void;
  readonly onDone: () => void;
}

export function NewUser({ isFirst, onClose, onDone }: FormProps & { isFirst: boolean }): JSX.Element {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [role, setRole] = useState<Given>(isFirst ? "admin" : "none");
  return (
    <Action
      title="New user"
      verb="Make it"
      act={async () => {
        await call("POST /users", { body: { name, password, role } });
        return `The user ${name} is made.`;
      }}
      onClose={onClose}
      onDone={() => (isFirst ? location.reload() : onDone())}
    >
      {isFirst && <p>The first user is an administrator. From then on changes need a login.</p>}
      <Field label="Name">
        <input required maxLength={256} autocomplete="off" value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </Field>
      <Field label="Password" hint="At least 8 characters, and not the name.">
        <input required type="password" maxLength={1024} autocomplete="new-password" value={password} onInput={(event) => setPassword(event.currentTarget.value)} />
      </Field>
      <Field label="Role" hint="What the user may do here. What it may publish and read is said by access rules.">
        <Choice label="Role" value={role} options={isFirst ? ROLES.slice(3) : ROLES} onChange={setRole} />
      </Field>
    </Action>
  );
}

export function ChangeUser({ user, onClose, onDone }: FormProps & { user: UserInfo }): JSX.Element {
  const [password, setPassword] = useState("");
  const [role, setRole] = useState<Given>(user.role);
  const [disabled, setDisabled] = useState(user.disabled);
  const act = async (): Promise<string> => {
    const body: ChangedUser = {
      ...(password === "" ? {} : { password }),
      ...(role === user.role ? {} : { role }),
      ...(disabled === user.disabled ? {} : { disabled }),
    };
    await call("PATCH /users/{user}", { names: [user.name], body });
    return "The user is changed.";
  };
  return (
    <Action title={short(user.name, 80)} verb="Change it" act={act} onClose={onClose} onDone={onDone}>
      <p class="faint">
        Made {time(user.created_ms)}
        {user.groups.length > 0 && `, in the groups ${short(user.groups.join(", "), 200)}`}
        {user.scram.length > 0 && `, may log in by ${user.scram.join(", ")}`}
      </p>
      <Field label="Role">
        <Choice label="Role" value={role} options={ROLES} onChange={setRole} />
      </Field>
      <Field label="New password" hint="At least 8 characters. Empty: it stays as it is.">
        <input type="password" maxLength={1024} autocomplete="new-password" value={password} onInput={(event) => setPassword(event.currentTarget.value)} />
      </Field>
      <label class="row">
        <input type="checkbox" checked={disabled} onChange={(event) => setDisabled(event.currentTarget.checked)} />
        Disabled: it may not log in, and its connections end
      </label>
    </Action>
  );
}

export function NewToken({ onClose, onDone }: FormProps): JSX.Element {
  const [label, setLabel] = useState("");
  const [role, setRole] = useState<TokenRole>("viewer");
  const [days, setDays] = useState("30");
  const [made, setMade] = useState<string>();
  if (made !== undefined) return <MadeToken token={made} onClose={() => { onClose(); onDone(); }} />;
  return (
    <Action
      title="New token"
      verb="Make it"
      stays
      act={async () => {
        const body = { label, role, lifetime_ms: Math.floor(Number(days) * DAY_MS) };
        setMade((await call("POST /tokens", { body })).token);
        return undefined;
      }}
      onClose={onClose}
    >
      <Field label="Label" hint="What it is for.">
        <input required maxLength={200} value={label} onInput={(event) => setLabel(event.currentTarget.value)} />
      </Field>
      <div class="pair">
        <Field label="Role">
          <Choice label="Role" value={role} options={[["viewer", "viewer"], ["operator", "operator"], ["admin", "admin"]]} onChange={setRole} />
        </Field>
        <Field label="Ends after days">
          <input type="number" min={0.01} step="any" max={1830} required value={days} onInput={(event) => setDays(event.currentTarget.value)} />
        </Field>
      </div>
    </Action>
  );
}

function MadeToken({ token, onClose }: { token: string; onClose: () => void }): JSX.Element {
  return (
    <Dialog title="The token" onClose={onClose}>
      <p>This is the only time that it is shown: the broker keeps a hash of it.</p>
      <pre data-token>{token}</pre>
      <div class="form-end">
        <button type="button" onClick={() => void navigator.clipboard?.writeText(token)}>Copy</button>
        <button type="button" class="primary" onClick={onClose}>Done</button>
      </div>
    </Dialog>
  );
}
