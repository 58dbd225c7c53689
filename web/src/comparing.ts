/** Compares the open checkpoint, A, with another one, B. What is cheap (names, dtypes, shapes, sharding) is compared
 *  immediately. Values are compared on demand, and the result is kept while other toggles change. */
import { onlyOne, type Prepare } from "./collect";
import { OWN_ORDER } from "./entry_tree";
import { mapOptionsOf } from "./map_choice";
import { sizeOf, type Model } from "./model";
import type { Diff, DiffOptions, Opening, Trouble } from "./protocol";

const COMPARING = "Comparing values";
const CANCELLED = new Error("cancelled");
type Change = Diff["changed"][number];

export interface Comparison {
  readonly title: string;
  readonly opening: Opening;
  /** The map that is applied to A. */
  readonly map: DiffOptions["map"];
  layout: boolean;
  canonical: boolean;
  /** Whether values are to be compared. */
  values: boolean;
  /** The differences of values, once they were compared. */
  valueDiff: Diff | undefined;
  diff: Diff | undefined;
  /** Why the map does not fit A. */
  trouble: Trouble | undefined;
}

/** Combines a structural diff with a comparison of values. */
function withValues(structure: Diff, values: Diff | undefined): Diff {
  if (!values) return structure;
  const changed = new Map<string, Change>(structure.changed.map((c) => [c.fqn, c]));
  for (const v of values.changed) {
    const s = changed.get(v.fqn);
    changed.set(v.fqn, s ? { ...v, a: s.a, b: s.b, what: [...new Set([...v.what, ...s.what])] } : v);
  }
  const list = [...changed.values()], { same } = values;
  return { ...structure, same: same && structure.same, changed: list, renamed: values.renamed, summary: { ...values.summary, changed: list.length, same: values.summary.same - (list.length - values.changed.length) } };
}

export class Comparing {
  comparison: Comparison | undefined;
  #ending = new AbortController();
  /** The number of the latest diff that was requested. */
  #asked = 0;

  constructor(private readonly model: Model) {}

  get bytes(): number { return sizeOf(this.model.opening) + sizeOf(this.comparison?.opening); }

  /** Opens B. */
  async with(prepare: Prepare): Promise<void> {
    this.stop();
    const { model } = this, { client } = model, { signal } = this.#ending;
    model.dismiss();
    const opening = await model.run("Opening the other", () => this.stop(), async (tell) => {
      const other = onlyOne(await prepare(signal, tell));
      signal.throwIfAborted();
      await client.call("open", { side: "b", opening: other });
      return other;
    }, (t) => { if (!signal.aborted) model.hear(t); });
    if (!opening || signal.aborted) return;
    await this.#start({ title: opening.title, opening, map: mapOptionsOf(model.mapChoice), layout: false, canonical: false, values: false, valueDiff: undefined, diff: undefined, trouble: undefined });
  }

  /** Compares again if another map has been chosen for A. */
  async remap(): Promise<void> {
    const { comparison, model } = this, map = mapOptionsOf(model.mapChoice);
    if (!comparison || JSON.stringify(map) === JSON.stringify(comparison.map)) return;
    model.endAside(COMPARING);
    if (model.selected?.compared) model.deselect(); // The numbers of entries are others now.
    await this.#start({ ...comparison, map, valueDiff: undefined, diff: undefined, trouble: undefined });
  }

  async #start(comparison: Comparison): Promise<void> {
    this.comparison = comparison;
    this.model.lists.reset("compare", 0);
    await this.#update();
    await this.#startValues(comparison);
  }

  /** Returns what hears of errors. */
  #hearer(comparison: Comparison): (trouble: Trouble) => void {
    return (trouble) => { comparison.trouble = trouble; };
  }

  async toggle(what: "layout" | "canonical" | "values"): Promise<void> {
    const { comparison } = this;
    if (!comparison) return;
    comparison[what] = !comparison[what];
    comparison.trouble = undefined;
    if (what !== "layout") {
      this.model.endAside(COMPARING);
      comparison.valueDiff = undefined; // Other names are matched, or values are no longer wanted.
    }
    this.model.changed();
    await this.#update();
    if (what !== "layout") await this.#startValues(comparison);
  }

  async #update(): Promise<void> {
    const { comparison, model } = this, asked = ++this.#asked;
    if (!comparison) return;
    const { layout, canonical, map } = comparison;
    await model.run("Comparing", undefined, async () => {
      const structure = await model.client.call("diff", { values: false, layout, canonical, map });
      if (this.#asked === asked) await this.#show(comparison, structure);
    }, this.#hearer(comparison));
  }

  /** Compares values if they are wanted, and if the map fits. */
  async #startValues(comparison: Comparison): Promise<void> {
    if (!comparison.values || !comparison.diff) return;
    const { model } = this, { opening } = model, { canonical, map } = comparison;
    if (!opening) return;
    const values = await model.runAside(COMPARING, { a: opening, b: comparison.opening }, this.bytes, async (client, { join }) => (await import("./team")).compareValues(client, join, { canonical, map, openings: [opening, comparison.opening] }), this.#hearer(comparison));
    if (this.comparison !== comparison || comparison.canonical !== canonical || !comparison.values) return;
    if (values) comparison.valueDiff = values;
    else comparison.values = false; // It was cancelled, or it failed.
    model.changed();
    await this.#update();
  }

  async #show(comparison: Comparison, structure: Diff): Promise<void> {
    const { model } = this, diff = withValues(structure, comparison.valueDiff), { filter, sort } = model.lists.get("compare");
    const isFirst = comparison.diff === undefined;
    comparison.diff = diff;
    const text = isFirst && diff.changed.length + diff.added.length + diff.removed.length > 0 ? "is:different" : filter;
    const rows = await model.client.call("showDiff", { diff, canonical: comparison.canonical, map: comparison.map, text, sort: isFirst ? OWN_ORDER : sort });
    if (this.comparison !== comparison) return;
    model.lists.get("compare").count = rows;
    await model.lists.filter("compare", text);
  }

  /** Closes B and ends all work for it. */
  stop(): void {
    const { model } = this;
    this.reset();
    model.endAside(COMPARING);
    if (model.opened) void model.client.call("close", { side: "b" }).catch(() => undefined);
    model.changed();
  }

  reset(): void {
    this.#ending.abort(CANCELLED);
    this.#ending = new AbortController();
    this.#asked++;
    this.comparison = undefined;
  }
}
