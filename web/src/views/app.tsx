/** The page: the start page, or the opened checkpoint with its header, tabs, list and detail. */
import type { ComponentType, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { checkpointsOf, filesOfDrop, handlesOfDrop } from "../collect";
import { isDamaged } from "../lost";
import type { Job, Model } from "../model";
import { TABS, viewOf, type Tab, type View } from "../route";
import { bytesText, exactText, visible } from "../text";
import { closeEntry, FoldedOverview, SidePane } from "./detail";
import { useKeptFocus } from "./focus";
import { Header } from "./header";
import { isMac, useModel, useNarrow, useView } from "./hooks";
import { Listing } from "./listing";
import { Later } from "./later";
import { Bar, TroubleBox } from "./parts";
import { Problems, problemCount } from "./problems";
import { Start } from "./start";

function Tabs({ view, go }: { view: View; go: (view: View) => void }): JSX.Element {
  const model = useModel(), { errors, warnings } = problemCount(model);
  const count = errors + warnings, names: Record<Tab, string> = { contents: "Contents", problems: "Problems", files: "Files", optimizer: "Optimizer", names: "Names", compare: "Compare", convert: "Convert", reshard: "Reshard" };
  const at = TABS.indexOf(view as Tab);
  const key = (e: KeyboardEvent) => {
    const by = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    const next = TABS[(at + by + TABS.length) % TABS.length];
    if (by && next) { go(next); document.getElementById(`tab-${next}`)?.focus(); }
  };
  return (
    <div class="tabs" role="tablist" aria-label="Views" onKeyDown={key}>
      {TABS.map((t) => <button key={t} id={`tab-${t}`} type="button" role="tab" aria-selected={t === view} aria-controls="panel" tabIndex={t === view || (at < 0 && t === "contents") ? 0 : -1} onClick={() => go(t)}
        >{names[t]}{t === "problems" && count > 0 && <span class={errors ? "count bad" : "count"}> {exactText(count)}</span>}</button>)}
    </div>
  );
}

/** The views whose scripts are fetched when they are opened for the first time. */
const LATER: Partial<Record<View, () => Promise<ComponentType>>> = {
  compare: async () => (await import("./compare")).Compare,
  convert: async () => (await import("./convert")).Convert,
  reshard: async () => (await import("./reshard")).Reshard,
  load: async () => (await import("./load")).Load,
  names: async () => (await import("./names")).NamesView,
  share: async () => (await import("./share")).Share,
  optimizer: async () => (await import("./optimizer")).OptimizerView,
};

const loadFiles = async () => (await import("./files")).Files;

/** Views that need the whole width. */
const WIDE: readonly View[] = ["convert", "reshard"];
const SHARE = "side", LEAST = 20, MOST = 75, FIRST = 38;
const savedShare = (): number => { try { return Number(localStorage.getItem(SHARE)) || FIRST; } catch { return FIRST; } };
/** What was chosen on this page, of which the browser may keep nothing. */
let latestShare: number | undefined;

/** The border between the list and the entry. It moves with the pointer and with the arrow keys. */
function Divider(): JSX.Element {
  const [share, setShare] = useState(() => latestShare ?? savedShare()), box = useRef<HTMLDivElement>(null);
  const set = (to: number) => {
    const next = Math.round(Math.max(LEAST, Math.min(MOST, to)));
    setShare(latestShare = next);
    try { localStorage.setItem(SHARE, String(next)); } catch { /* It is then valid only until the page is closed. */ }
  };
  useLayoutEffect(() => { box.current?.parentElement?.style.setProperty("--side", `${share}%`); }, [share]);
  const move = (e: PointerEvent) => {
    const room = box.current?.parentElement?.getBoundingClientRect();
    if (room && box.current?.hasPointerCapture(e.pointerId)) set((room.right - e.clientX) / room.width * 100);
  };
  const key = (e: KeyboardEvent) => {
    const by = e.key === "ArrowLeft" ? 2 : e.key === "ArrowRight" ? -2 : 0;
    if (by) { e.preventDefault(); set(share + by); }
  };
  return <div ref={box} class="divider" role="separator" aria-orientation="vertical" aria-label="Width of the entry" aria-valuenow={share} aria-valuemin={LEAST} aria-valuemax={MOST} tabIndex={0} onKeyDown={key}
    onPointerDown={(e) => e.currentTarget.setPointerCapture(e.pointerId)} onPointerMove={move} onDblClick={() => set(FIRST)} />;
}

function Panel({ view, go }: { view: View; go: (view: View) => void }): JSX.Element {
  const model = useModel(), isNarrow = useNarrow();
  const show = (fqn: string) => { void model.reveal(fqn); };
  const showFile = (term: string) => { go("contents"); void model.lists.filter("all", term); };
  const isTab = (TABS as readonly string[]).includes(view), hasSide = view === "contents" || (model.selected !== undefined && !WIDE.includes(view));
  return (
    <div id="panel" {...(isTab ? { role: "tabpanel", "aria-labelledby": `tab-${view}` } : {})} class={model.selected && hasSide ? "panel chosen" : "panel"}>
      {view === "contents" && isNarrow && !model.selected && <FoldedOverview go={go} />}
      {view === "contents" && <Listing />}
      {view === "files" && <Later load={loadFiles} showFile={showFile} show={show} />}
      {view === "problems" && <Problems show={show} go={go} />}
      {LATER[view] && <Later key={view} load={LATER[view]} />}
      {hasSide && <><Divider /><SidePane go={go} /></>}
    </div>
  );
}

function JobBar({ job }: { job: Job }): JSX.Element {
  const { bytesRead } = useModel(), { done, total } = job.progress ?? { done: bytesRead, total: 0 };
  return (
    <div class="job" role="status">
      <span>{visible(job.title)} … {done > 0 && bytesText(done)}{total > 0 && done <= total && ` of ${bytesText(total)}`}</span>
      <Bar done={done} total={total} label={visible(job.title)} />
      {job.cancel && <button type="button" onClick={job.cancel}>Cancel</button>}
    </div>
  );
}

const loadWhole = async () => (await import("./whole")).Whole;
const loadDamaged = async () => (await import("./damaged")).Damaged;
const loadPalette = async () => (await import("./palette")).Palette;
const loadShortcuts = async () => (await import("./palette")).Shortcuts;

function useShortcuts(model: Model, ask: (what: "palette" | "shortcuts") => void): void {
  useLayoutEffect(() => {
    const hear = (e: KeyboardEvent) => {
      const inText = e.target instanceof HTMLInputElement || e.target instanceof HTMLTextAreaElement || e.target instanceof HTMLSelectElement;
      if (document.querySelector("dialog[open]")) return;
      if (e.key === "k" && (isMac ? e.metaKey : e.ctrlKey)) { e.preventDefault(); if (model.opened) ask("palette"); }
      if (e.key === "?" && !inText) { e.preventDefault(); ask("shortcuts"); }
      if (e.key === "Escape" && !inText && model.selected) closeEntry(model);
      if (e.key === "/" && !inText) {
        const input = document.querySelector<HTMLInputElement>(".filter input");
        if (input) { e.preventDefault(); input.focus(); }
      }
      if (e.key === "ArrowDown" && inText && e.target instanceof HTMLElement && e.target.closest(".filter")) { e.preventDefault(); document.querySelector<HTMLElement>(".grid")?.focus(); }
    };
    addEventListener("keydown", hear);
    return () => removeEventListener("keydown", hear);
  }, []);
}

/** Files may be dropped anywhere on the page. They are opened, or compared with the checkpoint that is open. */
function useDrop(model: Model, view: View): { isOver: boolean; handlers: Record<string, (e: DragEvent) => void> } {
  const [isOver, setOver] = useState(false);
  const over = (e: DragEvent) => {
    if (!e.dataTransfer?.types.includes("Files")) return; // Dropped text goes into the field under the pointer.
    e.preventDefault();
    setOver(true);
  };
  const drop = (e: DragEvent) => {
    setOver(false);
    if (!e.dataTransfer?.types.includes("Files")) return;
    e.preventDefault();
    const found = filesOfDrop(e.dataTransfer), prepare = async () => checkpointsOf(await found);
    if (model.opened && view === "load") void model.loadCheck.against(prepare);
    else if (model.opened && view === "compare") void model.comparing.with(prepare);
    else void model.open(prepare, handlesOfDrop(e.dataTransfer));
  };
  return { isOver, handlers: { onDragEnter: over, onDragOver: over, onDrop: drop, onDragLeave: (e) => { if (e.relatedTarget === null) setOver(false); }, onPointerMove: () => setOver(false) } }; // a browser need not say that a drag was cancelled
}

export function App(): JSX.Element {
  const model = useModel(), [asked, go] = useView(), { opened } = model;
  const view = opened && !model.choice ? asked : "start";
  const { isOver, handlers } = useDrop(model, view);
  const [isAsking, setAsked] = useState<"palette" | "shortcuts">();
  useShortcuts(model, setAsked);
  useKeptFocus();
  const title = opened && model.opening?.title;
  useEffect(() => { document.title = title === undefined ? "Tessera" : `${visible(title)} – Tessera`; }, [title]); // tells tabs apart
  useEffect(() => {
    if (!opened) return;
    if (viewOf(location.hash) === "start") go("contents"); // `asked` may not have the tab of a link yet
  }, [opened]);
  return (
    <div class={`page${isOver ? " over" : ""}`} {...handlers}>
      <Header isShown={opened !== undefined && view !== "start"} go={go} ask={setAsked} />
      {model.jobs.length > 0 && <div class="jobs">{model.jobs.map((job, i) => <JobBar key={i} job={job} />)}</div>}
      {model.trouble && <TroubleBox trouble={model.trouble} onClose={() => model.dismiss()} {...(model.opening ? { again: () => void model.openAgain() } : {})} />}
      {model.trouble && model.failed && <Later load={loadWhole} opening={model.failed} />}
      {opened && view !== "start" && isDamaged(model.opening, model.findings) && <Later load={loadDamaged} go={go} />}
      <main>
        {opened && view !== "start" ? <><Tabs view={view} go={go} /><Panel view={view} go={go} /></>
          : model.opening && !opened && !model.trouble ? <p class="fine" role="status">Opening {visible(model.opening.title)} …</p>
          : <Start {...(opened ? { back: () => { model.dropChoice(); if (asked === "start") go("contents"); } } : {})} />}
      </main>
      {isAsking === "shortcuts" && <Later load={loadShortcuts} close={() => setAsked(undefined)} />}
      {isAsking === "palette" && opened && <Later load={loadPalette} go={go} close={() => setAsked(undefined)} ask={setAsked} />}
    </div>
  );
}
