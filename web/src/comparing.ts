/** Compares the open checkpoint, A, with another one, B. What is cheap (names, dtypes, shapes, sharding) is compared
 *  immediately. Values are compared on demand, and the result is kept while other toggles change. */
import { onlyOne, type Prepare } from "./collect";
import { OWN_ORDER } from "./entry_tree";
import { mapOfFit, type Fit } from "./fit";
import { mapOptionsOf, type MapChoice } from "./map_choice";
import { openWhole, sizeOf, type Model } from "./model";
import type { Diff, DiffOptions, Measured, Opening, Tolerance, Trouble } from "./protocol";
import { Series } from "./series";

const COMPARING = "Comparing values", MEASURING = "Measuring what differs";
const CANCELLED = new Error("cancelled");
type Change = Diff["changed"][number];

export interface Comparison {
  readonly title: string;
  readonly opening: Opening;
  /** The data files of B that are absent. */
  readonly absent: readonly string[];
  /** The map that is applied to A. */
  map: DiffOptions["map"];
  /** How names and dtypes of A are made those of B, unless a map was chosen. */
  fit: Fit;
  tolerance: Tolerance;
  /** The tensors whose values differ, once these were compared and measured. */
  measured: readonly Measured[] | undefined;
  layout: boolean;
  canonical: boolean;
  /** Whether values are to be compared. */
  values: boolean;
  /** The differences of values, once they were compared. */
  valueDiff: Diff | undefined;
  diff: Diff | undefined;
  /** Whether the differences that are shown are of the names, the sharding and the tolerance that are asked for now. */
  isCurrent: boolean;
  /** The choice of a map that `map` follows. */
  choice: MapChoice;
  /** Why the map does not fit A. */
  trouble: Trouble | undefined;
}

const EXACT: Tolerance = { atol: 0, rtol: 0 }, AS_IT_IS: Fit = { casts: [] };

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
  /** The number of times that comparing values was ended. What was ended hears of it later, maybe when it has begun anew. */
  #ended = 0;
  /** That number when the latest comparison of values began. */
  #begun = -1;

  /** More checkpoints, next to A and B. */
  series: Series;

  constructor(private readonly model: Model) { this.series = new Series(model); }

  /** Whether the differences that are shown are of what is asked for now, also of the map that is chosen. */
  get isCurrent(): boolean { return this.comparison?.isCurrent === true && this.comparison.choice === this.model.mapChoice; }

  get bytes(): number { return sizeOf(this.model.opening) + sizeOf(this.comparison?.opening); }

  /** Opens B. */
  async with(prepare: Prepare): Promise<void> {
    this.stop();
    const { model } = this, { client } = model, { signal } = this.#ending;
    model.dismiss();
    const opened = await model.run("Opening the other", () => this.stop(), async (tell) => {
      const other = onlyOne(await prepare(signal, tell));
      signal.throwIfAborted();
      return openWhole(client, "b", other, signal);
    }, (t) => { if (!signal.aborted) model.hear(t); });
    if (!opened || signal.aborted) return;
    await this.#start({ title: opened.opening.title, ...opened, map: mapOptionsOf(model.mapChoice), choice: model.mapChoice, fit: AS_IT_IS, tolerance: EXACT, measured: undefined, layout: false, canonical: false, values: false, valueDiff: undefined, diff: undefined, isCurrent: false, trouble: undefined });
  }

  /** Compares again if another map has been chosen for A. */
  async remap(): Promise<void> {
    const { comparison, model } = this, { mapChoice: choice } = model, isChosen = choice.name !== "", fit = isChosen ? AS_IT_IS : comparison?.fit ?? AS_IT_IS;
    const map = isChosen ? mapOptionsOf(choice) : mapOfFit(fit);
    if (!comparison) return;
    if (JSON.stringify(map) === JSON.stringify(comparison.map)) {
      comparison.choice = choice;
      return model.changed();
    }
    this.#endValues();
    if (model.selected?.compared) model.deselect(); // The numbers of entries are others now.
    await this.#start({ ...comparison, map, choice, fit, valueDiff: undefined, measured: undefined, diff: undefined, isCurrent: false, trouble: undefined });
  }

  /** Makes A's names or dtypes those of B, or leaves them again. */
  async setFit(fit: Fit): Promise<void> {
    const { comparison } = this;
    if (!comparison) return;
    comparison.fit = fit;
    await this.remap();
  }

  async setTolerance(tolerance: Tolerance): Promise<void> {
    const { comparison, model } = this;
    if (!comparison || (tolerance.atol === comparison.tolerance.atol && tolerance.rtol === comparison.tolerance.rtol)) return;
    this.#endValues();
    Object.assign(comparison, { tolerance, valueDiff: undefined, measured: undefined, values: true, isCurrent: false, trouble: undefined });
    model.changed();
    await this.#compare(comparison);
  }

  async #start(comparison: Comparison): Promise<void> {
    this.comparison = comparison;
    this.model.lists.reset("compare", 0);
    await this.#compare(comparison);
  }

  #endValues(): void {
    this.#ended++;
    [COMPARING, MEASURING].forEach((title) => this.model.endAside(title));
  }

  /** Returns what hears of errors. */
  #hearer(comparison: Comparison): (trouble: Trouble) => void {
    return (trouble) => { comparison.trouble = trouble; };
  }

  async toggle(what: "layout" | "canonical" | "values"): Promise<void> {
    const { comparison } = this;
    if (!comparison) return;
    comparison[what] = !comparison[what];
    comparison.isCurrent = false;
    comparison.trouble = undefined;
    if (what !== "layout") {
      this.#endValues();
      comparison.valueDiff = comparison.measured = undefined; // Other names are matched, or values are no longer wanted.
    }
    this.model.changed();
    await this.#compare(comparison);
  }

  /** Compares what is cheap, and then values if they are wanted and nothing has ended or begun that in the meantime. */
  async #compare(comparison: Comparison): Promise<void> {
    const ended = this.#ended;
    await this.#update();
    if (this.#ended === ended) await this.#startValues(comparison);
  }

  async #update(): Promise<void> {
    const { comparison, model } = this, asked = ++this.#asked;
    if (!comparison) return;
    const { layout, canonical, map, tolerance } = comparison;
    await model.run("Comparing", undefined, async () => {
      const structure = await model.client.call("diff", { values: false, layout, canonical, map, ...tolerance });
      if (this.#asked === asked) await this.#show(comparison, structure);
    }, (trouble) => { if (this.#asked === asked) Object.assign(comparison, { trouble, diff: undefined }); });
    if (this.#asked === asked) comparison.isCurrent = true;
    model.changed();
  }

  /** Compares values if they are wanted, if the map fits, and if that has not begun yet. */
  async #startValues(comparison: Comparison): Promise<void> {
    const { model } = this, { opening } = model, { canonical, map, tolerance } = comparison, ended = this.#ended;
    if (!opening || !comparison.values || !comparison.diff || this.#begun === ended) return;
    this.#begun = ended;
    const values = await model.runAside(COMPARING, { a: opening, b: comparison.opening }, this.bytes, async (client, { join }) => (await import("./team")).compareValues(client, join, { canonical, map, ...tolerance, openings: [opening, comparison.opening] }), this.#hearer(comparison));
    if (this.comparison !== comparison || this.#ended !== ended) return;
    if (values) comparison.valueDiff = values;
    else comparison.values = false; // It was cancelled, or it failed.
    model.changed();
    await this.#update();
    if (values) await this.#measure(comparison, values);
  }

  /** Measures the tensors whose values differ. The result of the comparison is shown before that. */
  async #measure(comparison: Comparison, values: Diff): Promise<void> {
    const { model } = this, { opening } = model, { map } = comparison;
    const changed = values.changed.filter(({ what, a }) => what.includes("value") && a.kind === "tensor").map(({ fqn, fqn_b: other = fqn }) => ({ fqn, other }));
    const pairs = [...changed, ...values.renamed.filter(({ differing }) => differing).map(({ a, b }) => ({ fqn: a, other: b }))];
    const found = !opening || pairs.length === 0 ? [] : await model.runAside(MEASURING, { a: opening, b: comparison.opening }, undefined, async (client, { join }) => (await import("./team")).measure(client, join, { pairs, map, openings: [opening, comparison.opening] }), () => undefined);
    if (comparison.valueDiff !== values) return;
    comparison.measured = found;
    model.changed();
    if (found?.length) await this.#update();
  }

  async #show(comparison: Comparison, structure: Diff): Promise<void> {
    const { model } = this, diff = withValues(structure, comparison.valueDiff), { filter, sort } = model.lists.get("compare");
    const isFirst = comparison.diff === undefined;
    comparison.diff = diff;
    const text = isFirst && diff.changed.length + diff.added.length + diff.removed.length > 0 ? "is:different" : filter;
    const { selected } = model, before = selected?.compared;
    const { rows, dtypes, chosen } = await model.client.call("showDiff", { diff, measured: comparison.measured ?? [], canonical: comparison.canonical, map: comparison.map, text, sort: isFirst ? OWN_ORDER : sort, chosen: before && { fqn: selected.fqn, isOnlyInB: before.mark === "only-b" } });
    if (this.comparison !== comparison) return;
    if (before && model.selected === selected) model.selected = chosen && Object.assign(selected, chosen); // what is shown of it is of the new differences, too
    const listing = model.lists.get("compare"), isTyped = listing.filter !== filter; // since the differences were asked for
    listing.count = rows;
    model.lists.dtypes.compare = dtypes;
    await model.lists.filter("compare", isTyped ? listing.filter : text);
  }

  /** Closes B and ends all work for it. */
  stop(): void {
    const { model } = this;
    this.reset();
    this.#endValues();
    if (model.selected?.compared) model.selected = undefined;
    if (model.opened) void model.client.call("close", { side: "b" }).catch(() => undefined);
    model.changed();
  }

  reset(): void {
    this.#ending.abort(CANCELLED);
    this.#ending = new AbortController();
    this.#asked++;
    this.series.end();
    this.series = new Series(this.model);
    this.comparison = undefined;
  }
}
