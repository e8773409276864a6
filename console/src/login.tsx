// The login: a user and a password, or an identity provider; the server keeps the session behind a
// cookie.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { textOf, useAsk } from "./api/hooks";
import type { SessionInfo } from "./api/schema";
import icon from "./icon.svg";
import { logIn } from "./session";
import { Problem } from "./ui/basics";
import { Field } from "./ui/dialog";

export function Login({ onDone, onCancel, why }: {
  onDone: (session: SessionInfo) => void;
  onCancel: (() => void) | null;
  why: string | undefined;
}): JSX.Element {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState(why);
  const [busy, setBusy] = useState(false);
  const provider = useAsk("GET /login").data?.provider_url;
  const submit = (event: Event): void => {
    event.preventDefault();
    setBusy(true);
    logIn(user, password)
      .then(onDone)
      .catch((problem: unknown) => {
        setError(textOf(problem));
        setBusy(false);
      });
  };
  return (
    <main class="login">
      <form class="card" onSubmit={submit}>
        <span class="brand">
          <img src={icon} alt="" />
          OneLog
        </span>
        <Field label="User">
          <input
            name="user"
            autocomplete="username"
            maxLength={256}
            required
            value={user}
            onInput={(event) => setUser(event.currentTarget.value)}
          />
        </Field>
        <Field label="Password">
          <input
            name="password"
            type="password"
            autocomplete="current-password"
            maxLength={1024}
            required
            value={password}
            onInput={(event) => setPassword(event.currentTarget.value)}
          />
        </Field>
        <Problem text={error} />
        <button type="submit" class="primary" disabled={busy}>
          Log in
        </button>
        {typeof provider === "string" && (
          <a class="button" href={provider}>
            Log in at the identity provider
          </a>
        )}
        {onCancel !== null && (
          <button type="button" onClick={onCancel}>
            Go on without a login
          </button>
        )}
        <p class="faint">
          An administrator makes users: <code>onelog user add NAME --administrator</code>
        </p>
      </form>
    </main>
  );
}
