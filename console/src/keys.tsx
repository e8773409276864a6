// The keyboard: `g` and a letter goes to a page, `/` searches, `?` shows this list.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { PAGES } from "./pages";
import { go } from "./router";
import { Dialog } from "./ui/dialog";
import { turnTheme } from "./ui/theme";

const PAUSE_MS = 1200;

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

export function Keys(): JSX.Element | null {
  const [help, setHelp] = useState(false);
  useEffect(() => {
    let leaderAt = 0;
    const act = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (document.querySelector("dialog[open]")) return;
      const page = PAGES.find((row) => row.key === event.key);
      if (Date.now() - leaderAt < PAUSE_MS && page) {
        leaderAt = 0;
        go(page.path);
      } else if (event.key === "g") {
        leaderAt = Date.now();
      } else if (event.key === "/") {
        const field = document.querySelector<HTMLElement>("[data-search]");
        if (field) {
          event.preventDefault();
          field.focus();
        }
      } else if (event.key === "t") {
        turnTheme();
      } else if (event.key === "?") {
        setHelp(true);
      }
    };
    addEventListener("keydown", act);
    return () => removeEventListener("keydown", act);
  }, []);
  if (!help) return null;
  const rows: readonly (readonly [string, string])[] = [
    ...PAGES.map((page) => [`g ${page.key}`, page.title] as const),
    ["/", "Search on this page"],
    ["↑ ↓  or  k j", "Walk in a table"],
    ["Enter", "Open the row"],
    ["Esc", "Close a dialog"],
    ["t", "Dark or light"],
    ["?", "This list"],
  ];
  return (
    <Dialog title="Keys" onClose={() => setHelp(false)}>
      <table aria-label="Keys">
        <tbody>
          {rows.map(([key, text]) => (
            <tr key={key}>
              <td>
                <kbd>{key}</kbd>
              </td>
              <td class="grow">{text}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Dialog>
  );
}
