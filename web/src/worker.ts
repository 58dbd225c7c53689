/** The worker that owns the module. Requests are answered in the order in which they arrive, except those that wait for the second file
 *  of the module, and the tally, which lets other requests in between its steps and can be cancelled. Other long work is done in a worker
 *  that can be ended. */
import { Tessera, TesseraError, type Checkpoint, type InspectDocument, type MapOptions, type MappedCheckpoint, type Outline } from "../../wasm/tessera.js";
import { aboutOf } from "./about";
import { openFiles, withMissing, type FindingsDocument, type OpenedFiles } from "./absent";
import { ComparisonTree } from "./comparison_tree";
import { Contents, entryIn, leavesOf, MOST_SORTED, namesMatching, valueInRow, type DocumentOf } from "./contents";
import type { Elements } from "./elements";
import type { Leaf } from "./entry_tree";
import { checkLoad } from "./expected";
import { fileMetadata } from "./file_metadata";
import { fileTerm } from "./filter";
import { withMap } from "./mapped";
import { measured } from "./measured";
import { groupEntries, mergedGroups, optimizersByName } from "./optimizer_names";
import { isDense, type Detail, type Diff, type FileUse, type Findings, type FromWorker, type Kind, type Opening, type Optimizer, type OutlineName, type Overview, type ParamGroup, type Plan, type Requests, type Side, type SliceOf, type Tally, type Tolerance, type ToWorker, type Trouble, type Twins } from "./protocol";
import { forgetReads } from "./read_ahead";
import { scanned, statisticsOf } from "./scan";
import { chosenOf, isRemote, sourceFile, withoutRequests } from "./sources";
import { amountsOf, weightsOf, type Amounts } from "./split";
import { exactText, objectText } from "./text";
import { differingElements } from "./tensor_equality";
import { optimizerPreviewOf, previewOf, write } from "./writing";

const STEP_BYTES = 8 << 20;
/** A GLOB that no name of a checkpoint matches, because only the summary is wanted. */
const NO_NAME = "\u0001";
const ROWS = 4096, MOST_MARKING = 50_000_000, MOST_OVERVIEW = 20_000, MOST_HYPER = 10_000;
const scope = self as unknown as DedicatedWorkerGlobalScope;
const say = (message: FromWorker) => scope.postMessage(message);

interface Open extends OpenedFiles { readonly title: string; readonly opening: Opening }
const sides: Partial<Record<Side, Open>> = {};
/** The outlines of side a, and of both sides. */
const lists: { all?: Contents; compare?: ComparisonTree } = {};
const cancelled = new Set<number>();
/** For work that the module itself performs in steps. */
const stopping = new Map<number, AbortController>();

let start: (module: WebAssembly.Module) => void, lend: (second: WebAssembly.Module | string) => void;
let writers: Promise<WebAssembly.Module | string> | undefined;
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

/** Waits for the second file of the module. If the page could not fetch it, the next request asks for it again. */
const prepared = async () => {
  const t = await tessera;
  if (t.isPrepared) return t;
  const second = await (writers ??= new Promise((resolve) => {
    lend = resolve;
    say({ asks: "writers" });
  }));
  if (typeof second === "string") {
    writers = undefined;
    throw new TesseraError(`the rest of the page could not be fetched (${second}); check the connection and try again`, "page", undefined);
  }
  await t.prepare(second);
  return t;
};

/** Opens a checkpoint. If that fails because the readers of its format are in the second file of the module, loads that and
 *  tries again. */
async function withRest<T>(open: () => T): Promise<T> {
  try {
    return open();
  } catch (e) {
    if ((await tessera).isPrepared) throw e;
    await prepared();
    return open();
  }
}

class Cancelled extends Error {}

function opened(side: Side): Open {
  const open = sides[side];
  if (!open) throw new TesseraError("no checkpoint is open", "page", undefined);
  return open;
}

/** Returns A, or what a map makes of it. */
async function ofA({ map }: { readonly map: MapOptions }): Promise<MappedCheckpoint> {
  if (map.map !== undefined) await prepared();
  return withMap(opened("a").checkpoint, map);
}

function listOf(name: OutlineName): Contents | ComparisonTree {
  const list = lists[name];
  if (!list) throw new TesseraError("no checkpoint is open", "page", undefined);
  return list;
}

/** The number of times that a side was closed, and that differences were shown. */
const turns = { a: 0, b: 0, compare: 0 };

/** Returns a function that tells whether something else has taken the place of what is made now. A request that waited calls it before it
 *  puts its own result there. */
function turnOf(what: keyof typeof turns): () => boolean {
  const turn = ++turns[what];
  return () => turns[what] !== turn;
}

/** Returns a function that tells whether the side has been closed again. */
function closeSide(side: Side): () => boolean {
  sides[side]?.checkpoint.close();
  delete sides[side];
  delete lists.compare;
  if (side === "a") delete lists.all;
  turns.compare++;
  return turnOf(side);
}

function findingsOf(t: Tessera, document: FindingsDocument): Findings {
  const { findings, summary } = document, rules = new Set(findings.map((f) => f.rule));
  return {
    list: findings, help: Object.fromEntries([...rules].map((rule) => [rule, t.ruleHelp(rule)])), unlisted: summary.unlisted ?? {},
    text: JSON.stringify(document, null, 1),
  };
}

/** Adds to the module's overview the sizes of absent files, and what is missing because of them. */
function overviewOf({ checkpoint, absent }: Open): Overview {
  const document = JSON.parse(checkpoint.document("overview")) as Overview, names = new Set(absent);
  const files = document.files.map((f): FileUse => names.has(f.name) ? { ...f, size: f.taken.reduce((end, [at, size]) => Math.max(end, at + size), 0), absent: true } : f);
  const missing = files.filter((f) => f.absent).reduce((sum, f) => sum + f.chunks, 0);
  return { ...document, files, missing_chunks: document.missing_chunks + missing, absent };
}

const isMetadataOnly = (overview: Overview): boolean => overview.absent.length > 0 && overview.files.every((f) => f.absent || f.chunks === 0);

/** Parameters would be counted twice where tensors share bytes, as tied weights do, or where each rank has its own. Opaque entries
 *  may hold further ones. */
const ownAmounts = ({ optimizer, parameters }: Amounts, { bytes, files, per_rank, opaque }: Overview): Amounts =>
  ({ optimizer, parameters: per_rank || opaque || files.reduce((sum, { used }) => sum + used, 0) < bytes ? undefined : parameters });

/** Marks the entries that findings name, and those with chunks in absent files unless that is all of them. */
function markEntries(open: Open, overview: Overview, list: Findings["list"], all: Outline): void {
  const { checkpoint } = open, isLone = isMetadataOnly(overview);
  for (const f of list) {
    const entry = f.fqn === undefined || (isLone && f.rule === "dcp/missing-file") ? undefined : checkpoint.find(f.fqn);
    if (entry !== undefined) all.mark(entry, f.level);
  }
  const chunks = overview.files.reduce((sum, f) => sum + f.chunks, 0);
  if (isLone || open.absent.length * chunks > MOST_MARKING) return; // every chunk is searched for each file's name
  const outline = checkpoint.outline();
  for (const name of open.absent) {
    outline.filter(fileTerm(name));
    for (let at = 0; at < outline.count; at += ROWS) for (const row of outline.rows(at, ROWS)) if (row.entry !== undefined) all.mark(row.entry, "error");
  }
  outline.close();
}

/** Reads objects for what is shown unasked. At a URL, each of them could be a request, so only what was fetched already is used. */
const objectsOf = ({ checkpoint, opening }: { readonly checkpoint: MappedCheckpoint; readonly opening: Opening }): DocumentOf => {
  const read = (entry: number) => checkpoint.document("entry", { entry });
  return opening.files.some(isRemote) ? (entry) => withoutRequests(() => read(entry)) : read;
};

/** Returns side a without placeholders, because their bytes would only be reported as missing again. */
async function plain(): Promise<Checkpoint> {
  const t = await prepared(), a = opened("a"), { opening, absent } = a;
  if (absent.length) {
    a.checkpoint.close();
    sides.a = { ...a, absent: [], checkpoint: t.open(opening.files.map(sourceFile), chosenOf(opening)) };
  }
  return opened("a").checkpoint;
}

/** Throws for work on values whose files are absent, and names the files. */
function requireBytes({ absent }: Open, checkpoint: MappedCheckpoint, entry: number): void {
  if (absent.length === 0) return;
  const detail = entryIn(checkpoint, entry), names = new Set(absent), lacking = new Set((detail?.chunks ?? []).map((c) => c.file ?? "").filter((f) => names.has(f)));
  if (lacking.size) throw new TesseraError(`the values of '${detail?.fqn ?? ""}' are in ${listed([...lacking])}, which ${lacking.size === 1 ? "is" : "are"} absent; open the checkpoint together with its data files`, "not found", undefined);
}

function requireAllBytes({ absent, title }: Open): void {
  if (absent.length) throw new TesseraError(`${listed(absent)} of '${title}' ${absent.length === 1 ? "is" : "are"} absent; open the checkpoint together with its data files`, "not found", undefined);
}

const listed = (names: readonly string[]): string => names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${exactText(names.length - 2)} more files` : names.join(", ");

/** Lets other messages be handled. */
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

function entriesOf(side: Side, checkpoint: MappedCheckpoint = opened(side).checkpoint): Leaf[] {
  const leaves = leavesOf(checkpoint);
  if (!leaves) throw new TesseraError(`'${opened(side).title}' has more than ${exactText(MOST_SORTED)} entries, too many to list here; use the tessera command`, "limit", undefined);
  return leaves;
}

function groupsOf({ checkpoint }: Open, optimizer: string, leaves: readonly Leaf[]): ParamGroup[] {
  return mergedGroups(groupEntries(optimizer, leaves).slice(0, MOST_HYPER).map(({ group, key, leaf: { entry, kind, shape, dtypes } }) => {
    if (kind === "tensor") return { group, key, text: `${dtypes[0] ?? ""} tensor${shape.length ? ` ${shape.join(" × ")}` : ""}` };
    return { group, key, text: objectText(checkpoint.document("entry", { entry })) ?? "absent" };
  }));
}

function elementsOf(checkpoint: Pick<Checkpoint, "read">, fqn: string, slice: string | undefined): Elements {
  const { dtype, shape, data } = checkpoint.read(fqn, slice);
  return { dtype, shape, buffer: data.buffer as ArrayBuffer };
}

/** Adds to a renamed pair how many of its elements differ, if dtypes and shapes are equal. */
function withValues(a: MappedCheckpoint, b: Checkpoint, pair: Diff["renamed"][number]): Diff["renamed"][number] {
  const detail = (checkpoint: MappedCheckpoint, fqn: string) => {
    const entry = checkpoint.find(fqn);
    return entry === undefined ? undefined : entryIn(checkpoint, entry);
  };
  const x = detail(a, pair.a), y = detail(b, pair.b);
  if (!isDense(x) || !isDense(y) || x.dtype !== y.dtype || x.shape.join() !== y.shape.join()) return pair;
  return { ...pair, differing: differingElements(a, pair.a, b, pair.b, x.shape) };
}

/** Without a tolerance values are compared bit by bit. */
const toleranceOf = ({ atol, rtol }: Tolerance): Partial<Tolerance> => atol || rtol ? { atol, rtol } : {};

/** Returns what is known of an entry, with the value of an object as Python writes it. */
function detailOf(checkpoint: MappedCheckpoint, entry: number): Detail {
  const document = checkpoint.document("entry", { entry }), { entries: [detail] } = JSON.parse(document) as { entries: Detail[] };
  if (!detail) throw new TesseraError("the entry is gone", "page", undefined);
  return isDense(detail) || detail.per_rank ? detail : { ...detail, text: objectText(document, true) };
}

/** Returns where the bytes of an entry are, as text. */
function placeOf(checkpoint: MappedCheckpoint, fqn: string): string {
  const entry = checkpoint.find(fqn);
  const detail = entry === undefined ? undefined : entryIn(checkpoint, entry);
  return detail?.chunks?.map((c) => `${c.byte_offset} ${c.file ?? ""}`).join("\n") ?? fqn;
}

type Handlers = { [K in Kind]: (takes: Requests[K]["takes"], id: number) => Requests[K]["gives"] | Promise<Requests[K]["gives"]> };

const handlers: Handlers = {
  async open({ side, opening }) {
    const t = await tessera, { title } = opening, isReplaced = closeSide(side);
    if (opening.files.some(isRemote)) await prepared(); // with the second file of the module it needs fewer requests
    const files = await withRest(() => openFiles(t, opening.files.map(sourceFile), chosenOf(opening), title));
    if (isReplaced()) {
      files.checkpoint.close();
      throw new Cancelled("cancelled");
    }
    sides[side] = { title, opening, ...files };
    say({ read: t.bytesRead, file: "" });
    return files.absent;
  },
  async describe() {
    const t = await tessera, a = opened("a"), { checkpoint } = a;
    const all = checkpoint.outline(), findings = findingsOf(t, a.found), overview = overviewOf(a);
    markEntries(a, overview, findings.list, all);
    lists.all = new Contents(all, checkpoint, objectsOf(a)); // its rows have the marks
    return { overview, findings, isMetadataOnly: isMetadataOnly(overview), amounts: ownAmounts(amountsOf(checkpoint.outline()), overview), rows: lists.all.count };
  },
  close({ side }) {
    closeSide(side);
    return null;
  },
  rows: ({ outline, first, count }) => listOf(outline).rows(first, count),
  act: ({ outline, node, act }) => listOf(outline).act(node, act),
  parent({ outline, row }) {
    const list = listOf(outline), depth = list.rows(row, 1)[0]?.depth ?? 0;
    for (let end = row; end > 0; end -= Math.min(end, 1024)) {
      const first = Math.max(0, end - 1024);
      const up = list.rows(first, end - first).reverse().findIndex((r) => r.depth < depth);
      if (up >= 0) return end - 1 - up;
    }
    return 0;
  },
  arrange: ({ outline, text, sort }) => listOf(outline).arrange(text, sort),
  find: ({ text, count }) => namesMatching(opened("a").checkpoint, text, count),
  reveal({ outline, fqn }) {
    const entry = opened("a").checkpoint.find(fqn), list = listOf(outline);
    const row = entry === undefined ? undefined : list.reveal(entry);
    return row === undefined || entry === undefined ? null : { row, entry, rows: list.count };
  },
  about({ count }) {
    const a = opened("a"), { checkpoint } = a, leaves = leavesOf(checkpoint, MOST_OVERVIEW); // soon after opening: no request may wait long for this
    return leaves ? aboutOf(checkpoint, leaves, count, objectsOf(a)) : null;
  },
  fileMetadata() {
    const { checkpoint, opening } = opened("a"), hasEntries = lists.all !== undefined && lists.all.outline.count > 0; // the document of any entry has the texts
    const { metadata } = JSON.parse(hasEntries ? checkpoint.document("entry", { entry: 0 }) : checkpoint.document("inspect")) as InspectDocument;
    return fileMetadata(metadata, opening.files.map(sourceFile));
  },
  async parts() {
    await prepared();
    return opened("a").checkpoint.inspect({ include: [NO_NAME] }).summary.parts ?? [];
  },
  weights: () => weightsOf(opened("a").checkpoint.outline()),
  async checkLoad({ expected, prefix, allow }) {
    await prepared();
    return checkLoad(await tessera, opened("a").checkpoint, expected, prefix, allow);
  },
  async layout({ chunks }) {
    await prepared();
    return `${JSON.stringify(opened("a").checkpoint.layout({ chunks }), null, 1)}\n`;
  },
  async names({ map }) {
    await prepared();
    return opened("a").checkpoint.canonicalize(map);
  },
  async entry({ entry, map }) {
    return detailOf(await ofA({ map }), entry);
  },
  async slice({ entry, fqn, slice, map }) {
    const a = await ofA({ map });
    requireBytes(opened("a"), a, entry);
    return elementsOf(a, fqn, slice);
  },
  entryOfB({ fqn }) {
    const { checkpoint } = opened("b"), entry = checkpoint.find(fqn);
    return entry === undefined ? null : detailOf(checkpoint, entry);
  },
  async measure({ pairs, map }) {
    const sides = [await ofA({ map }), opened("b").checkpoint] as const;
    return pairs.map((pair) => measured(sides, pair));
  },
  statistics() {
    requireAllBytes(opened("a"));
    return statisticsOf(opened("a").checkpoint, entriesOf("a"));
  },
  async slices({ a, b, map }) {
    const read = (side: Side, checkpoint: MappedCheckpoint, { fqn, slice }: SliceOf) => {
      const entry = checkpoint.find(fqn);
      if (entry !== undefined) requireBytes(opened(side), checkpoint, entry);
      return elementsOf(checkpoint, fqn, slice);
    };
    return { a: a && read("a", await ofA({ map }), a), b: b && read("b", opened("b").checkpoint, b) };
  },
  async tally({ entry, map }, id) {
    const a = await ofA({ map });
    requireBytes(opened("a"), a, entry);
    const job = a.tally(entry);
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
  async diffPart({ canonical, part, parts, map, atol, rtol }) {
    const a = opened("a"), b = opened("b");
    [a, b].forEach(requireAllBytes);
    const job = (await ofA({ map })).diff(b.checkpoint, { canonical, ...toleranceOf({ atol, rtol }) });
    try {
      job.part(part, parts);
      while (await job.stepAsync());
      return job.found(part, parts);
    } finally {
      job.close();
    }
  },
  async diff({ values, layout, canonical, found, map, atol, rtol }) {
    const a = opened("a"), b = opened("b");
    if (values) [a, b].forEach(requireAllBytes);
    const seen = await ofA({ map }), job = seen.diff(b.checkpoint, { layout, canonical, ...(values ? toleranceOf({ atol, rtol }) : {}) });
    try {
      found?.forEach((bytes, part) => job.take(part, found.length, bytes));
      while (values && !found && await job.stepAsync());
      const diff = JSON.parse(job.document(a.title, b.title)) as Diff;
      return values ? { ...diff, renamed: diff.renamed.map((pair) => withValues(seen, b.checkpoint, pair)) } : diff;
    } finally {
      job.close();
    }
  },
  async showDiff({ diff, measured: measures, canonical, text, sort, map, chosen }) {
    const isReplaced = turnOf("compare");
    if (canonical) await prepared();
    const ofMap = await ofA({ map });
    if (isReplaced()) throw new Cancelled("cancelled");
    const sides = [ofMap, opened("b").checkpoint] as const, [a, b] = [entriesOf("a", sides[0]), entriesOf("b", sides[1])];
    const names = new Map(canonical ? sides.flatMap((side) => side.canonicalize().names.map((n) => [n.raw, n.fqns[0] ?? n.raw] as const)) : []);
    const objects = { a: objectsOf({ ...opened("a"), checkpoint: sides[0] }), b: objectsOf(opened("b")) };
    const valueOf = (side: Side, fqn: string) => {
      const entry = sides[side === "a" ? 0 : 1].find(fqn);
      return entry === undefined ? undefined : valueInRow(objects[side](entry));
    };
    const tree = lists.compare = new ComparisonTree({ a, b, valueOf, keyOf: (fqn) => names.get(fqn) ?? fqn, matching: (filter) => sides.flatMap((side) => namesMatching(side, filter)) }, diff, measures, sort, text);
    return { rows: tree.count, dtypes: [...new Set([...a, ...b].flatMap((leaf) => leaf.dtypes))], chosen: chosen && tree.find(chosen) };
  },
  optimizers() {
    const a = opened("a"), { optimizers } = JSON.parse(a.checkpoint.document("optimizer")) as { optimizers: Optimizer[] };
    const leaves = leavesOf(a.checkpoint) ?? [];
    return optimizers.length ? optimizers.map((o) => ({ ...o, hasGroups: true, groups: groupsOf(a, o.optimizer, leaves) })) : optimizersByName(leaves);
  },
  async maps() {
    await prepared();
    return (await tessera).mapList();
  },
  async plan(request) {
    await prepared();
    const { checkpoint, title } = opened("a");
    const text = checkpoint.document("plan", { ...request, path: title });
    return { plan: JSON.parse(text) as Plan, text };
  },
  async twins() {
    await prepared();
    requireAllBytes(opened("a"));
    const job = opened("a").checkpoint.twins();
    try {
      while (job.step());
      const { groups } = JSON.parse(job.document()) as Twins;
      return { groups: groups.map((g) => ({ ...g, stored: new Set(g.fqns.map((fqn) => placeOf(opened("a").checkpoint, fqn))).size })) };
    } finally {
      job.close();
    }
  },
  scan() {
    requireAllBytes(opened("a"));
    return scanned(opened("a").checkpoint, entriesOf("a"));
  },
  async previewWriting({ writing }) {
    await prepared();
    requireAllBytes(opened("a"));
    return previewOf(opened("a").checkpoint, writing);
  },
  async optimizerPreview({ action, options, count }) {
    await prepared();
    return optimizerPreviewOf(opened("a").checkpoint, action, options, count);
  },
  async write({ writing, place }, id) {
    await prepared();
    requireAllBytes(opened("a"));
    const stop = new AbortController();
    stopping.set(id, stop);
    let told = 0;
    try {
      return await write(opened("a").checkpoint, writing, place, stop.signal, (done, total) => {
        if (performance.now() - told < 80) return;
        told = performance.now();
        say({ id, done, total });
      });
    } finally {
      stopping.delete(id);
    }
  },
  deepPart: async ({ part, parts }) => (await plain()).checkPartAsync(part, parts),
  async deepFindings({ found }) {
    const checkpoint = await plain(), { title: path, found: before } = opened("a");
    if (found) checkpoint.checkJoin(new Uint8Array(await new Blob(found as Uint8Array<ArrayBuffer>[]).arrayBuffer()), found.length);
    const document = JSON.parse(checkpoint.document(found ? "findings" : "findings-deep", { path })) as FindingsDocument;
    return findingsOf(await tessera, withMissing(document, before.findings.filter((f) => f.rule === "dcp/missing-file")));
  },
  report: async ({ findings, format }) => (await prepared()).report(findings, { format, path: opened("a").title }),
};

function troubleOf(e: unknown): Trouble {
  if (e instanceof TesseraError) return { message: e.message, status: e.status, ...(e.position === undefined ? {} : { position: e.position }) };
  if (e instanceof Cancelled) return { message: "cancelled", status: "cancelled" };
  if (e instanceof WebAssembly.RuntimeError || (e instanceof RangeError && /stack/.test(e.message))) return { message: `the worker broke (${e.message})`, status: "broken" };
  if (e instanceof RangeError) return { message: `the page ran out of memory (${e.message})`, status: "out of memory" };
  return { message: e instanceof Error ? e.message : String(e), status: "page" };
}

let last: Kind | undefined;

/** A part continues where the one before it ended. */
async function answer<K extends Kind>(id: number, kind: K, takes: Requests[K]["takes"]): Promise<void> {
  if (kind !== last || !kind.endsWith("Part")) forgetReads();
  last = kind;
  try {
    say({ id, gives: await handlers[kind](takes, id) });
  } catch (e) {
    say({ id, trouble: troubleOf(e) });
  }
}

scope.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  if ("module" in data) start(data.module);
  else if ("writers" in data) lend(data.writers);
  else if ("cancel" in data) {
    stopping.get(data.cancel)?.abort(new Cancelled("cancelled"));
    cancelled.add(data.cancel);
  }
  else void answer(data.id, data.kind, data.takes);
};
