// How numbers, times and strangers' texts are written. Everything shown goes through here.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

/** Characters that would hide or turn around the text beside them. */
const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const UNSEEN_IN_TEXT =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

function escape(mark: string): string {
  return `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

/** A name as one line in which nothing is hidden. */
export function visible(text: string): string {
  return text.replace(UNSEEN, escape);
}

/** A text of many lines in which nothing is hidden. */
export function visibleText(text: string): string {
  return text.replace(UNSEEN_IN_TEXT, escape);
}

/** A name that is not longer than a line. */
export function short(text: string, most = 160): string {
  const shown = visible(text.length > most * 2 ? text.slice(0, most * 2) : text);
  return shown.length > most ? `${shown.slice(0, most)}…` : shown;
}

export function whole(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : WHOLE.format(value);
}

export function compact(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 10_000 ? WHOLE.format(value) : SHORT.format(value);
}

export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0/s";
  return value < 9.95 ? `${value.toFixed(1)}/s` : `${compact(value)}/s`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  let left = value;
  let unit = 0;
  while (left >= 1024 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 || left >= 100 ? Math.round(left) : left.toFixed(1)} ${UNITS[unit] ?? "B"}`;
}

export function byteRate(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${bytes(value)}/s`;
}

export function time(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  const pad = (value: number, size = 2): string => String(value).padStart(size, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return `${day} ${clock}.${pad(date.getMilliseconds(), 3)}`;
}

export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.floor(ms / 1000);
  if (seconds < 1) return `${Math.max(0, Math.round(ms))} ms`;
  const parts: readonly (readonly [number, string])[] = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(" ");
}

export function ago(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "–";
  const passed = Date.now() - ms;
  return passed < 1000 ? "now" : `${duration(passed)} ago`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

const UNBOUNDED = 2 ** 63;
/** Endings of keys, and how their numbers are written for people. */
const SCALES: readonly (readonly [ending: RegExp, write: (value: number) => string])[] = [
  [/(^|[._])ms(_max|_min)?$/, duration],
  [/(^|[._])bytes(_max|_min)?$|bytes_per_s$/, bytes],
];

/** A setting as people read it. -1, and the greatest number of 64 bits, stand for no bound; -2 for the same as of all records. */
export function setting(key: string, value: unknown): string {
  if (value === null || value === "") return "–";
  if (typeof value === "number") {
    const scale = SCALES.find(([ending]) => ending.test(key))?.[1];
    if (value >= UNBOUNDED || (scale !== undefined && value === -1)) return "no bound";
    if (scale !== undefined && value === -2) return "as all records";
    return scale === undefined || value < 0 ? String(value) : value === 0 ? "0" : scale(value);
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return short(value);
  if (Array.isArray(value)) return value.length === 0 ? "–" : short(value.map(String).join(", "));
  return short(JSON.stringify(value));
}
