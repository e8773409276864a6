// Dialogs: a frame over the page, and the one question that every change asks.
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { textOf } from "../api/hooks";
import { Problem } from "./basics";
import { say } from "./toast";

export function Dialog({ title, onClose, children, wide }: {
  title: ComponentChildren;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
}): JSX.Element {
  const frame = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const shown = frame.current;
    if (shown && !shown.open) shown.showModal();
  }, []);
  return (
    <dialog
      ref={frame}
      class={wide ? "wide" : ""}
      onClose={onClose}
      onClick={(event) => event.target === frame.current && onClose()}
    >
      <div class="dialog-body">
        <div class="dialog-title">
          <h2>{title}</h2>
          <button type="button" class="quiet" aria-label="Close" onClick={onClose}>
            ✕
          </button>
        </div>
        {children}
      </div>
    </dialog>
  );
}

export interface ActionProps {
  readonly title: ComponentChildren;
  /** What the button says, such as "Delete". */
  readonly verb: string;
  readonly danger?: boolean;
  readonly act: () => Promise<string | undefined>;
  readonly onClose: () => void;
  readonly onDone?: () => void;
  readonly children?: ComponentChildren;
  readonly wide?: boolean;
  /** Whether the dialog shows something itself afterwards, instead of closing. */
  readonly stays?: boolean;
}

/** A dialog that does one thing: it says what went wrong, or closes and says what was done. */
export function Action(props: ActionProps): JSX.Element {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string>();
  const submit = (event: Event): void => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    props
      .act()
      .then((done) => {
        if (done !== undefined) say(done);
        if (!props.stays) props.onClose();
        props.onDone?.();
      })
      .catch((problem: unknown) => setError(textOf(problem)))
      .finally(() => setBusy(false));
  };
  return (
    <Dialog title={props.title} onClose={props.onClose} wide={props.wide ?? false}>
      <form class="form" onSubmit={submit}>
        {props.children}
        <Problem text={error} />
        <div class="form-end">
          <button type="button" onClick={props.onClose}>
            Cancel
          </button>
          <button type="submit" class={props.danger ? "danger" : "primary"} disabled={busy}>
            {busy ? "…" : props.verb}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function Field({ label, hint, children }: {
  label: string;
  hint?: ComponentChildren;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint !== undefined && <small>{hint}</small>}
    </label>
  );
}
