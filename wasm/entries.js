/** The entries of a checkpoint, or of one with a map applied: lists, values and comparisons. */

import { argumentOf, oneOf, optionsOf, pairsOf } from "./options.js";
import { readValues } from "./values.js";
import { Diff, Handle, Outline, Tally } from "./views.js";

const NO_NUMBER = 0xffffffff;
/** The module's numbers of the documents about one entry. */
export const OF_AN_ENTRY = { entry: 6, preview: 7 };
const DIFF = { layout: 1, canonical: 2, tolerant: 4 };

/** Returns the number of an entry for the module, where larger numbers would be read as smaller ones. */
const entryOf = (call, entry) => Math.min(argumentOf(call, "entry", entry, "count"), NO_NUMBER);

export class Entries extends Handle {
  document(kind, options = {}) { return this.documentOf(oneOf("document", "kind", kind, OF_AN_ENTRY), options); }

  documentOf(kind, { entry, path = "" }) {
    const number = entry === undefined ? NO_NUMBER : entryOf("document", entry);
    return this.m.withTexts([path], (text) => this.m.document((err) => this.m.x.tessera_document(this.handle, kind, number, ...text, err)));
  }

  /** Returns the number of an entry, or undefined. */
  find(fqn) {
    argumentOf("find", "fqn", fqn, "text");
    const at = this.m.withTexts([fqn], (name) => this.m.checked((err) => this.m.x.tessera_find(this.handle, ...name, err)));
    return at === NO_NUMBER ? undefined : at - 1;
  }

  outline(options = {}) {
    return new Outline(this.m, this.m.checked((err) => this.m.x.tessera_outline(this.handle, options.objectsOnly ? 1 : 0, err)));
  }

  /** Returns the values of a tensor, or of a slice of it: { dtype, shape, data }. */
  read(fqn, slice) {
    argumentOf("read", "fqn", fqn, "text");
    return readValues(this.m, this.handle, fqn, slice);
  }

  tally(entry) {
    const number = entryOf("tally", entry);
    return new Tally(this.m, this.m.checked((err) => this.m.x.tessera_tally(this.handle, number, err)));
  }

  /** Returns tessera.fqn/1 of the keys, judged by their text. */
  canonicalize(options = {}) {
    const { prefix = "" } = optionsOf("canonicalize", options, { prefix: "text" }), { m } = this;
    m.needsPrepared();
    return JSON.parse(m.withTexts([prefix], (text) => m.document((err) => m.x.tessera_names(this.handle, ...text, err))));
  }
}

/** Compares two of them. The result closes `own` with itself. */
export function compared(a, b, { layout, canonical, atol, rtol, rule = [], baseline = [] }, own = []) {
  const { m } = a, flags = (layout ? DIFF.layout : 0) | (canonical ? DIFF.canonical : 0) | (atol !== undefined || rtol !== undefined ? DIFF.tolerant : 0);
  const judged = pairsOf({ rule, baseline });
  if (judged.length) m.needsPrepared();
  const diff = new Diff(m, m.checked((err) => m.x.tessera_diff(a.handle, b.handle, flags, atol ?? 0, rtol ?? 0, err)), own, () => a.checkTied?.());
  try {
    if (judged.length) m.withTable(judged, ([table, count]) => m.checked((err) => m.x.tessera_judge_diff(diff.handle, table, count / 2, err)));
    return diff;
  } catch (e) {
    diff.close();
    throw e;
  }
}
