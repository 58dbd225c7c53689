/** The page: start, or the opened checkpoint with its tabs. The tab stands in the address, names do not. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { filesOfDrop, openingOf } from "../collect";
import { TABS, type Job, type Tab } from "../model";
import type { OutlineName, Overview } from "../protocol";
import { bytesText, countText, exactText, plural, visible } from "../text";
import { Compare } from "./compare";
import { closeEntry, DetailPane } from "./detail";
import { FindingsView } from "./findings";
import { useModel } from "./hooks";
import { Opener } from "./opener";
import { OptimizerView } from "./optimizer";
import { Bar, TroubleBox } from "./parts";
import { Reshard } from "./reshard";
import { Storage } from "./storage";
import { Theme } from "./theme";
import { Tree } from "./tree";

const tabOf = (hash: string): Tab => TABS.find((t) => `#${t}` === hash) ?? "tensors";

function useTab(): [Tab, (tab: Tab) => void] {
  const [tab, setTab] = useState<Tab>(tabOf(location.hash));
  useEffect(() => {
    const hear = () => setTab(tabOf(location.hash));
    addEventListener("hashchange", hear);
    return () => removeEventListener("hashchange", hear);
  }, []);
  return [tab, (to) => { location.hash = to; setTab(to); }];
}

const MOST_DTYPES = 4;

/** What share of the bytes each dtype has, largest first. */
function mixText({ dtypes, bytes }: Overview): string {
  const share = (part: number) => part > 0 && part / bytes < 0.01 ? "<1" : bytes ? Math.round(part / bytes * 100) : 0;
  const list = [...dtypes].sort((a, b) => b.bytes - a.bytes), rest = list.length - MOST_DTYPES;
  return list.slice(0, rest === 1 ? list.length : MOST_DTYPES).map((d) => `${d.name} ${share(d.bytes)} %`).concat(rest > 1 ? [`${rest} more dtypes`] : []).join(", ");
}

function Summary(): JSX.Element | null {
  const model = useModel(), overview = model.opened?.overview;
  if (!overview) return null;
  const objects = overview.objects + overview.opaque;
  return (
    <div class="summary">
      <h1>{visible(model.opening?.title ?? "")}</h1>
      <ul aria-label="Summary">
        <li><strong>{overview.format}</strong></li>
        <li>{plural(overview.tensors, "tensor")}{objects > 0 && `, ${plural(objects, "object")}`}</li>
        <li>{countText(overview.elements)} elements</li>
        <li>{bytesText(overview.bytes)} in {plural(overview.files.length, "file")}</li>
        {overview.dtypes.length > 0 && <li class="mix">{mixText(overview)}</li>}
      </ul>
    </div>
  );
}

function FilterLine({ outline }: { outline: OutlineName }): JSX.Element {
  const model = useModel(), listing = model.listings[outline];
  return (
    <div class="filter">
      <input type="search" aria-label="Filter" id={`filter-${outline}`} value={listing.filter} spellcheck={false} autocomplete="off"
        placeholder="Filter: text, **.weight, dtype:bfloat16, shape:4096x*, >1GB, file:__0" onInput={(e) => void model.filter(outline, e.currentTarget.value)} />
      <span class="quiet" role="status">{listing.trouble ? <span class="bad">{listing.trouble.message}</span> : listing.kept !== undefined ? plural(listing.kept, "match", "matches") : ""}</span>
    </div>
  );
}

function Tabs({ tab, go }: { tab: Tab; go: (tab: Tab) => void }): JSX.Element {
  const model = useModel();
  const errors = model.findings?.list.length ?? 0;
  const names: Record<Tab, string> = { tensors: "Entries", storage: "Storage", objects: "Objects", optimizer: "Optimizer", findings: `Findings (${exactText(errors)})`, compare: "Compare", reshard: "Reshard" };
  const key = (e: KeyboardEvent) => {
    const by = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    const next = TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length];
    if (by && next) { go(next); document.getElementById(`tab-${next}`)?.focus(); }
  };
  return (
    <div class="tabs" role="tablist" aria-label="Views" onKeyDown={key}>
      {TABS.map((t) => <button key={t} id={`tab-${t}`} type="button" role="tab" aria-selected={t === tab} aria-controls="panel" tabIndex={t === tab ? 0 : -1} onClick={() => go(t)}
        class={t === "findings" && model.findings?.list.some((f) => f.level === "error") ? "has-errors" : ""}>{names[t]}</button>)}
    </div>
  );
}

function Panel({ tab, go }: { tab: Tab; go: (tab: Tab) => void }): JSX.Element {
  const model = useModel();
  const show = (fqn: string) => { go("tensors"); void model.reveal(fqn); };
  const showFile = (name: string) => { go("tensors"); void model.filter("all", `file:${name.replaceAll(" ", "?")}`); };
  const withDetail = tab === "tensors" || (tab === "objects" && model.selected?.detail?.kind !== "tensor");
  return (
    <div id="panel" role="tabpanel" aria-labelledby={`tab-${tab}`} class={withDetail && model.selected ? "panel split" : "panel"}>
      {tab === "tensors" && <div class="list"><FilterLine outline="all" /><Tree key="all" outline="all" label="Entries" /></div>}
      {tab === "objects" && (model.listings.objects.count || model.listings.objects.filter ? <div class="list"><FilterLine outline="objects" /><Tree key="objects" outline="objects" label="Objects" /></div> : <p class="fine">There are only tensors.</p>)}
      {tab === "storage" && <Storage showFile={showFile} show={show} />}
      {tab === "optimizer" && <OptimizerView show={show} />}
      {tab === "reshard" && <Reshard />}
      {tab === "findings" && <FindingsView show={show} />}
      {tab === "compare" && <Compare show={show} />}
      {withDetail && <DetailPane />}
    </div>
  );
}

function JobBar({ job }: { job: Job }): JSX.Element {
  const { bytesRead, byteTotal } = useModel();
  const { done, total } = job.progress ?? { done: bytesRead, total: byteTotal };
  return (
    <div class="job" role="status">
      <span>{visible(job.title)} … {done > 0 && bytesText(done)}{total > 0 && ` of ${bytesText(total)}`}</span>
      <Bar done={done} total={total} label={visible(job.title)} />
      {job.cancel && <button type="button" onClick={job.cancel}>Cancel</button>}
    </div>
  );
}

function useShortcuts(): void {
  const model = useModel();
  useEffect(() => {
    const hear = (e: KeyboardEvent) => {
      const inText = e.target instanceof HTMLInputElement;
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

export function App(): JSX.Element {
  const model = useModel();
  const [tab, go] = useTab();
  const [isOver, setOver] = useState(false);
  useShortcuts();
  const over = (e: DragEvent) => {
    if (!e.dataTransfer?.types.includes("Files")) return; // a text goes where texts go
    e.preventDefault();
    setOver(true);
  };
  const drop = (e: DragEvent) => {
    setOver(false);
    if (!e.dataTransfer?.types.includes("Files")) return;
    e.preventDefault();
    const found = filesOfDrop(e.dataTransfer);
    const prepare = async () => openingOf(await found);
    if (model.opened && tab === "compare") void model.compareWith(prepare);
    else void model.open(prepare);
  };
  return (
    <div class={`page${isOver ? " over" : ""}`} onDragOver={over} onDragLeave={(e) => { if (e.relatedTarget === null) setOver(false); }} onDrop={drop}>
      <header class="top">
        <button type="button" class="brand" onClick={() => { model.close(); go("tensors"); }}>Tessera</button>
        {model.opening && <span class="counter" aria-label="Bytes read">read {bytesText(model.bytesRead)} of {bytesText(model.byteTotal)}</span>}
        <span class="space" />
        {model.opening && <button type="button" onClick={() => { model.close(); go("tensors"); }}>Open another</button>}
        <Theme />
      </header>
      {model.jobs.map((job, i) => <JobBar key={i} job={job} />)}
      {model.trouble && <TroubleBox trouble={model.trouble} onClose={() => model.dismiss()} {...(model.opening ? { again: () => void model.openAgain() } : {})} />}
      <main>
        {model.opened ? <><Summary /><Tabs tab={tab} go={go} /><Panel tab={tab} go={go} /></>
          : !model.opening || model.trouble ? <div class="start"><h1>Look into a PyTorch checkpoint</h1>
            <p>Distributed checkpoints, torch.save files and safetensors: what they hold, how it is sharded, whether it is sound, how two differ. Nothing is uploaded, nothing in them is executed, and only the bytes needed are read.</p>
            <Opener about="a checkpoint" open={(prepare) => void model.open(prepare)} /></div> : <p class="fine" role="status">Opening {visible(model.opening.title)} …</p>}
      </main>
    </div>
  );
}
