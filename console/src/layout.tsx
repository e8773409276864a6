// The frame around every page: navigation, who is logged in, alarms, keys.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useAsk } from "./api/hooks";
import { useLive } from "./api/live";
import { short } from "./format";
import icon from "./icon.svg";
import { Keys } from "./keys";
import { PAGES } from "./pages";
import { link } from "./router";
import { useSession } from "./session";
import { Badge, type Tone } from "./ui/basics";
import { turnTheme, useTheme } from "./ui/theme";

const RULES_MS = 30_000;
const GROUPS = [...new Set(PAGES.map((page) => page.group))];
const TONES: Readonly<Record<string, Tone>> = { ok: "good", degraded: "warn", failing: "bad" };

function Brand(): JSX.Element {
  return (
    <a class="brand" href={link("overview")}>
      <img src={icon} alt="" />
      OneLog
    </a>
  );
}

function Navigation({ current }: { current: string }): JSX.Element {
  return (
    <>
      {GROUPS.map((group) => (
        <div key={group}>
          <h3>{group}</h3>
          {PAGES.filter((page) => page.group === group).map((page) => (
            <a
              key={page.path}
              class="item"
              href={link(page.path)}
              aria-current={page.path === current ? "page" : undefined}
            >
              {page.title}
              <kbd>g {page.key}</kbd>
            </a>
          ))}
        </div>
      ))}
    </>
  );
}

function Foot(): JSX.Element {
  const { session, logIn, logOut } = useSession();
  const theme = useTheme();
  const live = useLive();
  const status = live.connected ? live.status : "no connection";
  return (
    <div class="foot">
      <div>
        <span class={`dot ${live.connected ? (TONES[live.status] ?? "plain") : "bad"}`} />
        {status}
      </div>
      <div class="row">
        <span class="faint" title={session.name}>
          {short(session.name, 18)} <Badge>{session.role}</Badge>
        </span>
      </div>
      <div class="row">
        {session.proof === "session" ? (
          <button type="button" class="small" onClick={logOut}>
            Log out
          </button>
        ) : (
          <button type="button" class="small" onClick={logIn}>
            Log in
          </button>
        )}
        <button type="button" class="small" onClick={turnTheme}>
          {theme === "dark" ? "Light" : "Dark"}
        </button>
      </div>
    </div>
  );
}

/** What everybody should know, whatever page they are on. */
function Banners(): JSX.Element | null {
  const { session } = useSession();
  const live = useLive();
  const lost = !live.connected && live.history.length > 0;
  const rules = useAsk("GET /access", session.role === "admin" ? null : {}, RULES_MS);
  const hides = session.role !== "admin" && rules.data?.open === false;
  return (
    <>
      {lost && <div class="banner">The broker does not answer. What you see may be old.</div>}
      {session.open && (
        <div class="banner">
          <span>
            There are no users yet: everybody on this machine may do everything.
          </span>
          <a href={link("access", { tab: "users" })}>Make the first administrator</a>
        </div>
      )}
      {hides && (
        <div class="banner">
          <span>
            Access rules are in force: you see what {short(session.name, 40)} has a right to, and there
            may be more.
          </span>
        </div>
      )}
    </>
  );
}

export function Layout({ current, children }: {
  current: string;
  children: ComponentChildren;
}): JSX.Element {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const hide = (): void => setShown(false);
    addEventListener("hashchange", hide);
    return () => removeEventListener("hashchange", hide);
  }, []);
  return (
    <div class="frame">
      <div class="topbar">
        <button type="button" class="quiet" aria-label="Menu" onClick={() => setShown(true)}>
          ☰
        </button>
        <Brand />
      </div>
      <nav class={shown ? "side shown" : "side"} aria-label="Pages">
        <Brand />
        <Navigation current={current} />
        <Foot />
      </nav>
      <button
        type="button"
        class={shown ? "curtain shown" : "curtain"}
        aria-label="Close the menu"
        onClick={() => setShown(false)}
      />
      <main class="main" id="main">
        <Banners />
        {children}
      </main>
      <Keys />
    </div>
  );
}
