/** One line about the checkpoint: its name, what it is, and a verdict; then the theme and a menu. */
import type { JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { formatText } from "../formats";
import { rankOf } from "../ranks";
import type { View } from "../route";
import { amountText, bytesText, exactText, plural, visible } from "../text";
import { GO_TO, useModel } from "./hooks";
import { problemCount } from "./problems";
import { Theme } from "./theme";

const MOST_DTYPES = 2;

function Verdict({ go }: { go: (view: View) => void }): JSX.Element | null {
  const model = useModel(), { opened } = model;
  if (!opened) return null;
  const { errors, warnings } = problemCount(model), { absent, files } = opened.overview;
  const data = files.filter((f) => f.absent || f.chunks > 0).length;
  const [kind, text] = opened.isMetadataOnly ? ["warning", `Metadata only: ${exactText(absent.length)} of ${plural(data, "data file")} absent`]
    : absent.length ? ["error", `${exactText(absent.length)} of ${plural(data, "data file")} absent`]
    : errors + warnings ? [errors ? "error" : "warning", plural(errors + warnings, "problem")]
    : model.isDeep ? ["fine", "Every byte checked: OK"] : ["fine", "Structure OK — bytes not checked"];
  return <button type="button" class={`verdict ${kind}`} title={text} onClick={() => go("problems")}><span>{text}</span></button>;
}

/** "DCP · 4 ranks · 105 million parameters · 419.4 MiB · float32" */
export function aboutText(model: ReturnType<typeof useModel>): string {
  const { opened } = model;
  if (!opened) return "";
  const { overview, amounts: { parameters } } = opened, ranks = new Set(overview.files.filter((f) => f.chunks > 0).map((f) => rankOf(f.name)).filter((r) => r !== undefined)).size;
  const dtypes = [...overview.dtypes].sort((a, b) => b.bytes - a.bytes).map((d) => d.name), more = dtypes.length - MOST_DTYPES;
  return [
    formatText(overview.format), ranks > 1 && plural(ranks, "rank"),
    parameters ? parameters.elements > 0 && amountText(parameters.elements, "parameter") : overview.elements > 0 && amountText(overview.elements, "element"),
    overview.bytes > 0 && bytesText(overview.bytes), dtypes.length > 0 && `${dtypes.slice(0, MOST_DTYPES).join(", ")}${more > 0 ? ` and ${more} more` : ""}`,
  ].filter(Boolean).join(" · ");
}

interface Item { readonly label: string; readonly keys?: string; readonly act: () => void }

/** A button and the list that it opens. Escape, a click elsewhere, Tab beyond its end and each item close it. */
function Menu({ items }: { items: readonly Item[] }): JSX.Element {
  const [isOpen, setOpen] = useState(false), box = useRef<HTMLDivElement>(null), button = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    if (!isOpen) return undefined;
    box.current?.querySelector<HTMLElement>(".items button")?.focus();
    const leave = (e: Event) => { if (!(e.target instanceof Node) || !box.current?.contains(e.target)) setOpen(false); };
    addEventListener("pointerdown", leave);
    return () => removeEventListener("pointerdown", leave);
  }, [isOpen]);
  const close = () => { setOpen(false); button.current?.focus(); };
  const key = (e: KeyboardEvent) => {
    const list = [...box.current?.querySelectorAll<HTMLElement>(".items button") ?? []], at = list.indexOf(document.activeElement as HTMLElement);
    const by = e.key === "ArrowDown" ? 1 : e.key === "ArrowUp" ? -1 : 0;
    if (isOpen && e.key === "Escape") { e.stopPropagation(); close(); }
    if (isOpen && by) { e.preventDefault(); list[(at + by + list.length) % list.length]?.focus(); }
  };
  return (
    <div ref={box} class="menu" onKeyDown={key} onFocusOut={(e) => { if (e.relatedTarget instanceof Node && !box.current?.contains(e.relatedTarget)) setOpen(false); }}>
      <button ref={button} type="button" class="ghost icon" aria-label="Menu" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M2 4.5h12M2 8h12M2 11.5h12" /></svg></button>
      {isOpen && <div class="items">{items.map(({ label, keys, act }) => <button key={label} type="button" class="ghost" onClick={() => { close(); act(); }}>{label}{keys && <kbd aria-hidden="true">{keys}</kbd>}</button>)}</div>}
    </div>
  );
}

/** `ask` opens the list of commands or the list of shortcuts. */
export function Header({ isShown, go, ask }: { isShown: boolean; go: (view: View) => void; ask: (what: "palette" | "shortcuts") => void }): JSX.Element {
  const model = useModel(), leave = () => { model.close(); go("start"); }, title = visible(model.opening?.title ?? "");
  const shortcuts: Item = { label: "Shortcuts", keys: "?", act: () => ask("shortcuts") };
  return (
    <header class="top">
      <button type="button" class="brand ghost" aria-label="Tessera" onClick={leave}><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M1 1h6v6H1zM9 1h6v4H9zM9 7h6v8H9zM1 9h6v6H1z" /></svg><span>Tessera</span></button>
      {isShown && model.opened && <><h1 title={title}>{title}</h1><p class="about" title={aboutText(model)}>{aboutText(model)}</p><Verdict go={go} /></>}
      <span class="space" />
      <Theme />
      <Menu items={isShown ? [{ label: "Go to an entry or a view", keys: GO_TO, act: () => ask("palette") }, { label: "Would it load?", act: () => go("load") }, { label: "Share", act: () => go("share") }, shortcuts, { label: "Open another", act: leave }] : [shortcuts]} />
    </header>
  );
}
