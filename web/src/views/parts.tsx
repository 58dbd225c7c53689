/** Small components that several views use. */
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { Level, Trouble } from "../protocol";
import { exactText, visible } from "../text";

const ADVICE: Record<string, string> = {
  malformed: "The file is damaged or is not what its name says. Copy it again, or run tessera validate on the machine that wrote it.",
  "input/output": "Drop the files again: they may have been moved, changed or removed since.",
  limit: "The input exceeds a limit that protects against damaged or hostile files.",
  "out of memory": "Close other tabs, or use the tessera command: it streams.",
  broken: "Open the checkpoint again. If it happens again, use the tessera command.",
};

/** `again` opens the checkpoint again after its worker broke; `retry` does what failed in the page. `isMapped`: a map was applied, so a checkpoint that does not fit it need not be damaged. */
export function TroubleBox({ trouble, onClose, again, retry, isMapped }: { trouble: Trouble; onClose?: () => void; again?: () => void; retry?: () => void; isMapped?: boolean }): JSX.Element {
  return (
    <div class="trouble" role="alert">
      <p><strong>{visible(trouble.message)}</strong></p>
      <p class="quiet">
        {/(^|[ (])--[a-z]/.test(trouble.message) && "Words that begin with -- are options of the tessera command; Convert and Reshard have fields for most of them. "}
        {isMapped && trouble.status === "malformed" ? "If the map is for another model or the other direction, choose another one, or none." : ADVICE[trouble.status]}
      </p>
      {trouble.status !== "page" && <details><summary>Details</summary><p>Code: {trouble.status}.{trouble.position !== undefined && <> Byte {exactText(trouble.position)}.</>}</p></details>}
      {trouble.status === "broken" && again && <><button type="button" onClick={again}>Open again</button> </>}
      {trouble.status === "page" && retry && <button type="button" onClick={retry}>Try again</button>}
      {onClose && <button type="button" onClick={onClose}>Dismiss</button>}
    </div>
  );
}

const MARKS: Record<Level, string> = { error: "✕", warning: "!", note: "i" };

export function LevelMark({ level, text }: { level: Level; text?: boolean }): JSX.Element {
  return <span class={`level ${level}`}><span aria-hidden="true">{MARKS[level]}</span>{text ? ` ${level}` : <span class="hidden"> {level}</span>}</span>;
}

export function Copy({ text, what, label = "Copy" }: { text: string; what: string; label?: string }): JSX.Element {
  const [done, setDone] = useState<{ readonly text: string; readonly says: string }>();
  const copy = async () => {
    const now = { text, says: await navigator.clipboard?.writeText(text).then(() => "Copied", () => "") || "Not copied" };
    setDone(now);
    setTimeout(() => setDone((latest) => latest === now ? undefined : latest), 1200);
  };
  return <button type="button" class="small" onClick={() => void copy()} aria-label={`Copy ${what}`}>{done?.text === text ? done.says : label}</button>;
}

/** Buttons that are seldom needed, below the others once they are asked for. */
export function More({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  return <><button type="button" class="ghost" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>{label}</button>{isOpen && <span class="more" role="group" aria-label={label}>{children}</span>}</>;
}

export function Facts({ facts }: { facts: readonly (readonly [string, ComponentChildren])[] }): JSX.Element {
  return <dl class="facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

export function Bar({ done, total, label }: { done: number; total: number; label: string }): JSX.Element {
  return total > 0 ? <progress value={Math.min(done, total)} max={total} aria-label={label} /> : <progress aria-label={label} />;
}
