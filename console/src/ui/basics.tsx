// Small parts that every page is made of.
import type { ComponentChildren, JSX } from "preact";
import { short } from "../format";

export type Tone = "plain" | "good" | "warn" | "bad" | "mqtt" | "kafka" | "amqp" | "other";

const PROTOCOLS: readonly string[] = ["mqtt", "kafka", "amqp"];

/** A stranger's name: nothing in it is markup, hidden, or turns the text around it. */
export function Name({ text, most }: { text: string; most?: number }): JSX.Element {
  if (text === "") return <i class="faint">(empty)</i>;
  return (
    <bdi class="name" title={short(text, 1000)}>
      {short(text, most)}
    </bdi>
  );
}

export function Badge({ tone = "plain", children }: {
  tone?: Tone;
  children: ComponentChildren;
}): JSX.Element {
  return <span class={`badge ${tone}`}>{children}</span>;
}

export function Protocol({ name }: { name: string }): JSX.Element {
  return <Badge tone={PROTOCOLS.includes(name) ? (name as Tone) : "other"}>{name}</Badge>;
}

export function Head({ title, about, children }: {
  title: ComponentChildren;
  about?: ComponentChildren;
  children?: ComponentChildren;
}): JSX.Element {
  return (
    <header class="head">
      <div>
        <h1>{title}</h1>
        {about !== undefined && <p class="about">{about}</p>}
      </div>
      {children !== undefined && <div class="actions">{children}</div>}
    </header>
  );
}

export function Card({ title, children, wide, extra }: {
  title?: ComponentChildren;
  children: ComponentChildren;
  wide?: boolean;
  extra?: ComponentChildren;
}): JSX.Element {
  return (
    <section class={wide ? "card wide" : "card"}>
      {title !== undefined && (
        <div class="card-title">
          <h2>{title}</h2>
          {extra}
        </div>
      )}
      {children}
    </section>
  );
}

export function Stat({ label, value, note, tone = "plain" }: {
  label: string;
  value: ComponentChildren;
  note?: ComponentChildren;
  tone?: Tone;
}): JSX.Element {
  return (
    <div class={`stat ${tone}`}>
      <span class="stat-label">{label}</span>
      <span class={typeof value === "string" && value.length > 7 ? "stat-value long" : "stat-value"}>{value}</span>
      {note !== undefined && <span class="stat-note">{note}</span>}
    </div>
  );
}

/** Nothing to show, and what to do about it. */
export function Empty({ title, children }: {
  title: string;
  children?: ComponentChildren;
}): JSX.Element {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children !== undefined && <div>{children}</div>}
    </div>
  );
}

export function Problem({ text, again }: {
  text: string | undefined;
  again?: () => void;
}): JSX.Element | null {
  if (text === undefined) return null;
  return (
    <div class="problem" role="alert">
      <span>{short(text, 600)}</span>
      {again !== undefined && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Facts({ rows }: {
  rows: readonly (readonly [string, ComponentChildren])[];
}): JSX.Element {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Search({ value, onChange, label = "Search", about = label }: {
  value: string;
  onChange: (text: string) => void;
  /** What the empty field says: short, it has to fit on a phone. */
  label?: string;
  /** The same with all that is searched. */
  about?: string;
}): JSX.Element {
  return (
    <input
      type="search"
      class="search"
      data-search
      maxLength={1024}
      placeholder={`${label}  ( / )`}
      title={about}
      aria-label={about}
      value={value}
      onInput={(event) => onChange(event.currentTarget.value)}
    />
  );
}

export function Choice<T extends string>({ label, value, options, onChange }: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}): JSX.Element {
  return (
    <select
      aria-label={label}
      value={value}
      onChange={(event) => {
        const found = options.find(([key]) => key === event.currentTarget.value);
        if (found) onChange(found[0]);
      }}
    >
      {options.map(([key, text]) => (
        <option key={key} value={key}>
          {text}
        </option>
      ))}
    </select>
  );
}
