// Protobuf without its schema: field numbers and what their bytes can be.

const DEPTH_MAX = 8;
const FIELDS_MAX = 2000;

export type ProtoValue = string | number | { readonly [field: string]: ProtoValue | readonly ProtoValue[] };
type Fields = Record<string, ProtoValue | ProtoValue[]>;

class Reader {
  at = 0;
  constructor(readonly bytes: Uint8Array) {}

  get isOver(): boolean {
    return this.at >= this.bytes.length;
  }

  varint(): bigint | null {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.bytes[this.at];
      if (byte === undefined) return null;
      this.at += 1;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return null;
  }

  take(size: number): Uint8Array | null {
    if (size < 0 || this.at + size > this.bytes.length) return null;
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }
}

function plain(value: bigint): number | string {
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value.toString();
}

function textOf(bytes: Uint8Array): string | null {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return /^[^\u0000-\u0008\u000e-\u001f]*$/.test(text) ? text : null;
  } catch {
    return null;
  }
}

function readValue(reader: Reader, wire: number, left: Budget, depth: number): ProtoValue | null {
  if (wire === 0) {
    const value = reader.varint();
    return value === null ? null : plain(value);
  }
  if (wire === 1 || wire === 5) {
    const found = reader.take(wire === 1 ? 8 : 4);
    if (found === null) return null;
    const view = new DataView(found.buffer, found.byteOffset, found.length);
    return wire === 1 ? view.getFloat64(0, true) : view.getFloat32(0, true);
  }
  if (wire !== 2) return null;
  const size = reader.varint();
  const found = size === null ? null : reader.take(Number(size));
  if (found === null) return null;
  const inner = depth < DEPTH_MAX && found.length > 0 ? readFields(found, left, depth + 1) : null;
  const text = textOf(found);
  if (text !== null && (inner === null || /^[\x20-\x7e]*$/.test(text))) return text;
  if (inner !== null) return inner;
  return [...found.subarray(0, 64)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

interface Budget {
  fields: number;
}

function readFields(bytes: Uint8Array, left: Budget, depth: number): Fields | null {
  const reader = new Reader(bytes);
  const found: Fields = {};
  while (!reader.isOver) {
    left.fields -= 1;
    const tag = reader.varint();
    if (left.fields < 0 || tag === null || tag >> 3n === 0n || tag >> 3n > 536_870_911n) return null;
    const value = readValue(reader, Number(tag & 7n), left, depth);
    if (value === null) return null;
    const name = `#${tag >> 3n}`;
    const before = found[name];
    if (before === undefined) found[name] = value;
    else if (Array.isArray(before)) before.push(value);
    else found[name] = [before, value];
  }
  return found;
}

/** The fields of a message by their numbers; null: these bytes are none. */
export function readProtobuf(bytes: Uint8Array): ProtoValue | null {
  return bytes.length === 0 ? null : readFields(bytes, { fields: FIELDS_MAX }, 0);
}
