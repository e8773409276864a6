// Tabs of a page; each has an address.
import type { JSX } from "preact";
import { link } from "../router";

export function Tabs({ page, current, tabs }: {
  page: string;
  current: string;
  tabs: readonly (readonly [string, string])[];
}): JSX.Element {
  return (
    <nav class="tabs" aria-label="Parts of this page">
      {tabs.map(([key, title]) => (
        <a key={key} href={link(page, { tab: key })} aria-current={key === current ? "true" : undefined}>
          {title}
        </a>
      ))}
    </nav>
  );
}
