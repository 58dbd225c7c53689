/** The state of the page and everything that can be done to it. Views draw the state and call the functions. They have no
 *  state of their own except scroll positions and open menus. */
import { Client, Failure, type Progress } from "./client";
import type { Choice, Prepare } from "./collect";
import { Comparing } from "./comparing";
import type { ConvertForm, Weights } from "./convert_form";
import { Lists } from "./lists";
import { LoadCheck } from "./load_check";
import { NO_MAP, type MapChoice } from "./map_choice";
import type { FileMetadata } from "./file_metadata";
import { isDense, type About, type Compared, type Detail, type DiffOptions, type Findings, type FqnDocument, type Opened, type Opening, type Optimizer, type Part, type Plan, type PlanRequest, type Requests, type Scan, type Side, type Tally, type TensorDetail, type Trouble, type Twins } from "./protocol";
import { Saving } from "./saving";
import { START, type TargetForm } from "./target";
import type { Elements } from "./elements";
import { elementsOfSlice, firstSlice, MOST_SLICE, readableOf } from "./slice";
import { absentText, exactText, missingText } from "./text";
import { troubleOf } from "./trouble";

const FIRST_PROGRESS_MS = 100;
export const PLANNING = "Planning";
/** Formats that have no parts. */
const WHOLE: ReadonlySet<string> = new Set(["dcp", "dcp-safetensors", "safetensors", "safetensors-index", "torch-zip", "torch-legacy", "torch-ranks", "torch-index", "json", "pickle"]);
const DOCUMENT = ". To check a checkpoint against a layout or a module tree, open the checkpoint, choose “Would it load?” and drop the document there.";
const MANY_RANKS = 4096, MOST_LARGEST = 8;
/** The largest tensors of which the first values are read without asking: of files, and of URLs. Items may be compressed, so
 *  a slice of them can cost as much as all of it. */
const MOST_AHEAD = 64 << 20, MOST_REMOTE = 64 << 10;

/** `cancel` is undefined if the job cannot be cancelled. */
export interface Job { readonly title: string; progress: Progress | undefined; readonly cancel: (() => void) | undefined }
type Tell = (p: Progress) => void;
/** For work in a separate worker. `join` starts another worker with the same checkpoints. */
interface Control { tell: Tell; cancel: () => void; readonly join: () => Promise<Client> }

export interface Selected {
  entry: number;
  readonly fqn: string;
  detail: Detail | undefined;
  /** A slice of its values. */
  elements: Elements | undefined;
  /** The slice that `elements` are; undefined for all of the tensor. */
  slice: string | undefined;
  tally: Tally | undefined;
  /** Whether its values are being counted. */
  isCounting: boolean;
  trouble: Trouble | undefined;
  /** The errors of the slice and of the statistics. */
  valuesTrouble: Trouble | undefined;
  tallyTrouble: Trouble | undefined;
  /** How it differs, if it was chosen in a comparison, and the map of the comparison. */
  compared: Compared | undefined;
  readonly map: DiffOptions["map"];
}

/** The canonical names, or why a map does not fit. */
interface Naming {
  readonly of: MapChoice;
  names: FqnDocument | undefined;
  trouble: Trouble | undefined;
}

/** A checkpoint that is being opened while another one is open. */
interface Attempt { readonly client: Client; readonly ending: AbortController; bytes: number }

interface Again { readonly title: string; readonly open: () => Promise<void> }

/** A preview for a target, or why there is none. */
interface PlanPreview { readonly plan?: Plan; readonly text: string; readonly request: PlanRequest; readonly trouble?: Trouble }

const CANCELLED = new Failure({ message: "cancelled", status: "cancelled" });

export class Model {
  opening: Opening | undefined;
  /** Several checkpoints that were dropped, to choose from. */
  choice: Choice | undefined;
  /** What was open before a reload, if the browser asks for a click before the page may read it again. */
  again: Again | undefined;
  /** What did not open, as long as its error is shown. */
  failed: Opening | undefined;
  opened: Opened | undefined;
  findings: Findings | undefined;
  isDeep = false;
  trouble: Trouble | undefined;
  selected: Selected | undefined;
  about: Requests["about"]["gives"] | undefined;
  fileMetadata: readonly FileMetadata[] | undefined;
  naming: Naming | undefined;
  optimizers: readonly Optimizer[] | undefined;
  /** The parts of a checkpoint that is made of parts; empty for others. */
  parts: readonly Part[] | undefined;
  convertForm: ConvertForm | undefined;
  /** Where the weights are, once Convert asked for it. */
  weights: Weights | undefined;
  /** The built-in maps, once they were asked for. */
  maps: readonly string[] | undefined;
  mapChoice: MapChoice = NO_MAP;
  target: TargetForm = START;
  preview: PlanPreview | undefined;
  twins: Twins | undefined;
  scan: Scan | undefined;
  jobs: readonly Job[] = [];
  bytesRead = 0;
  #ending = new AbortController();
  /** Opening and closing create a new one. Results of an earlier one are dropped. */
  #client = this.#newClient();
  readonly lists = new Lists(() => this.#client, () => this.changed());
  readonly comparing = new Comparing(this);
  readonly loadCheck = new LoadCheck(this);
  converting = new Saving(this, "Converting");
  resharding = new Saving(this, "Resharding");
  optimizerSaving = new Saving(this, "Writing optimizer state");
  #aside = new Map<string, Client[]>();
  #attempt: Attempt | undefined;
  #plans = 0;
  /** The number of slices that were asked for, and of times that an entry was chosen or searched for. What arrives for an earlier one
   *  is dropped. */
  #slices = 0;
  #choices = 0;
  /** Whether statistics were asked for, so that the next entry shows them, too. */
  #wantsTally = false;
  #listeners = new Set<() => void>();
  #queued = false;

  /** The worker that has the open checkpoint. */
  get client(): Client { return this.#client; }

  /** The largest tensors; null if there are too many to list, and undefined until they are known. */
  get largest(): About["largest"] | null | undefined { return this.about === null ? null : this.about?.largest; }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  changed(): void {
    if (this.#queued) return;
    this.#queued = true;
    queueMicrotask(() => {
      this.#queued = false;
      this.#listeners.forEach((l) => l());
    });
  }

  #newClient(hear?: (bytes: number) => void, isHelper = false, ending = this.#ending.signal): Client {
    let last = 0;
    return new Client((bytes) => {
      if (ending.aborted) return;
      this.bytesRead += bytes - last;
      last = bytes;
      hear?.(bytes);
      this.changed();
    }, (trouble) => {
      if (!ending.aborted && !isHelper) this.trouble = trouble;
      this.changed();
    });
  }

  /** Runs `body`, showing its title if it takes long, and passes errors to `hear`. Returns undefined if it failed, or if
   *  what it concerned is no longer open. */
  async run<T>(title: string, cancel: (() => void) | undefined, body: (tell: Tell) => Promise<T>, hear: (t: Trouble) => void): Promise<T | undefined> {
    const client = this.#client, job: Job = { title, progress: undefined, cancel };
    const timer = setTimeout(() => {
      if (this.#client !== client) return;
      this.jobs = [...this.jobs, job];
      this.changed();
    }, FIRST_PROGRESS_MS);
    try {
      const result = await body((p) => { job.progress = p; this.changed(); });
      return this.#client === client ? result : undefined;
    } catch (e) {
      const trouble = troubleOf(e);
      if (trouble.status !== "cancelled" && this.#client === client) hear(trouble);
      return undefined;
    } finally {
      clearTimeout(timer);
      this.jobs = this.jobs.filter((j) => j !== job);
      this.changed();
    }
  }

  hear = (trouble: Trouble): void => { this.trouble = trouble; };

  /** Runs long work in a separate worker, which opens the checkpoints again: the page stays usable, and ending the worker
   *  cancels the work unless the work provides another way. Without a total, the work reports its own progress. Work that is
   *  already running is not started again. */
  async runAside<T>(title: string, openings: Partial<Record<Side, Opening>>, total: number | undefined, body: (client: Client, control: Control) => Promise<T>, hear = this.hear): Promise<T | undefined> {
    if (this.#aside.has(title)) return undefined;
    const clients: Client[] = [], read: number[] = [];
    const join = async () => {
      const i = read.push(0) - 1;
      const client = this.#newClient((done) => {
        read[i] = done;
        if (total !== undefined) control.tell({ done: Math.min(total, read.reduce((a, b) => a + b)), total });
      }, i > 0);
      clients.push(client);
      for (const [side, opening] of Object.entries(openings)) await client.call("open", { side: side as Side, opening });
      return client;
    };
    const control: Control = { tell: () => undefined, cancel: () => this.endAside(title), join };
    return this.run(title, () => control.cancel(), async (tell) => {
      control.tell = tell;
      this.#aside.set(title, clients);
      try {
        return await body(await join(), control);
      } finally {
        clients.forEach((c) => c.end());
        if (this.#aside.get(title) === clients) this.#aside.delete(title);
      }
    }, hear);
  }

  endAside(title: string): void {
    this.#aside.get(title)?.forEach((c) => c.end());
    this.#aside.delete(title);
  }

  /* ---- opening ---- */

  /** A checkpoint that is open stays open until the other one can be shown. `handles` are what it is opened from, to be
   *  remembered. Returns whether it is open now: it may have failed, or another one may have taken its place. */
  async open(prepare: Prepare, handles?: Promise<readonly FileSystemHandle[]>): Promise<boolean> {
    const attempt = this.#begin(), { client, ending: { signal } } = attempt, isNext = this.opened !== undefined;
    let tried: Opening | undefined;
    const found = await this.run("Opening", () => { if (isNext) this.#endAttempt(); else this.close(); }, async (tell) => {
      const prepared = await prepare(signal, tell);
      signal.throwIfAborted();
      const [first, ...others] = "options" in prepared && prepared.areCompared ? prepared.options : [];
      if ("options" in prepared && !first) this.choice = prepared;
      const one = first ?? ("options" in prepared ? undefined : prepared);
      tried = one;
      if (one && !isNext) this.opening = one;
      this.changed();
      const described = one && await this.#describe(client, one, signal);
      const recent = handles && others.length === 0 ? await remember(prepared.title, handles) : undefined; // what could not be opened is not offered again
      const kept = recent === undefined ? {} : { recent };
      if ("options" in prepared && this.choice === prepared) this.choice = { ...prepared, options: prepared.options.map((option) => ({ ...option, ...kept })) };
      return described && [{ ...described[0], ...kept }, described[1], others] as const;
    }, (trouble) => {
      if (signal.aborted) return;
      this.failed = tried;
      this.hear(/ JSON document/.test(trouble.message) ? { ...trouble, message: trouble.message + DOCUMENT } : trouble);
    });
    if (isNext && this.#attempt !== attempt) return false;
    if (isNext && found) this.close(attempt);
    else if (isNext) this.#endAttempt();
    if (!found) return false;
    const [opening, opened, others] = found;
    this.#take(opening, opened);
    if (others.length) void this.#compareWith(others);
    return true;
  }

  /** Shows the comparison of the open checkpoint with another one; more of them are columns of the series. */
  async #compareWith([first, ...more]: readonly Opening[]): Promise<void> {
    location.hash = "compare";
    if (!first) return;
    const opened = this.comparing.with(async () => first), { series } = this.comparing;
    await opened;
    for (const one of more) if (this.comparing.series === series) await series.add(async () => one);
  }

  /** Starts another worker if a checkpoint is open. */
  #begin(): Attempt {
    if (!this.opened) {
      this.close();
      return { client: this.#client, ending: this.#ending, bytes: 0 };
    }
    this.#endAttempt();
    this.trouble = this.choice = this.failed = undefined;
    const ending = new AbortController(), client = this.#newClient((bytes) => { attempt.bytes = bytes; }, false, ending.signal);
    const attempt: Attempt = { client, ending, bytes: 0 };
    this.#attempt = attempt;
    return attempt;
  }

  #endAttempt(): void {
    this.#attempt?.ending.abort(CANCELLED);
    this.#attempt?.client.end();
    this.#attempt = undefined;
  }

  async #describe(client: Client, opening: Opening, signal: AbortSignal): Promise<[Opening, Opened]> {
    const { opening: whole } = await openWhole(client, "a", opening, signal);
    return [whole, await client.call("describe", {})];
  }

  /** Returns what is opened for a checkpoint, with the data files of a remote DCP, and which of them are absent. */
  async whole(opening: Opening, signal: AbortSignal): Promise<{ opening: Opening; absent: readonly string[] }> {
    const client = this.#newClient(() => undefined, true, signal);
    try {
      return await openWhole(client, "a", opening, signal);
    } finally {
      client.end();
    }
  }

  /** Opens what the page's own server offers, if there is anything and nothing else was opened in the meantime. */
  async openServed(find: () => Promise<Opening | Choice | undefined>): Promise<void> {
    const client = this.#client, served = find();
    if (await served.then((s) => s !== undefined, () => true) && this.#client === client) await this.open(async () => await served as Opening | Choice);
  }

  offerAgain(again: Again): void {
    this.again = again;
    this.changed();
  }

  /** For use after the worker has failed. */
  async openAgain(): Promise<void> {
    const { opening } = this;
    if (opening) await this.open(async () => opening);
  }

  #take(opening: Opening, opened: Opened): void {
    this.opening = opening;
    this.opened = opened;
    void this.loadParts();
    this.findings = opened.findings;
    this.lists.dtypes.all = opened.overview.dtypes.map((d) => d.name);
    this.lists.reset("all", opened.rows);
    this.changed();
  }

  /** Returns to the start page, or goes on to the next checkpoint, and ends all other work. */
  close(next?: Attempt): void {
    if (next) this.#attempt = undefined;
    this.#endAttempt();
    this.#ending.abort(CANCELLED);
    this.comparing.reset();
    this.#ending = next?.ending ?? new AbortController();
    for (const client of [this.#client, ...[...this.#aside.values()].flat()]) client.end();
    this.#aside.clear();
    this.#client = next?.client ?? this.#newClient();
    this.bytesRead = next?.bytes ?? 0;
    this.jobs = [];
    this.choice = this.failed = this.again = this.opening = this.opened = this.findings = this.trouble = this.selected = undefined;
    this.optimizers = this.preview = this.twins = this.scan = this.about = this.fileMetadata = this.naming = undefined;
    this.target = START;
    this.mapChoice = NO_MAP;
    this.parts = this.convertForm = this.weights = undefined;
    this.loadCheck.reset();
    // What a dialog or a cancelled job still reports is of the checkpoint that was closed, and stays in its own object.
    this.converting = new Saving(this, "Converting");
    this.resharding = new Saving(this, "Resharding");
    this.optimizerSaving = new Saving(this, "Writing optimizer state");
    this.isDeep = false;
    this.#choices++;
    this.changed();
  }

  /** Returns from a choice to the checkpoint that is open. */
  dropChoice(): void {
    this.choice = undefined;
    this.changed();
  }

  /* ---- one entry ---- */

  async choose(entry: number, fqn: string, compared?: Compared): Promise<void> {
    this.#choices++;
    const map = compared && this.comparing.comparison?.map || {}, selected = unread(entry, fqn, compared, map);
    this.selected = selected;
    this.changed();
    try {
      selected.detail = await this.#client.call("entry", { entry, map });
    } catch (e) {
      selected.trouble = troubleOf(e);
    }
    this.changed();
    if (this.selected === selected) void this.#readAhead(selected);
  }

  /** Returns why no value of a tensor can be read, or "": files that are absent, of A unless those of B are given, chunks without a file, or chunks
   *  that overlap. */
  lackOf(detail: TensorDetail, absent = this.opened?.overview.absent ?? []): string {
    const { chunks } = detail, files = new Set(chunks.map(({ file }) => file)), missing = chunks.filter(({ file }) => file === null).length, away = absent.filter((name) => files.has(name)).length;
    return [away && absentText(away), missing && missingText(missing)].filter(Boolean).join(" and ") || (readableOf(detail) ? "" : "its chunks overlap");
  }

  /** Reads the first values, and statistics if they were asked for before, where that is little. */
  async #readAhead(selected: Selected): Promise<void> {
    const { detail, map } = selected, { opening, opened } = this;
    if (!isDense(detail) || map.map !== undefined || !opening || !opened) return;
    if (this.lackOf(detail) || !isCheap(detail, opening)) return;
    await this.readSlice(firstSlice(detail), false);
    if (this.selected === selected && this.#wantsTally && readableOf(detail)?.isAll && !isRemote(opening)) await this.tally();
  }

  /** Chooses an entry that only B has. */
  chooseOther(entry: number, fqn: string, compared: Compared | undefined): void {
    this.#choices++;
    this.selected = unread(entry, fqn, compared);
    this.changed();
  }

  deselect(): void {
    this.selected = undefined;
    this.changed();
  }

  /** Goes to an entry by its name, and clears a filter that hides it, unless another one is chosen or the checkpoint is closed in the
   *  meantime. */
  reveal(fqn: string): Promise<void> {
    return this.lists.track("all", this.#reveal(fqn, ++this.#choices));
  }

  async #reveal(fqn: string, asked: number): Promise<void> {
    const isLatest = () => this.#choices === asked, find = () => this.run("Looking for the entry", undefined, () => this.#client.call("reveal", { outline: "all", fqn }), this.hear);
    let found = await find();
    if (found === null && isLatest()) {
      await this.lists.filter("all", "");
      if (isLatest()) found = await find();
    }
    if (found) await this.lists.renew("all", found.rows, isLatest() ? found.row : undefined); // the worker has opened the groups around it in any case
    if (!isLatest()) return;
    if (found === null) this.hear({ message: `there is no entry named '${fqn}'`, status: "page" });
    if (found && isLatest()) await this.choose(found.entry, fqn);
    this.changed();
  }

  /** Errors of what was not asked for are not shown. */
  async readSlice(slice: string, isAsked = true): Promise<void> {
    const { selected } = this;
    if (!selected || !isDense(selected.detail)) return;
    const { fqn, detail: { shape } } = selected, count = elementsOfSlice(slice, shape), asked = ++this.#slices;
    selected.valuesTrouble = count === undefined || count <= MOST_SLICE ? undefined
      : { message: `the slice has ${exactText(count)} elements; at most ${exactText(MOST_SLICE)} are shown here`, status: "page" };
    this.changed();
    if (selected.valuesTrouble) return;
    const elements = await this.run("Reading values", undefined, () => this.#client.call("slice", { entry: selected.entry, fqn, slice: slice.trim() || undefined, map: selected.map }), (t) => { if (isAsked && this.#slices === asked) selected.valuesTrouble = t; });
    if (elements && this.#slices === asked) { selected.elements = elements; selected.slice = slice; }
    this.changed();
  }

  async tally(): Promise<void> {
    const selected = this.selected;
    if (!selected || selected.isCounting) return;
    this.#wantsTally = true;
    selected.tallyTrouble = undefined;
    selected.isCounting = true;
    let cancel: () => void = () => undefined;
    const tally = await this.run(`Reading ${selected.fqn}`, () => cancel(), (tell) => {
      const job = this.#client.start("tally", { entry: selected.entry, map: selected.map }, (p) => {
        selected.tally = p.tally;
        tell(p);
      });
      cancel = job.cancel;
      return job.result;
    }, (t) => { selected.tallyTrouble = t; });
    if (tally) selected.tally = tally;
    selected.isCounting = false;
    this.changed();
  }

  /** Checks every byte. */
  async deepCheck(): Promise<void> {
    const { opening } = this;
    if (!opening) return;
    const findings = await this.runAside("Checking every byte", { a: opening }, sizeOf(opening), async (client, { join }) => (await import("./team")).checkBytes(client, join, opening));
    if (!findings) return;
    this.findings = findings;
    this.isDeep = true;
    this.changed();
  }

  /* ---- parts, plan, values ---- */

  /** Loads what the overview shows besides the totals. */
  async loadOverview(): Promise<void> {
    const { opened } = this;
    const [about, metadata] = await Promise.all([
      this.run("Reading the names", undefined, () => this.#client.call("about", { count: MOST_LARGEST }), this.hear),
      this.run("Reading file metadata", undefined, () => this.#client.call("fileMetadata", {}), this.hear),
    ]);
    if (this.opened !== opened) return;
    this.about = about ?? null;
    this.fileMetadata = metadata ?? [];
    this.changed();
  }

  async loadParts(): Promise<void> {
    if (this.parts || WHOLE.has(this.opened?.overview.format ?? "")) return;
    const parts = await this.run("Looking for parts", undefined, () => this.#client.call("parts", {}), this.hear);
    if (parts) this.parts = parts;
    this.changed();
  }

  async loadWeights(): Promise<void> {
    const weights = this.weights ?? await this.run("Looking for the weights", undefined, () => this.#client.call("weights", {}), this.hear);
    if (weights) this.weights = weights;
    this.changed();
  }

  /** Plans for a target with this number of ranks. */
  async plan(request: PlanRequest, ranks: number): Promise<void> {
    const { opening } = this, asked = ++this.#plans;
    if (!opening) return;
    this.endAside(PLANNING);
    let trouble: Trouble = { message: "planning was cancelled", status: "page" };
    const hear = (t: Trouble) => { trouble = t; };
    const planned = await (ranks > MANY_RANKS ? this.runAside(PLANNING, { a: opening }, 0, (client) => client.call("plan", request), hear)
      : this.run(PLANNING, undefined, () => this.#client.call("plan", request), hear));
    if (this.#plans === asked && this.opening === opening) this.preview = { request, ...(planned ?? { text: "", trouble }) };
    this.changed();
  }

  async scanValues(): Promise<void> {
    const { opening, opened } = this;
    if (!opening || !opened) return;
    this.scan = await this.runAside("Scanning values", { a: opening }, opened.overview.bytes, (client) => client.call("scan", {})) ?? this.scan;
    this.changed();
  }

  /** Leaves the message, and with it what did not open. */
  dismiss(): void {
    this.trouble = this.failed = undefined;
    if (!this.opened) this.opening = undefined;
    this.changed();
  }
}

/** Opens a checkpoint in a worker. The data files of a remote DCP are requested once its metadata has named them. */
export async function openWhole(client: Client, side: Side, opening: Opening, signal: AbortSignal): Promise<{ opening: Opening; absent: readonly string[] }> {
  const absent = await client.call("open", { side, opening });
  const found = opening.url === undefined || absent.length === 0 ? [] : await (await import("./remote")).sourcesAt(opening.url, absent, signal);
  if (found.length === 0) return { opening, absent };
  const whole = { ...opening, files: [...opening.files, ...found] };
  return { opening: whole, absent: await client.call("open", { side, opening: whole }) };
}

/** Returns its number, or undefined if the browser stores nothing, or does not allow it. */
async function remember(title: string, handles: Promise<readonly FileSystemHandle[]>): Promise<number | undefined> {
  const list = await handles;
  return list.length ? import("./recent").then((recent) => recent.remember(title, list)).catch(() => undefined) : undefined;
}

const unread = (entry: number, fqn: string, compared: Compared | undefined, map: DiffOptions["map"] = {}): Selected =>
  ({ entry, fqn, compared, map, detail: undefined, elements: undefined, slice: undefined, tally: undefined, isCounting: false, trouble: undefined, valuesTrouble: undefined, tallyTrouble: undefined });

const isRemote = ({ files }: Opening): boolean => files.some((f) => "url" in f);

/** Whether values of a tensor are read without being asked for. */
export const isCheap = ({ bytes }: TensorDetail, opening: Opening): boolean => bytes <= (isRemote(opening) ? MOST_REMOTE : MOST_AHEAD);

export const sizeOf = (opening: Opening | undefined): number => opening?.files.reduce((sum, f) => sum + f.size, 0) ?? 0;
