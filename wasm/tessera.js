/** The module's only caller: classes over handles, strings over pointers. No part of it touches a file or the network but
 *  `Tessera.load` with a URL; bytes come from what `open` is given. */

const NO_NUMBER = 0xffffffff;
const NO_POSITION = 0xffffffffffffffffn;
const MORE = 1;
const KINDS = { inspect: 1, findings: 2, "findings-deep": 3, layout: 4, overview: 5, entry: 6, preview: 7, optimizer: 8, sarif: 9 };
const ACTS = { close: 0, open: 1, fold: 2, unfold: 3, "open-all": 4, "close-all": 5 };
const ENTRY_KINDS = ["tensor", "object", "opaque"];
const LEVELS = [undefined, "note", "warning", "error"];
const NARROW = 13, WIDE = 3; // columns of a page of rows

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // a name may begin with U+FEFF

export class TesseraError extends Error {
  constructor(message, status, position) {
    super(message);
    this.name = "TesseraError";
    this.status = status;
    this.position = position;
  }
}

/** The module in memory; every call goes through it. */
class Instance {
  stores = new Map();
  nextStore = 1;
  bytesRead = 0;
  onRead = undefined;

  attach(exports) {
    this.x = exports;
    this.x._initialize?.();
    this.errorSize = this.x.tessera_error_size();
  }

  read(store, file, offset, pointer, size) {
    try {
      const source = this.stores.get(store)[file];
      source.read(Number(offset), new Uint8Array(this.x.memory.buffer, pointer >>> 0, size >>> 0));
      this.bytesRead += size >>> 0;
      this.onRead?.(this.bytesRead, source.name);
      return 0;
    } catch (e) {
      this.cause = e;
      return 1;
    }
  }

  text(pointer, size) {
    const from = pointer >>> 0;
    const bytes = new Uint8Array(this.x.memory.buffer);
    return decoder.decode(bytes.slice(from, size === undefined ? bytes.indexOf(0, from) : from + (size >>> 0)));
  }

  put(bytes) {
    const pointer = this.x.tessera_alloc(bytes.length) >>> 0;
    if (!pointer) throw new TesseraError("out of memory", "out of memory", undefined);
    new Uint8Array(this.x.memory.buffer).set(bytes, pointer);
    return pointer;
  }

  /** Calls with texts laid down as (pointer, size) pairs, and frees them. */
  withTexts(texts, call) {
    const pointers = [];
    try {
      const args = texts.flatMap((t) => {
        const bytes = encoder.encode(t);
        pointers.push(this.put(bytes));
        return [pointers.at(-1), bytes.length];
      });
      return call(args);
    } finally {
      pointers.forEach((p) => this.x.tessera_release(p));
    }
  }

  /** Calls with an error behind the arguments; 0 is thrown as what it says. */
  checked(call) {
    const err = this.put(new Uint8Array(this.errorSize));
    this.cause = undefined;
    try {
      const result = call(err) >>> 0;
      if (result) return result;
      const position = BigInt.asUintN(64, this.x.tessera_error_position(err));
      const message = this.text(this.x.tessera_error_message(err));
      const why = this.cause instanceof Error ? ` (${this.cause.message})` : "";
      throw new TesseraError(message + why, this.text(this.x.tessera_error_status(err)), position === NO_POSITION ? undefined : Number(position));
    } finally {
      this.x.tessera_release(err);
    }
  }

  document(make) {
    const doc = this.checked(make);
    const text = this.text(this.x.tessera_document_data(doc), this.x.tessera_document_size(doc));
    this.x.tessera_document_free(doc);
    return text;
  }
}

async function compiled(source) {
  if (source instanceof WebAssembly.Module) return source;
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return WebAssembly.compile(source);
  const response = source instanceof Response ? source : await fetch(source);
  if (!response.ok) throw new TesseraError(`${response.url}: ${response.status} ${response.statusText}`, "input/output", undefined);
  return WebAssembly.compile(await response.arrayBuffer());
}

/** Sorted by name, byte by byte, as the module wants them. */
function sorted(files) {
  const keyed = files.map((file) => ({ file, key: encoder.encode(file.name) }));
  keyed.sort((a, b) => {
    const n = Math.min(a.key.length, b.key.length);
    for (let i = 0; i < n; i++) if (a.key[i] !== b.key[i]) return a.key[i] - b.key[i];
    return a.key.length - b.key.length;
  });
  return keyed;
}

export class Tessera {
  #m;

  static async load(source) {
    const instance = new Instance();
    const module = await compiled(source);
    const env = {
      tsr_read: (store, file, offset, pointer, size) => instance.read(store >>> 0, file >>> 0, BigInt.asUintN(64, offset), pointer, size),
      emscripten_notify_memory_growth: () => {},
    };
    const wasi = Object.fromEntries(WebAssembly.Module.imports(module).filter((i) => i.module !== "env").map((i) => [i.name, () => {
      throw new Error(`the module called ${i.name}`);
    }]));
    instance.attach((await WebAssembly.instantiate(module, { env, wasi_snapshot_preview1: wasi })).exports);
    const self = new Tessera();
    self.#m = instance;
    return self;
  }

  /** Bytes read from files so far. */
  get bytesRead() { return this.#m.bytesRead; }
  get memoryBytes() { return this.#m.x.memory.buffer.byteLength; }
  get openCount() { return this.#m.x.tessera_open_count(); }
  set onRead(listener) { this.#m.onRead = listener; }

  /** Cause and cure of what a rule finds. */
  ruleHelp(rule) {
    return this.#m.withTexts([`${rule}\0`], ([id]) => this.#m.text(this.#m.x.tessera_rule_help(id)));
  }

  open(files, options = {}) {
    const m = this.#m;
    const listing = sorted(files);
    const number = m.nextStore++;
    const names = listing.map((f) => m.put(f.key));
    const table = new DataView(new ArrayBuffer(16 * listing.length));
    listing.forEach(({ file, key }, i) => {
      table.setUint32(16 * i, names[i], true);
      table.setUint32(16 * i + 4, key.length, true);
      table.setBigUint64(16 * i + 8, BigInt(file.size), true);
    });
    const pointer = m.put(new Uint8Array(table.buffer));
    const primary = options.primary === undefined ? NO_NUMBER : listing.findIndex((f) => f.file.name === options.primary);
    m.stores.set(number, listing.map((f) => f.file));
    try {
      const handle = m.checked((err) => m.x.tessera_open(number, pointer, listing.length, primary, err));
      return new Checkpoint(m, handle, number);
    } catch (e) {
      m.stores.delete(number);
      throw e;
    } finally {
      [pointer, ...names].forEach((p) => m.x.tessera_release(p));
    }
  }
}

class Handle {
  constructor(instance, handle) {
    this.m = instance;
    this.handle = handle;
  }

  close() {
    this.m.x.tessera_close(this.handle);
    this.handle = 0;
  }
}

export class Checkpoint extends Handle {
  #store;

  constructor(instance, handle, store) {
    super(instance, handle);
    this.#store = store;
  }

  document(kind, options = {}) {
    return this.m.withTexts([options.path ?? ""], (path) =>
      this.m.document((err) => this.m.x.tessera_document(this.handle, KINDS[kind] ?? 0, options.entry ?? NO_NUMBER, ...path, err)));
  }

  /** tessera.plan/1 for a target, given as the text of a tessera.target/1 document. */
  plan(target, path = "") {
    return this.m.withTexts([target, path], (texts) => this.m.document((err) => this.m.x.tessera_plan(this.handle, ...texts, err)));
  }

  /** The number of an entry, or undefined. */
  find(fqn) {
    const at = this.m.withTexts([fqn], (name) => this.m.x.tessera_find(this.handle, ...name) >>> 0);
    return at === NO_NUMBER ? undefined : at;
  }

  outline(options = {}) {
    return new Outline(this.m, this.m.checked((err) => this.m.x.tessera_outline(this.handle, options.objectsOnly ? 1 : 0, err)));
  }

  tally(entry) { return new Tally(this.m, this.m.checked((err) => this.m.x.tessera_tally(this.handle, entry, err))); }
  diff(other, options = {}) {
    return new Diff(this.m, this.m.checked((err) => this.m.x.tessera_diff(this.handle, other.handle, options.layout ? 1 : 0, err)));
  }

  twins() { return new Twins(this.m, this.m.checked((err) => this.m.x.tessera_twins(this.handle, err))); }

  close() {
    super.close();
    this.m.stores.delete(this.#store);
  }
}

export class Outline extends Handle {
  get count() { return this.m.x.tessera_outline_count(this.handle) >>> 0; }

  filter(text) {
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
    const wide = m.put(new Uint8Array(count * (WIDE * 8 + NARROW * 4)));
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
  /** True while there is more to do. */
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
  stepOnce(err) { return this.m.x.tessera_diff_step(this.handle, err); }
  document(pathA = "a", pathB = "b") {
    return this.m.withTexts([pathA, pathB], (paths) => this.m.document((err) => this.m.x.tessera_diff_document(this.handle, ...paths, err)));
  }
}
