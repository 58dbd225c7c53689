/** What the page knows, and everything that can be done to it. Views draw it and call it; they hold no state of their own
 *  but scroll positions and open menus. */
import { Client, Failure, type Progress } from "./client";
import type { Act, Detail, Diff, Findings, Opened, Opening, Optimizer, OutlineName, Plan, Preview, Row, Tally, Trouble, Twins } from "./protocol";
import { START, type TargetForm } from "./target";

export const TABS = ["tensors", "storage", "objects", "optimizer", "findings", "compare", "reshard"] as const;
export type Tab = (typeof TABS)[number];

const PAGE = 64;
const FIRST_PROGRESS_MS = 100;

/** Rows of one outline as far as they were fetched. */
export interface Listing {
  count: number;
  filter: string;
  kept: number | undefined;
  trouble: Trouble | undefined;
  cursor: number;
  /** A row that must be scrolled to. */
  goTo: number | undefined;
  /** The cursor moved and must be in sight. */
  follow: boolean;
  pages: Map<number, Row[]>;
  generation: number;
}

export interface Job { readonly title: string; progress: Progress | undefined; cancel(): void }

export interface Selected {
  readonly entry: number;
  readonly fqn: string;
  detail: Detail | undefined;
  preview: Preview | undefined;
  tally: Tally | undefined;
  trouble: Trouble | undefined;
}

export interface Comparison {
  readonly title: string;
  readonly opening: Opening;
  diff: Diff | undefined;
  text: string;
}

/** What a target would mean, or why it cannot be. */
export interface PlanPreview { readonly plan?: Plan; readonly text: string; readonly trouble?: Trouble }

const newListing = (count: number): Listing => ({ count, filter: "", kept: undefined, trouble: undefined, cursor: 0, goTo: undefined, follow: false, pages: new Map(), generation: 0 });

export function troubleOf(e: unknown): Trouble {
  return e instanceof Failure ? e.trouble : { message: e instanceof Error ? e.message : String(e), status: "page" };
}

export class Model {
  opening: Opening | undefined;
  opened: Opened | undefined;
  findings: Findings | undefined;
  isDeep = false;
  trouble: Trouble | undefined;
  listings: Record<OutlineName, Listing> = { all: newListing(0), objects: newListing(0) };
  selected: Selected | undefined;
  comparison: Comparison | undefined;
  optimizers: readonly Optimizer[] | undefined;
  target: TargetForm = START;
  preview: PlanPreview | undefined;
  twins: Twins | undefined;
  job: Job | undefined;
  bytesRead = 0;
  #client = this.#newClient();
  #listeners = new Set<() => void>();
  #asked: Record<OutlineName, Promise<void>> = { all: Promise.resolve(), objects: Promise.resolve() };
  #queued = false;

  get byteTotal(): number { return sizeOf(this.opening) + sizeOf(this.comparison?.opening); }

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

  #newClient(): Client {
    let last = 0;
    return new Client((bytes) => {
      this.bytesRead += bytes - last;
      last = bytes;
      this.changed();
    });
  }

  /** Runs something with a title that shows when it takes a while, and its trouble where it has any. */
  async #run<T>(title: string, cancel: () => void, body: () => Promise<T>, hear: (t: Trouble) => void): Promise<T | undefined> {
    const job: Job = { title, progress: undefined, cancel };
    const timer = setTimeout(() => { this.job = job; this.changed(); }, FIRST_PROGRESS_MS);
    try {
      return await body();
    } catch (e) {
      const trouble = troubleOf(e);
      if (trouble.status !== "cancelled") hear(trouble);
      return undefined;
    } finally {
      clearTimeout(timer);
      if (this.job === job) this.job = undefined;
      this.changed();
    }
  }

  #progress(p: Progress): void {
    if (this.job) this.job.progress = p;
    this.changed();
  }

  /* ---- opening ---- */

  async open(prepare: () => Promise<Opening>): Promise<void> {
    this.close();
    await this.#run("Opening", () => this.close(), async () => {
      const opening = await prepare();
      this.opening = opening;
      this.changed();
      this.#take(await this.#client.call("open", { side: "a", opening }));
    }, (trouble) => { this.trouble = trouble; });
  }

  /** Opens what the page's own server has, if it has anything. */
  async openServed(find: () => Promise<Opening | undefined>): Promise<void> {
    const served = find();
    if (await served.then((o) => o !== undefined, () => true)) await this.open(async () => (await served) as Opening);
  }

  #take(opened: Opened): void {
    this.opened = opened;
    this.findings = opened.findings;
    this.listings = { all: newListing(opened.rows.all), objects: newListing(opened.rows.objects) };
  }

  /** Back to the start page; whatever runs ends. */
  close(): void {
    this.#client.end();
    this.#client = this.#newClient();
    this.bytesRead = 0;
    this.opening = this.opened = this.findings = this.trouble = this.selected = this.comparison = this.job = undefined;
    this.optimizers = this.preview = this.twins = undefined;
    this.target = START;
    this.isDeep = false;
    this.changed();
  }

  /* ---- rows ---- */

  /** Remembers work on rows until it is done, well or not. */
  #track<T>(outline: OutlineName, work: Promise<T>): Promise<T> {
    const before = this.#asked[outline];
    this.#asked[outline] = Promise.allSettled([before, work]).then(() => undefined);
    return work;
  }

  /** Resolves once every row that was asked for, and every change of them, is there. */
  async settled(outline: OutlineName): Promise<void> {
    for (let seen: Promise<void> | undefined; seen !== this.#asked[outline];) await (seen = this.#asked[outline]);
  }

  /** The row once what was asked for before is done; undefined where there is none. */
  async rowAt(outline: OutlineName, index: number): Promise<Row | undefined> {
    await this.settled(outline);
    if (this.row(outline, index)) return this.row(outline, index);
    await this.settled(outline);
    return this.row(outline, index);
  }

  /** The row of what a row is in. */
  parentOf(outline: OutlineName, row: number): Promise<number> {
    return this.#client.call("parent", { outline, row });
  }

  /** A row, or undefined while it is fetched. */
  row(outline: OutlineName, index: number): Row | undefined {
    const listing = this.listings[outline];
    const number = Math.floor(index / PAGE);
    const page = listing.pages.get(number);
    if (page) return page[index - number * PAGE];
    listing.pages.set(number, []);
    void this.#track(outline, this.#fetch(outline, listing.generation, number));
    return undefined;
  }

  async #fetch(outline: OutlineName, generation: number, number: number): Promise<void> {
    const rows = await this.#client.call("rows", { outline, first: number * PAGE, count: PAGE }).catch(() => []);
    const listing = this.listings[outline];
    if (listing.generation !== generation) return;
    listing.pages.set(number, rows);
    if (listing.pages.size > 200) listing.pages.delete(listing.pages.keys().next().value ?? 0);
    this.changed();
  }

  /** The rows changed: those in sight are fetched before the old ones go, so that nothing flickers. */
  async #renew(outline: OutlineName, count: number, inSight: number): Promise<void> {
    const listing = this.listings[outline];
    const first = Math.max(0, Math.floor(Math.min(inSight, count - 1) / PAGE) - 1);
    const generation = ++listing.generation;
    const rows = await this.#client.call("rows", { outline, first: first * PAGE, count: PAGE * 3 });
    if (listing.generation !== generation) return;
    listing.count = count;
    listing.pages = new Map([0, 1, 2].map((i) => [first + i, rows.slice(i * PAGE, (i + 1) * PAGE)]));
    listing.cursor = Math.min(listing.cursor, Math.max(0, count - 1));
    this.changed();
  }

  act(outline: OutlineName, node: number, act: Act): Promise<void> {
    return this.#track(outline, this.#client.call("act", { outline, node, act })
      .then((count) => this.#renew(outline, count, this.listings[outline].cursor)));
  }

  setCursor(outline: OutlineName, index: number): void {
    const listing = this.listings[outline];
    listing.cursor = Math.max(0, Math.min(index, listing.count - 1));
    listing.follow = true;
    this.changed();
  }

  filter(outline: OutlineName, text: string): Promise<void> {
    return this.#track(outline, this.#filter(outline, text));
  }

  async #filter(outline: OutlineName, text: string): Promise<void> {
    const listing = this.listings[outline];
    listing.filter = text;
    this.changed();
    try {
      const { kept, rows } = await this.#client.call("filter", { outline, text });
      if (listing.filter !== text) return;
      listing.cursor = 0;
      listing.goTo = 0;
      await this.#renew(outline, rows, 0);
      if (listing.filter !== text) return;
      listing.trouble = undefined;
      listing.kept = text.trim() ? kept : undefined;
      this.changed();
    } catch (e) {
      listing.trouble = troubleOf(e);
      this.changed();
    }
  }

  /* ---- one entry ---- */

  async select(entry: number, fqn: string): Promise<void> {
    const selected: Selected = { entry, fqn, detail: undefined, preview: undefined, tally: undefined, trouble: undefined };
    this.selected = selected;
    this.changed();
    try {
      selected.detail = await this.#client.call("entry", { entry });
    } catch (e) {
      selected.trouble = troubleOf(e);
    }
    this.changed();
  }

  deselect(): void {
    this.selected = undefined;
    this.changed();
  }

  /** Goes to an entry by name, clearing a filter that hides it. */
  reveal(fqn: string): Promise<void> {
    return this.#track("all", this.#reveal(fqn));
  }

  async #reveal(fqn: string): Promise<void> {
    let found = await this.#client.call("reveal", { outline: "all", fqn });
    if (!found) {
      await this.filter("all", "");
      found = await this.#client.call("reveal", { outline: "all", fqn });
    }
    if (!found) return;
    const listing = this.listings.all;
    listing.cursor = found.row;
    listing.goTo = found.row;
    await this.#renew("all", found.rows, found.row);
    await this.select(found.entry, fqn);
  }

  async readValues(): Promise<void> {
    const selected = this.selected;
    if (!selected) return;
    const hear = (trouble: Trouble) => { selected.trouble = trouble; };
    selected.trouble = undefined;
    selected.preview ??= await this.#run("Reading values", () => undefined, () => this.#client.call("preview", { entry: selected.entry }), hear);
  }

  async tally(): Promise<void> {
    const selected = this.selected;
    if (!selected) return;
    selected.trouble = undefined;
    const { result, cancel } = this.#client.start("tally", { entry: selected.entry }, (p) => {
      selected.tally = p.tally;
      this.#progress(p);
    });
    const tally = await this.#run(`Reading ${selected.fqn}`, cancel, () => result, (trouble) => { selected.trouble = trouble; });
    if (tally) selected.tally = tally;
    this.changed();
  }

  /* ---- every byte: in a worker of its own, so that the page stays usable and ending it is cancelling ---- */

  async deepCheck(): Promise<void> {
    const opening = this.opening;
    if (!opening) return;
    let last = 0;
    const client = new Client((bytes) => {
      this.bytesRead += bytes - last;
      last = bytes;
      this.#progress({ done: bytes, total: sizeOf(opening) });
    });
    const findings = await this.#run("Checking every byte", () => client.end(), async () => {
      await client.call("open", { side: "a", opening });
      return client.call("deepFindings", {});
    }, (trouble) => { this.trouble = trouble; });
    client.end();
    if (!findings || this.opening !== opening) return;
    this.findings = findings;
    this.isDeep = true;
    this.changed();
  }

  /* ---- diff ---- */

  async compareWith(prepare: () => Promise<Opening>): Promise<void> {
    this.trouble = undefined;
    await this.#run("Opening the other", () => this.stopComparing(), async () => {
      const opening = await prepare();
      await this.#client.call("open", { side: "b", opening });
      this.comparison = { title: opening.title, opening, diff: undefined, text: "" };
    }, (trouble) => { this.trouble = trouble; });
    if (this.comparison) await this.diff(false, false);
  }

  async diff(values: boolean, layout: boolean): Promise<void> {
    const comparison = this.comparison;
    if (!comparison) return;
    const { result, cancel } = this.#client.start("diff", { values, layout }, (p) => this.#progress({ ...p, total: this.byteTotal }));
    const got = await this.#run("Comparing", cancel, () => result, (trouble) => { this.trouble = trouble; });
    if (got) Object.assign(comparison, got);
    this.changed();
  }

  stopComparing(): void {
    this.comparison = undefined;
    void this.#client.call("close", { side: "b" });
    this.changed();
  }

  /* ---- optimizer, plan, duplicates ---- */

  async loadOptimizers(): Promise<void> {
    this.optimizers = await this.#client.call("optimizers", {}).catch(() => []);
    this.changed();
  }

  setTarget(target: TargetForm): void {
    this.target = target;
    this.changed();
  }

  async plan(target: string): Promise<void> {
    this.preview = await this.#client.call("plan", { target }).catch((e: unknown): PlanPreview => ({ text: "", trouble: troubleOf(e) }));
    this.changed();
  }

  async findTwins(): Promise<void> {
    const total = this.opened?.overview.bytes ?? 0;
    const { result, cancel } = this.#client.start("twins", {}, (p) => this.#progress({ ...p, total }));
    const twins = await this.#run("Looking for equal tensors", cancel, () => result, (trouble) => { this.trouble = trouble; });
    if (twins) this.twins = twins;
    this.changed();
  }

  dismiss(): void {
    this.trouble = undefined;
    this.changed();
  }
}

export const sizeOf = (opening: Opening | undefined): number => opening?.files.reduce((sum, f) => sum + f.size, 0) ?? 0;
