// Who looks at this page, and what the server lets them do.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { call, setCsrf } from "./api/client";
import type { SessionInfo } from "./api/schema";

export type Role = SessionInfo["role"];

const ORDER: readonly Role[] = ["none", "viewer", "operator", "admin"];

export interface SessionControl {
  readonly session: SessionInfo;
  readonly logIn: () => void;
  readonly logOut: () => void;
}

export const SessionContext = createContext<SessionControl | null>(null);

export function useSession(): SessionControl {
  const found = useContext(SessionContext);
  if (found === null) throw new Error("a page is shown to somebody");
  return found;
}

/** Whether the reader may do what this role may. */
export function useMay(role: Role): boolean {
  return ORDER.indexOf(useSession().session.role) >= ORDER.indexOf(role);
}

export async function loadSession(): Promise<SessionInfo> {
  const found = await call("GET /session");
  setCsrf(found.csrf);
  return found;
}

export async function logIn(user: string, password: string): Promise<SessionInfo> {
  const found = await call("POST /login", { body: { user, password } });
  setCsrf(found.csrf);
  return found;
}

export async function logOut(): Promise<void> {
  await call("POST /logout");
  setCsrf(null);
}
