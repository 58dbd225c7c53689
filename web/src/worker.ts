/** The worker that owns the module. Requests are answered one after the other, but for the tally, which lets others in
 *  between its steps and hears a cancel; what else takes long is done in a worker that can be ended. */
import writersUrl from "../../build/wasm/bin/tessera-writers.wasm?url";
import { Tessera, TesseraError, type Checkpoint, type Outline } from "../../wasm/tessera.js";
import type { Diff, Findings, FromWorker, Kind, Optimizer, OutlineName, Overview, Plan, Requests, Side, Tally, ToWorker, Trouble, Twins } from "./protocol";
import { sourceFile } from "./sources";

const STEP_BYTES = 8 << 20;
const scope = self as unknown as DedicatedWorkerGlobalScope;
const say = (message: FromWorker) => scope.postMessage(message);

interface Open { title: string; checkpoint: Checkpoint }
const sides: Partial<Record<Side, Open>> = {};
/** Of side a. */
let outlines: Record<OutlineName, Outline> | undefined;
const cancelled = new Set<number>();

let start: (module: WebAssembly.Module) => void;
const tessera = new Promise<WebAssembly.Module>((resolve) => { start = resolve; }).then(async (module) => {
  const t = await Tessera.load(module);
  let told = 0;
  t.onRead = (read, file) => {
    const now = performance.now();
    if (now - told < 50) return;
    told = now;
    say({ read, file });
  };
  return t;
});

/** Loads the second file of the module, for what needs it. */
const prepared = async () => (await tessera).prepare(new URL(writersUrl, self.location.href));

class Cancelled extends Error {}

function opened(side: Side): Open {
  const open = sides[side];
  if (!open) throw new TesseraError("no checkpoint is open", "page", undefined);
  return open;
}

function outlineOf(name: OutlineName): Outline {
  if (!outlines) throw new TesseraError("no checkpoint is open", "page", undefined);
  return outlines[name];
}

function closeSide(side: Side): void {
  sides[side]?.checkpoint.close();
  delete sides[side];
  if (side === "a") outlines = undefined;
}

function findingsOf(t: Tessera, { checkpoint, title }: Pick<Open, "checkpoint" | "title">, kind: "findings" | "findings-deep"): Findings {
  const text = checkpoint.document(kind, { path: title }), sarif = checkpoint.document("sarif", { path: title });
  const { findings } = JSON.parse(text) as { findings: Findings["list"] };
  const rules = new Set(findings.map((f) => f.rule));
  return { list: findings, help: Object.fromEntries([...rules].map((rule) => [rule, t.ruleHelp(rule)])), text, sarif };
}

/** Lets other messages in. */
const turn = () => new Promise<void>((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); resolve(); };
  port2.postMessage(null);
});

async function steps(id: number, step: () => boolean, tell: () => void): Promise<void> {
  let told = performance.now();
  for (let more = true; more;) {
    more = step();
    if (performance.now() - told > 80) { told = performance.now(); tell(); }
    await turn();
    if (cancelled.delete(id)) throw new Cancelled("cancelled");
  }
}

type Handlers = { [K in Kind]: (takes: Requests[K]["takes"], id: number) => Requests[K]["gives"] | Promise<Requests[K]["gives"]> };

const handlers: Handlers = {
  async open({ side, opening }) {
    const t = await tessera;
    closeSide(side);
    const checkpoint = t.open(opening.files.map(sourceFile), opening.primary === undefined ? {} : { primary: opening.primary });
    try {
      checkpoint.check(); // ranks' optimizer states that are not one checkpoint can be opened, but not shown
    } catch (e) {
      checkpoint.close();
      throw e;
    }
    sides[side] = { title: opening.title, checkpoint };
    say({ read: t.bytesRead, file: "" });
    return null;
  },
  async describe() {
    const t = await tessera, a = opened("a"), { checkpoint } = a;
    const all = checkpoint.outline(), objects = checkpoint.outline({ objectsOnly: true });
    outlines = { all, objects };
    const findings = findingsOf(t, a, "findings");
    for (const f of findings.list) {
      const entry = f.fqn === undefined ? undefined : checkpoint.find(f.fqn);
      if (entry !== undefined) all.mark(entry, f.level);
    }
    return { overview: JSON.parse(checkpoint.document("overview")) as Overview, findings, rows: { all: all.count, objects: objects.count } };
  },
  close({ side }) {
    closeSide(side);
    return null;
  },
  rows: ({ outline, first, count }) => outlineOf(outline).rows(first, count),
  act: ({ outline, node, act }) => outlineOf(outline).act(node, act),
  parent({ outline, row }) {
    const o = outlineOf(outline), depth = o.rows(row, 1)[0]?.depth ?? 0;
    for (let end = row; end > 0; end -= Math.min(end, 1024)) {
      const first = Math.max(0, end - 1024);
      const up = o.rows(first, end - first).reverse().findIndex((r) => r.depth < depth);
      if (up >= 0) return end - 1 - up;
    }
    return 0;
  },
  filter({ outline, text }) {
    const o = outlineOf(outline);
    const kept = o.filter(text);
    return { kept, rows: o.count };
  },
  reveal({ outline, fqn }) {
    const entry = opened("a").checkpoint.find(fqn), o = outlineOf(outline);
    const row = entry === undefined ? undefined : o.reveal(entry);
    return row === undefined || entry === undefined ? null : { row, entry, rows: o.count };
  },
  entry({ entry }) {
    const document = JSON.parse(opened("a").checkpoint.document("entry", { entry })) as { entries: Requests["entry"]["gives"][] };
    const detail = document.entries[0];
    if (!detail) throw new TesseraError("the entry is gone", "page", undefined);
    return detail;
  },
  preview: ({ entry }) => JSON.parse(opened("a").checkpoint.document("preview", { entry })) as Requests["preview"]["gives"],
  async tally({ entry }, id) {
    const job = opened("a").checkpoint.tally(entry);
    const soFar = () => JSON.parse(job.document()) as Tally;
    try {
      await steps(id, () => job.step(STEP_BYTES), () => {
        const tally = soFar();
        say({ id, done: tally.byte_done, total: tally.byte_total, tally });
      });
      return soFar();
    } finally {
      job.close();
    }
  },
  diff({ values, layout }) {
    const a = opened("a"), b = opened("b"), job = a.checkpoint.diff(b.checkpoint, { layout });
    try {
      while (values && job.step());
      const text = job.document(a.title, b.title);
      return { diff: JSON.parse(text) as Diff, text };
    } finally {
      job.close();
    }
  },
  optimizers: () => (JSON.parse(opened("a").checkpoint.document("optimizer")) as { optimizers: Optimizer[] }).optimizers,
  async plan({ target }) {
    await prepared();
    const { checkpoint, title } = opened("a");
    const text = checkpoint.document("plan", { target, path: title });
    return { plan: JSON.parse(text) as Plan, text };
  },
  async twins() {
    await prepared();
    const job = opened("a").checkpoint.twins();
    try {
      while (job.step());
      return JSON.parse(job.document()) as Twins;
    } finally {
      job.close();
    }
  },
  deepFindings: async () => findingsOf(await tessera, opened("a"), "findings-deep"),
};

function troubleOf(e: unknown): Trouble {
  if (e instanceof TesseraError) return { message: e.message, status: e.status, ...(e.position === undefined ? {} : { position: e.position }) };
  if (e instanceof Cancelled) return { message: "cancelled", status: "cancelled" };
  if (e instanceof WebAssembly.RuntimeError || (e instanceof RangeError && /stack/.test(e.message))) return { message: `the worker broke (${e.message})`, status: "broken" };
  if (e instanceof RangeError) return { message: `the page ran out of memory (${e.message})`, status: "out of memory" };
  return { message: e instanceof Error ? e.message : String(e), status: "page" };
}

async function answer<K extends Kind>(id: number, kind: K, takes: Requests[K]["takes"]): Promise<void> {
  try {
    say({ id, gives: await handlers[kind](takes, id) });
  } catch (e) {
    say({ id, trouble: troubleOf(e) });
  }
}

scope.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  if ("module" in data) start(data.module);
  else if ("cancel" in data) cancelled.add(data.cancel);
  else void answer(data.id, data.kind, data.takes);
};
