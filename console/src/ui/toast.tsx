// A line that says what was done, for a while.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { short } from "../format";

const SHOWN_MS = 5000;

let tell: (text: string) => void = () => undefined;

export function say(text: string): void {
  tell(text);
}

export function Toasts(): JSX.Element {
  const [text, setText] = useState("");
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    tell = (next) => {
      setText(next);
      clearTimeout(timer);
      timer = setTimeout(() => setText(""), SHOWN_MS);
    };
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class="toast" role="status" aria-live="polite" hidden={text === ""}>
      {short(text, 300)}
    </div>
  );
}
