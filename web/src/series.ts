/** Statistics of several checkpoints, layer by layer: a series of steps, one column each. The numbers are read by a worker per
 *  checkpoint, one after the other. */
import { onlyOne, type Prepare } from "./collect";
import { sizeOf, type Model } from "./model";
import type { Opening, Statistics, Trouble } from "./protocol";

/** Without all of its data files a checkpoint has no numbers. */
export interface Column { readonly opening: Opening; readonly absent: readonly string[]; statistics?: Statistics | undefined; trouble?: Trouble | undefined }
const READING = "Reading a series";

export class Series {
  /** The checkpoints besides A and B. */
  more: readonly Column[] = [];
  /** A and B; their statistics are kept until another one is compared. */
  #pair: readonly Column[] = [];
  trouble: Trouble | undefined;
  isReading = false;
  #ending = new AbortController();

  constructor(private readonly model: Model) {}

  get columns(): readonly Column[] {
    const { opening, opened, comparing: { comparison } } = this.model;
    if (opening && opened && comparison && (this.#pair[0]?.opening !== opening || this.#pair[1]?.opening !== comparison.opening)) this.#pair = [{ opening, absent: opened.overview.absent }, { opening: comparison.opening, absent: comparison.absent }];
    return [...this.#pair, ...this.more];
  }
  /** What is still to be read. */
  get unread(): readonly Column[] { return this.columns.filter((c) => !c.statistics && c.absent.length === 0); }

  async add(prepare: Prepare): Promise<void> {
    const { model } = this, ending = new AbortController(), { signal } = ending;
    this.#ending.signal.addEventListener("abort", () => ending.abort(), { signal });
    this.trouble = undefined;
    const found = await model.run("Opening another", () => ending.abort(), async (tell) => model.whole(onlyOne(await prepare(signal, tell)), signal), (t) => { if (!signal.aborted) this.trouble = t; });
    if (found && !signal.aborted) this.more = [...this.more, found];
    model.changed();
  }

  remove(column: Column): void {
    this.more = this.more.filter((c) => c !== column);
    this.model.changed();
  }

  async read(): Promise<void> {
    if (this.isReading) return;
    this.isReading = true;
    await this.#read();
    this.isReading = false;
    this.model.changed();
  }

  async #read(): Promise<void> {
    const { model } = this;
    for (const column of this.unread) {
      column.trouble = undefined;
      const statistics = await model.runAside(READING, { a: column.opening }, sizeOf(column.opening), (client) => client.call("statistics", {}), (t) => { column.trouble = t; });
      if (!statistics && !column.trouble) return; // it was cancelled
      column.statistics = statistics;
      model.changed();
    }
  }

  /** Ends all work. What it still reports stays in this object, and another comparison has its own series. */
  end(): void {
    this.#ending.abort();
    this.model.endAside(READING);
  }
}
