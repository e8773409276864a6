// The start: find out who looks, then show the page that the address names.
import { type ComponentType, type JSX, render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, whenLoggedOut, whenRefused } from "./api/client";
import { textOf } from "./api/hooks";
import { reopenLive, useLive, whenBack } from "./api/live";
import type { SessionInfo } from "./api/schema";
import { Layout } from "./layout";
import { Login } from "./login";
import { PAGES, type PageProps } from "./pages";
import { link, type Place, usePlace } from "./router";
import { loadSession, logOut, SessionContext } from "./session";
import "./styles.css";
import { Empty, Problem } from "./ui/basics";
import { showTheme } from "./ui/theme";
import { Toasts } from "./ui/toast";

const UNLOADED =
  "This page cannot be loaded: the broker does not answer, or it was replaced by another version.";

/** A page whose code did not come is loaded with everything else, once the broker answers again. */
function useReloadWhenBack(isMissing: boolean): void {
  const { connected } = useLive();
  const wasLost = useRef(false);
  useEffect(() => {
    if (!isMissing) wasLost.current = false;
    else if (!connected) wasLost.current = true;
    else if (wasLost.current) location.reload();
  }, [isMissing, connected]);
}

function Page({ place }: { place: Place }): JSX.Element {
  const row = PAGES.find((page) => page.path === place.path);
  const [shown, setShown] = useState<{ path: string; view: ComponentType<PageProps> }>();
  const [error, setError] = useState<string>();
  useReloadWhenBack(error !== undefined);
  useEffect(() => {
    document.title = row ? `${row.title} · OneLog` : "OneLog";
    let current = true;
    setError(undefined);
    row
      ?.load()
      .then((found) => current && setShown({ path: row.path, view: found.default }))
      .catch(() => current && setError(UNLOADED));
    return () => {
      current = false;
    };
  }, [row]);
  if (row === undefined) {
    return (
      <Empty title="There is no such page">
        <a href={link("overview")}>Go to the overview</a>
      </Empty>
    );
  }
  if (error !== undefined) return <Problem text={error} again={() => location.reload()} />;
  if (shown?.path !== row.path) return <p class="faint pad">Loading…</p>;
  const View = shown.view;
  return <View query={place.query} />;
}

function App(): JSX.Element {
  const place = usePlace();
  const [session, setSession] = useState<SessionInfo | null>(null);
  const [asks, setAsks] = useState(false);
  const [needed, setNeeded] = useState(false);
  const [why, setWhy] = useState<string>();
  const load = (): void => {
    setWhy(undefined);
    loadSession()
      .then((found) => {
        setSession(found);
        setNeeded(false);
        reopenLive();
      })
      .catch((problem: unknown) => {
        const locked = problem instanceof ApiError && problem.status === 401;
        setNeeded(locked);
        setWhy(locked && session === null ? undefined : textOf(problem));
      });
  };
  const look = (): void => {
    const had = session?.proof === "session";
    loadSession()
      .then((found) => {
        setSession(found);
        if (!had || found.proof === "session") return;
        setWhy("Your login is over: log in again.");
        setAsks(true);
      })
      .catch(() => undefined); // a 401 asks for a login; a broker that is away is said elsewhere
  };
  useEffect(() => {
    whenLoggedOut(() => setNeeded(true));
    load();
  }, []);
  useEffect(() => whenRefused(look), [session]);
  useEffect(() => whenBack(look), [session]);
  const control = useMemo(
    () =>
      session && {
        session,
        logIn: () => {
          setWhy(undefined);
          setAsks(true);
        },
        logOut: () => {
          logOut().then(load).catch(load);
        },
      },
    [session],
  );
  const done = (found: SessionInfo): void => {
    setSession(found);
    setAsks(false);
    setNeeded(false);
    reopenLive();
  };
  if (needed || asks) {
    return <Login onDone={done} onCancel={needed ? null : () => setAsks(false)} why={why} />;
  }
  if (control === null) {
    return <main class="login">{why ? <Problem text={why} again={load} /> : <p />}</main>;
  }
  return (
    <SessionContext.Provider value={control}>
      <Layout current={place.path}>
        <Page place={place} />
      </Layout>
      <Toasts />
    </SessionContext.Provider>
  );
}

showTheme();
const root = document.getElementById("root");
if (root) render(<App />, root);
