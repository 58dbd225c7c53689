/** The list of commands and entries (Ctrl K, or ⌘ K on a Mac), and the list of keys (?). This script is fetched on demand. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { TABS, type View } from "../route";
import { visible } from "../text";
import { focusView } from "./focus";
import { GO_TO, useModel } from "./hooks";

/** When it is closed, the focus returns to where it was, unless `focus` moves it. */
function Dialog({ label, close, focus, children }: { label: string; close: () => void; focus?: () => boolean; children: ComponentChildren }): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => { // before the next key
    const { current } = box, before = document.activeElement;
    current?.showModal();
    addEventListener("popstate", close); // Back may have led to another view
    return () => { removeEventListener("popstate", close); current?.close(); if (!focus?.() && before instanceof HTMLElement) before.focus(); };
  }, []);
  return <dialog ref={box} aria-label={label} onCancel={(e) => { e.preventDefault(); close(); }} onClick={(e) => { if (e.target === box.current) close(); }}>{children}</dialog>;
}

const KEYS: readonly (readonly [string, string])[] = [
  [GO_TO, "Go to an entry or a view"], ["?", "Show these shortcuts"], ["/", "Filter the entries"], ["Esc", "Close the entry"],
  ["↑ ↓", "Move, and show the entry if one is open"], ["→ ←", "Open or close a group, or go to its first child or its parent"], ["Enter", "Show the entry, or open the group"], ["a – z", "Go to the next name that begins with these letters"],
  ["*", "Open everything below a group"], ["u", "Fold or unfold layers that are alike"], ["Home End", "Go to the first or last row"],
];

export function Shortcuts({ close }: { close: () => void }): JSX.Element {
  return (
    <Dialog label="Shortcuts" close={close}>
      <header><h2>Shortcuts</h2><button type="button" class="ghost small" aria-label="Close" onClick={close}>✕</button></header>
      <dl class="keys">{KEYS.map(([keys, text]) => <div key={keys}><dt>{keys.split(" ").map((k) => k === "–" ? " – " : <kbd key={k}>{k}</kbd>)}</dt><dd>{text}</dd></div>)}</dl>
    </Dialog>
  );
}

const MOST = 50, VIEWS: Readonly<Record<string, string>> = { load: "Would it load?", share: "Share" };
interface Command { readonly label: string; readonly kind: string; readonly act: () => void }
/** Entries, and the text that they were looked for by. */
interface Found { readonly of: string; readonly names: readonly string[] }

export function Palette({ go, close, ask }: { go: (view: View) => void; close: () => void; ask: (what: "shortcuts") => void }): JSX.Element {
  const model = useModel(), [text, setText] = useState(""), [at, setAt] = useState(0), [found, setFound] = useState<Found>({ of: "", names: [] }), latest = useRef("");
  const list = useRef<HTMLUListElement>(null), went = useRef(false), isEntered = useRef(false);
  const find = async (typed: string) => {
    latest.current = typed;
    isEntered.current = false;
    setText(typed);
    setAt(0);
    const names = typed.trim() ? await model.client.call("find", { text: typed, count: MOST }).catch(() => []) : [];
    if (latest.current === typed) setFound({ of: typed, names });
  };
  const commands: Command[] = [
    ...[...TABS, "load" as const, "share" as const].map((view): Command => ({ label: VIEWS[view] ?? `${view.charAt(0).toUpperCase()}${view.slice(1)}`, kind: "View", act: () => { go(view); went.current = true; } })),
    { label: "Shortcuts", kind: "Help", act: () => ask("shortcuts") },
    { label: "Open another", kind: "Checkpoint", act: () => { model.close(); go("start"); } },
  ].filter(({ label }) => label.toLowerCase().includes(text.trim().toLowerCase()));
  const all = [...commands, ...found.names.map((fqn): Command => ({ label: visible(fqn), kind: "Entry", act: () => { go("contents"); void model.reveal(fqn); went.current = true; } }))];
  const run = (command: Command | undefined) => { if (command) { close(); command.act(); } };
  /** What is listed may still be of an earlier text, so Enter waits for the answer to what was typed. */
  const runEntered = () => {
    if (!isEntered.current || latest.current !== found.of) return;
    isEntered.current = false;
    run(all[at]);
  };
  useEffect(runEntered, [found]);
  useEffect(() => { list.current?.children[at]?.scrollIntoView({ block: "nearest" }); }, [at]);
  const key = (e: KeyboardEvent) => {
    const by = e.key === "ArrowDown" ? 1 : e.key === "ArrowUp" ? -1 : 0;
    if (by && all.length) { e.preventDefault(); setAt((at + by + all.length) % all.length); }
    if (e.key === "Enter") { e.preventDefault(); isEntered.current = true; runEntered(); }
  };
  return (
    <Dialog label="Go to" close={close} focus={() => { if (went.current) focusView(); return went.current; }}>
      <input type="search" role="combobox" aria-label="Go to" aria-expanded={true} aria-controls="commands" aria-activedescendant={all.length ? `command-${at}` : undefined} value={text} placeholder="Go to an entry or a view" spellcheck={false} autocomplete="off" autofocus onInput={(e) => void find(e.currentTarget.value)} onKeyDown={key} />
      <ul ref={list} id="commands" class="commands" role="listbox" aria-label="Entries and views">
        {all.map((c, i) => <li key={`${c.kind} ${c.label}`} id={`command-${i}`} role="option" aria-selected={i === at} onClick={() => run(c)} onPointerMove={() => setAt(i)}><span class="label">{c.label}</span><span class="quiet">{c.kind}</span></li>)}
      </ul>
      {all.length === 0 && <p class="quiet" role="status">Nothing matches.</p>}
    </Dialog>
  );
}
