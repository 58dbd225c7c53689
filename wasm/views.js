/** Objects over a checkpoint other than its documents: the outline, and jobs in steps. */

import { argumentOf, isReport, optionsOf, partOrThrow } from "./options.js";

const NO_NUMBER = 0xffffffff;
const MORE = 1;
const ACTS = { close: 0, open: 1, fold: 2, unfold: 3, "open-all": 4, "close-all": 5 };
const ENTRY_KINDS = ["tensor", "object", "opaque"];
const LEVELS = [undefined, "note", "warning", "error"];
const NARROW = 13, WIDE = 3; // the columns of a page of rows

export class Handle {
  constructor(instance, handle) {
    this.m = instance;
    this.handle = handle;
  }

  close(store) {
    this.m.close(this.handle, store);
    this.handle = 0;
  }
}

export class Outline extends Handle {
  get count() { return this.m.x.tessera_outline_count(this.handle) >>> 0; }

  filter(text) {
    argumentOf("filter", "text", text, "text");
    return this.m.withTexts([text], (args) => this.m.checked((err) => this.m.x.tessera_outline_filter(this.handle, ...args, err))) - 1;
  }

  act(node, act) { return this.m.x.tessera_outline_act(this.handle, node, ACTS[act]) >>> 0; }
  mark(entry, level) { this.m.x.tessera_outline_mark(this.handle, entry, LEVELS.indexOf(level)); }

  reveal(entry) {
    const row = this.m.x.tessera_outline_reveal(this.handle, entry) >>> 0;
    return row ? row - 1 : undefined;
  }

  rows(first, count) {
    const { m } = this;
    const wide = m.room(count * (WIDE * 8 + NARROW * 4));
    const narrow = wide + count * WIDE * 8;
    try {
      const got = m.x.tessera_outline_rows(this.handle, first, count, narrow, wide) >>> 0;
      const u32 = new Uint32Array(m.x.memory.buffer, narrow, NARROW * count);
      const u64 = new BigUint64Array(m.x.memory.buffer, wide, WIDE * count);
      return Array.from({ length: got }, (_, i) => this.#row((c) => u32[c * count + i], (c) => u64[c * count + i]));
    } finally {
      m.x.tessera_release(wide);
    }
  }

  #row(narrow, wide) {
    const state = narrow(5);
    const isEntry = narrow(1) !== NO_NUMBER;
    const row = {
      node: narrow(0),
      name: this.m.text(narrow(2), narrow(3)),
      depth: narrow(4),
      group: (state & 1) !== 0,
      open: (state & 2) !== 0,
      folded: (state & 4) !== 0,
      run: narrow(7),
      odd: (state & 16) !== 0,
      level: LEVELS[(state >> 8) & 3],
      entries: narrow(6),
      elements: Number(wide(0)),
      bytes: Number(wide(1)),
      dtypes: this.#dtypes(wide(2)),
    };
    if (!isEntry) return row;
    const shape = new BigUint64Array(this.m.x.memory.buffer, narrow(9), narrow(8));
    return { ...row, entry: narrow(1), fqn: this.m.text(narrow(11), narrow(12)), kind: ENTRY_KINDS[(state >> 5) & 3], shape: Array.from(shape, Number), chunks: narrow(10) };
  }

  #dtypes(bits) {
    const names = [];
    for (let i = 0; bits; i++, bits >>= 1n) if (bits & 1n) names.push(this.m.text(this.m.x.tessera_dtype_name(i)));
    return names;
  }
}

class Job extends Handle {
  /** Returns true while there is more to do. */
  step(...budget) { return this.m.checked((err) => this.stepOnce(...budget, err)) === MORE; }
}

export class Tally extends Job {
  stepOnce(bytes, err) { return this.m.x.tessera_tally_step(this.handle, bytes, err); }
  document() { return this.m.document((err) => this.m.x.tessera_tally_document(this.handle, err)); }
}

export class Twins extends Job {
  stepOnce(err) { return this.m.x.tessera_twins_step(this.handle, err); }
  document() { return this.m.document((err) => this.m.x.tessera_twins_document(this.handle, err)); }
}

export class Diff extends Job {
  #own; // A and B with the options of the comparison
  #checkTied;

  /** `checkTied` is called before values are compared. */
  constructor(instance, handle, own, checkTied) {
    super(instance, handle);
    this.#own = own;
    this.#checkTied = checkTied;
  }

  step() {
    this.#checkTied();
    return super.step();
  }

  stepOnce(err) { return this.m.x.tessera_diff_step(this.handle, err); }
  /** Like `step`, and fetches bytes of sources that have `fetch`. */
  async stepAsync() {
    this.#checkTied();
    return await this.m.checkedAsync("tessera_diff_step", this.handle) === MORE;
  }

  /** Restricts the following steps to part `number` of `count` parts, which read about the same number of bytes. */
  part(number, count) { this.#records(number, count); }
  /** Returns the results of the steps for a part, as bytes. */
  found(number, count) { return this.#records(number, count).slice(); }
  /** Stores the results of another module for that part of the same checkpoints. */
  take(number, count, found) { this.#records(number, count).set(found); }
  #records(number, count) {
    partOrThrow("diff", number, count);
    return this.m.sized((size, err) => this.m.x.tessera_diff_part(this.handle, number, count, size, err));
  }

  /** Returns tessera.diff/1, parsed. */
  result() { return JSON.parse(this.document()); }
  /** With `format`, returns the differences as a report instead. */
  document(pathA = "a", pathB = "b", options = {}) {
    const { format } = optionsOf("diff", options, { format: "text" });
    if (isReport(format)) {
      this.m.needsPrepared();
      return this.m.withTexts([format, pathA, pathB], (texts) => this.m.document((err) => this.m.x.tessera_diff_report(this.handle, ...texts, err)));
    }
    return this.m.withTexts([pathA, pathB], (paths) => this.m.document((err) => this.m.x.tessera_diff_document(this.handle, ...paths, err)));
  }

  close() {
    super.close();
    this.#own.splice(0).forEach((made) => made.close());
  }
}
