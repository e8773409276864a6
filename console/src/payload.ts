// What a payload is, and how it reads: JSON, text, Protobuf's fields, Avro that brings its schema,
// bytes. Nothing here trusts a payload: each reader is bounded and gives up on what does not fit.
import { visibleText } from "./format";
import { readAvroFile } from "./payload_avro";
import { readProtobuf } from "./payload_protobuf";

export type Form = "json" | "text" | "protobuf" | "avro" | "hex";

export interface Payload {
  readonly text: string | null;
  readonly base64: string | null;
  readonly contentType: string;
}

const JSON_CHARS_MAX = 512 * 1024;
const HEX_BYTES_MAX = 16 * 1024;

export function bytesOf(payload: Payload): Uint8Array {
  if (payload.text !== null) return new TextEncoder().encode(payload.text);
  const raw = atob(payload.base64 ?? "");
  return Uint8Array.from(raw, (mark) => mark.charCodeAt(0));
}

function asJson(text: string): string | null {
  const first = text.trimStart()[0];
  if (first === undefined || !'{["-0123456789tfn'.includes(first)) return null;
  if (text.length > JSON_CHARS_MAX) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** Lines of sixteen bytes: their place, their digits, their characters. */
export function hex(bytes: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES_MAX); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const marks = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "."));
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${marks.join("")}`);
  }
  if (bytes.length > HEX_BYTES_MAX) lines.push(`… ${bytes.length - HEX_BYTES_MAX} bytes more`);
  return lines.join("\n");
}

/** The forms in which a payload can be read; the first one fits best. */
export function formsOf(payload: Payload): readonly (readonly [Form, string])[] {
  const found: (readonly [Form, string])[] = [];
  const kind = payload.contentType.toLowerCase();
  const bytes = bytesOf(payload);
  const avro = payload.text === null ? readAvroFile(bytes) : null;
  if (avro !== null) found.push(["avro", visibleText(JSON.stringify(avro, null, 2))]);
  if (payload.text === null || kind.includes("protobuf")) {
    const fields = readProtobuf(bytes);
    if (fields !== null) {
      const row = ["protobuf", visibleText(JSON.stringify(fields, null, 2))] as const;
      if (kind.includes("protobuf")) found.unshift(row);
      else found.push(row);
    }
  }
  if (payload.text !== null) {
    const json = asJson(payload.text);
    if (json !== null) found.push(["json", visibleText(json)]);
    found.push(["text", visibleText(payload.text)]);
  }
  const isKnown = found.length > 0 && (payload.text !== null || kind.includes("protobuf") || avro);
  const bare = ["hex", hex(bytes)] as const;
  return isKnown ? [...found, bare] : [bare, ...found];
}

/** One line of a payload for a table. */
export function previewOf(payload: Payload, most = 200): string {
  if (payload.text !== null) return visibleText(payload.text.slice(0, most)).replace(/\s+/g, " ");
  if (payload.base64 === null) return "";
  const bytes = bytesOf({ ...payload, base64: payload.base64.slice(0, 128) });
  return [...bytes.subarray(0, 32)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}
