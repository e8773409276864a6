// Avro that brings its own schema: an object container file (`Obj` 1), uncompressed.

const ROWS_MAX = 100;
const STEPS_MAX = 20_000;
const MAGIC = [0x4f, 0x62, 0x6a, 0x01];

type Schema = string | readonly Schema[] | { readonly type: Schema; readonly [key: string]: unknown };

class Broken extends Error {}

class Reader {
  at = 0;
  steps = 0;
  readonly named = new Map<string, Schema>();
  constructor(readonly bytes: Uint8Array) {}

  take(size: number): Uint8Array {
    if (size < 0 || this.at + size > this.bytes.length) throw new Broken("it is cut");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  long(): number {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.take(1)[0] ?? 0;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return Number((value >> 1n) ^ -(value & 1n));
    }
    throw new Broken("a number is too long");
  }

  text(): string {
    return new TextDecoder().decode(this.take(this.long()));
  }

  float(size: 4 | 8): number {
    const found = this.take(size);
    const view = new DataView(found.buffer, found.byteOffset, size);
    return size === 4 ? view.getFloat32(0, true) : view.getFloat64(0, true);
  }

  /** Blocks of items, each with its count; a negative count is followed by the block's bytes. */
  *blocks(): Generator<undefined> {
    for (let count = this.long(); count !== 0; count = this.long()) {
      if (count < 0) {
        this.long();
        count = -count;
      }
      for (; count > 0; count -= 1) yield undefined;
    }
  }
}

function digits(bytes: Uint8Array): string {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function isList(value: unknown): value is readonly unknown[] {
  return Array.isArray(value);
}

function readPlain(reader: Reader, name: string): unknown {
  switch (name) {
    case "null": return null;
    case "boolean": return reader.take(1)[0] === 1;
    case "int":
    case "long": return reader.long();
    case "float": return reader.float(4);
    case "double": return reader.float(8);
    case "string": return reader.text();
    case "bytes": return digits(reader.take(reader.long()));
    default: {
      const found = reader.named.get(name) ?? reader.named.get(name.slice(name.lastIndexOf(".") + 1));
      if (found === undefined) throw new Broken(`no type ${name}`);
      return readValue(reader, found);
    }
  }
}

function readRecord(reader: Reader, fields: unknown): Record<string, unknown> {
  if (!isList(fields)) throw new Broken("a record has fields");
  const found: Record<string, unknown> = Object.create(null) as Record<string, unknown>;
  for (const field of fields as readonly { name: string; type: Schema }[]) {
    found[field.name] = readValue(reader, field.type);
  }
  return found;
}

function readValue(reader: Reader, schema: Schema): unknown {
  reader.steps += 1;
  if (reader.steps > STEPS_MAX) throw new Broken("it is too large to show");
  if (typeof schema === "string") return readPlain(reader, schema);
  if (isList(schema)) {
    const chosen = schema[reader.long()] as Schema | undefined;
    if (chosen === undefined) throw new Broken("a union has no such part");
    return readValue(reader, chosen);
  }
  const { type } = schema;
  if (typeof type !== "string") return readValue(reader, type);
  if (typeof schema.name === "string") reader.named.set(schema.name, schema);
  if (type === "record" || type === "error") return readRecord(reader, schema.fields);
  if (type === "enum") return (schema.symbols as readonly string[])[reader.long()];
  if (type === "fixed") return digits(reader.take(Number(schema.size)));
  if (type === "array") return readArray(reader, schema.items as Schema);
  if (type === "map") return readMap(reader, schema.values as Schema);
  return readPlain(reader, type);
}

function readArray(reader: Reader, items: Schema): unknown[] {
  const found: unknown[] = [];
  for (const _row of reader.blocks()) found.push(readValue(reader, items));
  return found;
}

function readMap(reader: Reader, values: Schema): Record<string, unknown> {
  const found: Record<string, unknown> = Object.create(null) as Record<string, unknown>;
  for (const _row of reader.blocks()) found[reader.text()] = readValue(reader, values);
  return found;
}

/** The rows of a container; null: these bytes are none, or their codec is not known here. */
export function readAvroFile(bytes: Uint8Array): readonly unknown[] | null {
  if (!MAGIC.every((byte, at) => bytes[at] === byte)) return null;
  const reader = new Reader(bytes);
  try {
    reader.at = MAGIC.length;
    const about = new Map<string, string>();
    for (const _row of reader.blocks()) {
      const name = reader.text();
      about.set(name, new TextDecoder().decode(reader.take(reader.long())));
    }
    if ((about.get("avro.codec") ?? "null") !== "null") return null;
    const schema = JSON.parse(about.get("avro.schema") ?? "") as Schema;
    reader.take(16);
    const rows: unknown[] = [];
    while (reader.at < bytes.length && rows.length < ROWS_MAX) {
      const count = reader.long();
      reader.long();
      for (let left = count; left > 0 && rows.length < ROWS_MAX; left -= 1) {
        rows.push(readValue(reader, schema));
      }
      if (rows.length < ROWS_MAX) reader.take(16);
    }
    return rows;
  } catch {
    return null;
  }
}
