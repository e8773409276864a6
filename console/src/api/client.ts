// The one way to the API. Types come from the OpenAPI document (schema.ts): a call that the server
// would not understand does not compile.
import type { ErrorAnswer, Operations } from "./schema";

export type Key = keyof Operations;
export type Answer<K extends Key> = Operations[K]["answer"];
export type Query<K extends Key> = Operations[K]["query"];
type Names<K extends Key> = Operations[K]["names"];
type Body<K extends Key> = Operations[K]["body"];

export interface Options<K extends Key> {
  readonly names?: Names<K>;
  readonly query?: Query<K>;
  readonly body?: Body<K>;
  readonly signal?: AbortSignal;
}

/** An answer of 400 and above, or none at all (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

let csrf: string | null = null;
let onLoggedOut: () => void = () => undefined;
let onRefused: () => void = () => undefined;

/** The value that changes of a session carry; null: there is no session. */
export function setCsrf(value: string | null): void {
  csrf = value;
}

/** What to do when the server says that the login is over. */
export function whenLoggedOut(act: () => void): void {
  onLoggedOut = act;
}

/** What to do when the server refuses something to a session: perhaps the session is over, and the
 * server saw somebody without a login, who may look but not change. */
export function whenRefused(act: () => void): void {
  onRefused = act;
}

function isError(body: unknown): body is ErrorAnswer {
  return typeof body === "object" && body !== null && "error" in body;
}

async function failure(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const body: unknown = JSON.parse(text);
    if (isError(body)) {
      return new ApiError(response.status, body.error.code, body.error.message);
    }
  } catch {
    // it was no JSON: a proxy in between answered
  }
  return new ApiError(response.status, "http_error", `the server answered ${response.status}`);
}

/** The address of an operation, with names as one part each. */
export function addressOf<K extends Key>(key: K, options: Options<K> = {}): string {
  const names: string[] = [...(options.names ?? [])];
  const template = key.slice(key.indexOf(" ") + 1);
  const path = template.replace(/\{\w+\}/g, () => encodeURIComponent(names.shift() ?? ""));
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options.query ?? {})) {
    if (value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return `/api/v1${path}${text ? `?${text}` : ""}`;
}

/** Ask the API. Throws ApiError. */
export async function call<K extends Key>(key: K, options: Options<K> = {}): Promise<Answer<K>> {
  const method = key.slice(0, key.indexOf(" "));
  const headers: Record<string, string> = { accept: "application/json" };
  if (method !== "GET" && csrf !== null) headers["x-csrf-token"] = csrf;
  if (options.body !== undefined) headers["content-type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(addressOf(key, options), {
      method,
      headers,
      body: options.body === undefined ? null : JSON.stringify(options.body),
      credentials: "same-origin",
      signal: options.signal ?? null,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "the broker does not answer");
  }
  if (!response.ok) {
    const error = await failure(response);
    if (error.status === 401 && key !== "POST /login") onLoggedOut();
    if (error.status === 403 && csrf !== null) onRefused();
    throw error;
  }
  if (response.status === 204) return undefined as Answer<K>;
  return (await response.json()) as Answer<K>;
}
