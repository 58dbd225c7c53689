/** What the page knows, and everything that can be done to it. Views draw it and call it; they hold no state of their own
 *  but scroll positions and open menus. */
import { Client, Failure, type Progress } from "./client";
import type { Prepare, Served } from "./collect";
import type { Act, Detail, Diff, Findings, Opened, Opening, Optimizer, OutlineName, Plan, Preview, Row, Side, Tally, Trouble, Twins } from "./protocol";
import { START, type TargetForm } from "./target";

export const TABS = ["tensors", "storage", "objects", "optimizer", "findings", "compare", "reshard"] as const;
export type Tab = (typeof TABS)[number];

const PAGE = 64;
const FIRST_PROGRESS_MS = 100;
const COMPARING = "Comparing values", PLANNING = "Planning";
const MANY_RANKS = 4096;

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

/** `cancel` is there where it can be cancelled. */
export interface Job { readonly title: string; progress: Progress | undefined; readonly cancel: (() => void) | undefined }
type Tell = (p: Progress) => void;

export interface Selected {
  readonly entry: number;
  readonly fqn: string;
  detail: Detail | undefined;
  preview: Preview | undefined;
  tally: Tally | undefined;
  /** Its values are being counted. */
  isCounting: boolean;
  trouble: Trouble | undefined;
}

export interface Comparison {
  readonly title: string;
  readonly opening: Opening;
  diff: Diff | undefined;
  text: string;
  /** The diff that was asked for last. */
  asked: number;
}

/** What a target would mean, or why it cannot be. */
export interface PlanPreview { readonly plan?: Plan; readonly text: string; readonly trouble?: Trouble }

const newListing = (count: number): Listing => ({ count, filter: "", kept: undefined, trouble: undefined, cursor: 0, goTo: undefined, follow: false, pages: new Map(), generation: 0 });

const CANCELLED = new Failure({ message: "cancelled", status: "cancelled" });

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
  jobs: readonly Job[] = [];
  bytesRead = 0;
  #ending = new AbortController();
  /** Every opening and closing makes another; what an earlier one still brings is dropped. */
  #client = this.#newClient();
  #comparing = new AbortController();
  #aside = new Map<string, Client>();
  #plans = 0;
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

  #newClient(hear?: (bytes: number) => void): Client {
    let last = 0;
    const ending = this.#ending.signal;
    return new Client((bytes) => {
      if (ending.aborted) return;
      this.bytesRead += bytes - last;
      last = bytes;
      hear?.(bytes);
      this.changed();
    }, (trouble) => {
      if (!ending.aborted) this.trouble = trouble;
      this.changed();
    });
  }

  /** Runs something with a title that shows when it takes a while, and hears its trouble. Undefined where it failed, or
   *  where what it was about is no longer open. */
  async #run<T>(title: string, cancel: (() => void) | undefined, body: (tell: Tell) => Promise<T>, hear: (t: Trouble) => void): Promise<T | undefined> {
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

  #hear = (trouble: Trouble): void => { this.trouble = trouble; };

  /** Long work in a worker of its own, which opens again what is open: the page stays usable, and ending the worker is
   *  cancelling. What runs already is not started again. */
  async #runAside<T>(title: string, openings: Partial<Record<Side, Opening>>, total: number, body: (client: Client) => Promise<T>, hear = this.#hear): Promise<T | undefined> {
    if (this.#aside.has(title)) return undefined;
    return this.#run(title, () => this.#endAside(title), async (tell) => {
      const client = this.#newClient((done) => tell({ done, total }));
      this.#aside.set(title, client);
      try {
        for (const [side, opening] of Object.entries(openings)) await client.call("open", { side: side as Side, opening });
        return await body(client);
      } finally {
        client.end();
        if (this.#aside.get(title) === client) this.#aside.delete(title);
      }
    }, hear);
  }

  #endAside(title: string): void {
    this.#aside.get(title)?.end();
    this.#aside.delete(title);
  }

  /* ---- opening ---- */

  async open(prepare: Prepare): Promise<void> {
    this.close();
    const client = this.#client, { signal } = this.#ending;
    const opened = await this.#run("Opening", () => this.close(), async (tell) => {
      const opening = await prepare(signal, tell);
      signal.throwIfAborted();
      this.opening = opening;
      this.changed();
      await client.call("open", { side: "a", opening });
      return client.call("describe", {});
    }, this.#hear);
    if (opened) this.#take(opened);
  }

  /** Opens what the page's own server has, if it has anything, and nothing else was opened in the meantime. */
  async openServed(find: () => Promise<Served | undefined>, showComparison: () => void): Promise<void> {
    const client = this.#client, served = find();
    if (!await served.then((s) => s !== undefined, () => true) || this.#client !== client) return;
    await this.open(async () => ((await served) as Served).opening);
    const { other, opening } = await served.catch(() => undefined) ?? {};
    if (!other || this.opening !== opening || !this.opened) return;
    showComparison();
    await this.compareWith(async () => other);
  }

  /** After the worker broke. */
  async openAgain(): Promise<void> {
    const { opening } = this;
    if (opening) await this.open(async () => opening);
  }

  #take(opened: Opened): void {
    this.opened = opened;
    this.findings = opened.findings;
    this.listings = { all: newListing(opened.rows.all), objects: newListing(opened.rows.objects) };
    this.changed();
  }

  /** Back to the start page; whatever runs ends. */
  close(): void {
    this.#ending.abort(CANCELLED);
    this.#comparing.abort(CANCELLED);
    this.#ending = new AbortController();
    for (const client of [this.#client, ...this.#aside.values()]) client.end();
    this.#aside.clear();
    this.#client = this.#newClient();
    this.bytesRead = 0;
    this.jobs = [];
    this.opening = this.opened = this.findings = this.trouble = this.selected = this.comparison = undefined;
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
    void this.#track(outline, this.#fetch(outline, listing, number));
    return undefined;
  }

  async #fetch(outline: OutlineName, listing: Listing, number: number): Promise<void> {
    const { generation } = listing;
    const rows = await this.#client.call("rows", { outline, first: number * PAGE, count: PAGE });
    if (listing.generation !== generation) return;
    listing.pages.set(number, rows);
    if (listing.pages.size > 200) listing.pages.delete(listing.pages.keys().next().value ?? 0);
    this.changed();
  }

  /** The rows changed: those in sight are fetched before the old ones go, so that nothing flickers. The cursor stays, or
   *  goes to a row that is then scrolled to. */
  async #renew(outline: OutlineName, count: number, goTo?: number): Promise<void> {
    const listing = this.listings[outline], inSight = goTo ?? listing.cursor;
    const first = Math.max(0, Math.floor(Math.min(inSight, count - 1) / PAGE) - 1);
    const generation = ++listing.generation;
    const rows = await this.#client.call("rows", { outline, first: first * PAGE, count: PAGE * 3 });
    if (listing.generation !== generation) return;
    listing.count = count;
    listing.pages = new Map([0, 1, 2].map((i) => [first + i, rows.slice(i * PAGE, (i + 1) * PAGE)]));
    listing.cursor = Math.min(goTo ?? listing.cursor, Math.max(0, count - 1));
    if (goTo !== undefined) listing.goTo = listing.cursor;
    this.changed();
  }

  act(outline: OutlineName, node: number, act: Act): Promise<void> {
    return this.#track(outline, this.#client.call("act", { outline, node, act })
      .then((count) => this.#renew(outline, count)));
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
    const selected: Selected = { entry, fqn, detail: undefined, preview: undefined, tally: undefined, isCounting: false, trouble: undefined };
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
    if (!found) {
      this.#hear({ message: `no entry is called '${fqn}'`, status: "page" });
      this.changed();
      return;
    }
    await this.#renew("all", found.rows, found.row);
    await this.select(found.entry, fqn);
  }

  async readValues(): Promise<void> {
    const selected = this.selected;
    if (!selected) return;
    selected.trouble = undefined;
    selected.preview ??= await this.#run("Reading values", undefined, () => this.#client.call("preview", { entry: selected.entry }), (t) => { selected.trouble = t; });
    this.changed();
  }

  async tally(): Promise<void> {
    const selected = this.selected;
    if (!selected || selected.isCounting) return;
    selected.trouble = undefined;
    selected.isCounting = true;
    let cancel: () => void = () => undefined;
    const tally = await this.#run(`Reading ${selected.fqn}`, () => cancel(), (tell) => {
      const job = this.#client.start("tally", { entry: selected.entry }, (p) => {
        selected.tally = p.tally;
        tell(p);
      });
      cancel = job.cancel;
      return job.result;
    }, (t) => { selected.trouble = t; });
    if (tally) selected.tally = tally;
    selected.isCounting = false;
    this.changed();
  }

  /** Every byte. */
  async deepCheck(): Promise<void> {
    if (!this.opening) return;
    const findings = await this.#runAside("Checking every byte", { a: this.opening }, sizeOf(this.opening), (client) => client.call("deepFindings", {}));
    if (!findings) return;
    this.findings = findings;
    this.isDeep = true;
    this.changed();
  }

  /* ---- diff ---- */

  async compareWith(prepare: Prepare): Promise<void> {
    this.stopComparing();
    this.trouble = undefined;
    const client = this.#client, { signal } = this.#comparing;
    const opening = await this.#run("Opening the other", () => this.stopComparing(), async (tell) => {
      const other = await prepare(signal, tell);
      signal.throwIfAborted();
      await client.call("open", { side: "b", opening: other });
      return other;
    }, (t) => { if (!signal.aborted) this.#hear(t); });
    if (!opening || signal.aborted) return;
    this.comparison = { title: opening.title, opening, diff: undefined, text: "", asked: 0 };
    await this.diff(false, false);
  }

  async diff(values: boolean, layout: boolean): Promise<void> {
    const { comparison, opening } = this;
    if (!comparison || !opening) return;
    const asked = ++comparison.asked;
    this.#endAside(COMPARING);
    const got = values
      ? await this.#runAside(COMPARING, { a: opening, b: comparison.opening }, this.byteTotal, (client) => client.call("diff", { values, layout }))
      : await this.#run("Comparing", undefined, () => this.#client.call("diff", { values, layout }), this.#hear);
    if (!got || comparison.asked !== asked) return;
    Object.assign(comparison, got);
    this.changed();
  }

  stopComparing(): void {
    this.#comparing.abort(CANCELLED);
    this.#comparing = new AbortController();
    this.#endAside(COMPARING);
    this.comparison = undefined;
    if (this.opened) void this.#client.call("close", { side: "b" }).catch(() => undefined);
    this.changed();
  }

  /* ---- optimizer, plan, duplicates ---- */

  async loadOptimizers(): Promise<void> {
    const optimizers = await this.#run("Looking for optimizers", undefined, () => this.#client.call("optimizers", {}), this.#hear);
    if (optimizers) this.optimizers = optimizers;
    this.changed();
  }

  setTarget(target: TargetForm): void {
    this.target = target;
    this.changed();
  }

  /** For the text of a target with so many ranks. */
  async plan(target: string, ranks: number): Promise<void> {
    const { opening } = this, asked = ++this.#plans;
    if (!opening) return;
    this.#endAside(PLANNING);
    const hear = (trouble: Trouble) => { if (this.#plans === asked) this.preview = { text: "", trouble }; };
    const planned = await (ranks > MANY_RANKS ? this.#runAside(PLANNING, { a: opening }, 0, (client): Promise<PlanPreview> => client.call("plan", { target }), hear)
      : this.#run(PLANNING, undefined, (): Promise<PlanPreview> => this.#client.call("plan", { target }), hear));
    if (planned && this.#plans === asked) this.preview = planned;
    this.changed();
  }

  async findTwins(): Promise<void> {
    const { opening, opened } = this;
    if (!opening || !opened) return;
    const twins = await this.#runAside("Looking for equal tensors", { a: opening }, opened.overview.bytes, (client) => client.call("twins", {}));
    if (twins) this.twins = twins;
    this.changed();
  }

  dismiss(): void {
    this.trouble = undefined;
    this.changed();
  }
}

export const sizeOf = (opening: Opening | undefined): number => opening?.files.reduce((sum, f) => sum + f.size, 0) ?? 0;
