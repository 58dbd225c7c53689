/** The only caller of the two modules: classes over handles, strings over pointers. No part of it touches a file or the
 *  network but `Tessera.load` and `prepare` with a URL; bytes come from what `open` is given. */

import { argumentOf, documentText, optionsOf, textsOf } from "./options.js";

const NO_NUMBER = 0xffffffff;
const NO_POSITION = 0xffffffffffffffffn;
const MORE = 1;
const KINDS = { inspect: 1, findings: 2, "findings-deep": 3, layout: 4, overview: 5, entry: 6, preview: 7, optimizer: 8, sarif: 9 };
const ACTS = { close: 0, open: 1, fold: 2, unfold: 3, "open-all": 4, "close-all": 5 };
const ENTRY_KINDS = ["tensor", "object", "opaque"];
const LEVELS = [undefined, "note", "warning", "error"];
const NARROW = 13, WIDE = 3; // columns of a page of rows
const DIFF = { layout: 1, canonical: 2, tolerant: 4 };
const PART_BYTES = 32 + 3 * 64 * 8 + 8; // tessera_part: numbers, offsets, sizes, shape, and the result's dimensions
const SLICE_SHAPE = 32 + 2 * 64 * 8;
const READ_BYTES = 4 << 20;
const OPTIM = { sharded: 1, hasWorldSize: 2, hasRank: 4 };

/** What holds the elements; the other dtypes are bytes. */
const ARRAYS = {
  float64: Float64Array, float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, complex32: Uint16Array, complex64: Float32Array, complex128: Float64Array,
  int64: BigInt64Array, int32: Int32Array, int16: Int16Array, int8: Int8Array, uint64: BigUint64Array, uint32: Uint32Array, uint16: Uint16Array,
};

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

/** A module in memory; every call goes through it. */
class Instance {
  stores = new Map();
  nextStore = 1;
  bytesRead = 0;
  onRead = undefined;
  writers = undefined; // of the first module: the second one, once it is loaded
  counter = this; // where reads are counted and told

  attach(exports) {
    this.x = exports;
    this.x._initialize?.();
    this.errorSize = this.x.tessera_error_size();
  }

  /** What a module calls to read a file. A made file is read by the second module, whose memory may grow meanwhile. */
  read(store, file, offset, pointer, size) {
    try {
      const source = this.stores.get(store)[file];
      if (source instanceof MadeFile) {
        const bytes = source.bytes(offset, size);
        new Uint8Array(this.x.memory.buffer, pointer >>> 0, size >>> 0).set(bytes);
        return 0;
      }
      const result = source.read(Number(offset), new Uint8Array(this.x.memory.buffer, pointer >>> 0, size >>> 0));
      if (typeof result?.then === "function") throw new AsyncRead(source.name);
      this.counter.count(size >>> 0, source.name);
      return 0;
    } catch (e) {
      this.cause = e;
      return 1;
    }
  }

  second() {
    if (!this.writers) throw new TesseraError("the second module is not loaded; await prepare() first", "usage", undefined);
    return this.writers;
  }

  count(size, name) {
    this.bytesRead += size;
    this.onRead?.(this.bytesRead, name);
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
      if (this.cause instanceof AsyncRead) throw this.cause;
      const position = BigInt.asUintN(64, this.x.tessera_error_position(err));
      const message = this.text(this.x.tessera_error_message(err));
      const why = this.cause instanceof Error ? ` (${this.cause.message})` : "";
      throw new TesseraError(message + why, this.text(this.x.tessera_error_status(err)), position === NO_POSITION ? undefined : Number(position));
    } finally {
      this.x.tessera_release(err);
    }
  }

  /** Calls with files laid down as a table, sorted: (table, count, primary, unsummed). The files stay registered under a
   *  number, which is put in front, unless the call throws. */
  withFiles(source, call) {
    const { listing, primary, unsummed } = source;
    const number = this.nextStore++;
    const names = listing.map((f) => this.put(f.key));
    const table = new DataView(new ArrayBuffer(16 * listing.length));
    listing.forEach(({ file, key }, i) => {
      table.setUint32(16 * i, names[i], true);
      table.setUint32(16 * i + 4, key.length, true);
      table.setBigUint64(16 * i + 8, BigInt(file.size), true);
    });
    const pointer = this.put(new Uint8Array(table.buffer));
    const at = primary === undefined ? NO_NUMBER : listing.findIndex((f) => f.file.name === primary);
    this.stores.set(number, listing.map((f) => f.file));
    try {
      return { number, handle: call([number, pointer, listing.length, at, unsummed ? 1 : 0]) };
    } catch (e) {
      this.stores.delete(number);
      throw e;
    } finally {
      [pointer, ...names].forEach((p) => this.x.tessera_release(p));
    }
  }

  document(make) {
    const doc = this.checked(make);
    const text = this.text(this.x.tessera_document_data(doc), this.x.tessera_document_size(doc));
    this.x.tessera_document_free(doc);
    return text;
  }
}

/** A source file whose `read` gives a promise, which no module can wait for. */
class AsyncRead extends TypeError {
  constructor(name) {
    super(`read of '${name}' returns a promise; it must fill the array before it returns`);
    this.name = "TypeError";
  }
}

/** A file of a checkpoint that was made from another: the second module gives its bytes. */
class MadeFile {
  constructor(writers, handle, index, { name, size }) {
    Object.assign(this, { writers, handle, index, name, size });
  }

  bytes(offset, size) {
    const { x } = this.writers;
    const pointer = this.writers.put(new Uint8Array(size >>> 0));
    try {
      this.writers.checked((err) => x.tessera_made_read(this.handle, this.index, offset, pointer, size, err));
      return new Uint8Array(x.memory.buffer, pointer, size >>> 0).slice();
    } finally {
      x.tessera_release(pointer);
    }
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

async function instantiated(source) {
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
  return instance;
}

export class Tessera {
  #m;

  static async load(source) {
    const self = new Tessera();
    self.#m = await instantiated(source);
    return self;
  }

  /** Loads the second module, once. */
  async prepare(source = new URL("./tessera-writers.wasm", import.meta.url)) {
    if (this.#m.writers) return;
    const writers = await instantiated(source);
    writers.counter = this.#m;
    this.#m.writers ??= writers;
  }

  /** Bytes read from files so far. */
  get bytesRead() { return this.#m.bytesRead; }
  get memoryBytes() { return this.#modules().reduce((sum, m) => sum + m.x.memory.buffer.byteLength, 0); }
  get openCount() { return this.#modules().reduce((sum, m) => sum + m.x.tessera_open_count(), 0); }
  #modules() { return this.#m.writers ? [this.#m, this.#m.writers] : [this.#m]; }
  set onRead(listener) { this.#m.onRead = listener; }

  /** Cause and cure of what a rule finds. */
  ruleHelp(rule) {
    return this.#m.withTexts([`${rule}\0`], ([id]) => this.#m.text(this.#m.x.tessera_rule_help(id)));
  }

  open(files, options = {}) {
    const { primary } = optionsOf("open", options, { primary: "text" });
    return openSource(this.#m, { listing: sorted(files), primary });
  }

  /** tessera.fqn/1 of a module tree. */
  canonicalize(modules, names = []) {
    const tree = documentText(argumentOf("canonicalize", "modules", modules, "document"));
    const asked = textsOf("canonicalize", "names", names);
    const m = this.#m.second();
    return m.withTexts([tree, ...asked], ([text, size, ...placed]) => {
      const table = m.put(new Uint8Array(Uint32Array.from(placed).buffer));
      try {
        return JSON.parse(m.document((err) => m.x.tessera_canonicalize(text, size, table, asked.length, err)));
      } finally {
        m.x.tessera_release(table);
      }
    });
  }
}

function openSource(m, source, made) {
  const { handle, number } = m.withFiles(source, (args) => m.checked((err) => m.x.tessera_open(...args, err)));
  return new Checkpoint(m, handle, number, source, made);
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
  #source;
  #made;
  #derived = new Set();

  constructor(instance, handle, store, source, made) {
    super(instance, handle);
    this.#store = store;
    this.#source = source;
    this.#made = made;
  }

  /** Throws where the files are not one checkpoint but only ranks' optimizer states, which `optimizer` accepts. */
  check() { this.m.checked((err) => this.m.x.tessera_check(this.handle, err)); }
  get warnings() { return this.#made?.warnings ?? []; }

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

  /** The values of a tensor or of a slice of it: { dtype, shape, data }. */
  read(fqn, slice) {
    argumentOf("read", "fqn", fqn, "text");
    const texts = slice === undefined ? [fqn] : [fqn, argumentOf("read", "slice", slice, "text")];
    const { m } = this;
    const part = m.put(new Uint8Array(PART_BYTES));
    try {
      m.withTexts(texts, (args) => m.checked((err) => m.x.tessera_part_of(this.handle, ...(slice === undefined ? [...args, 0, 0] : args), part, err)));
      const view = new DataView(m.x.memory.buffer, part, PART_BYTES), u64 = (at) => Number(view.getBigUint64(at, true));
      const dtype = m.text(m.x.tessera_dtype_name(view.getUint32(4, true))), unit = view.getUint32(16, true), whole = view.getUint32(12, true) === 2;
      const shape = Array.from({ length: view.getUint32(PART_BYTES - 8, true) }, (_, i) => u64(SLICE_SHAPE + 8 * i));
      const bytes = this.#readPart(part, u64(24), unit, whole);
      return { dtype, shape, data: new (ARRAYS[dtype] ?? Uint8Array)(bytes.buffer) };
    } finally {
      m.x.tessera_release(part);
    }
  }

  /** Elements that are smaller than bytes come in one piece, others in pieces of 4 MiB. */
  #readPart(part, count, unit, whole) {
    const { m } = this;
    const all = new Uint8Array(count * unit), most = whole ? count : Math.floor(READ_BYTES / unit);
    if (!count) return all;
    const piece = m.put(new Uint8Array(Math.min(count, most) * unit));
    try {
      for (let first = 0; first < count; first += most) {
        const taken = Math.min(most, count - first);
        m.checked((err) => m.x.tessera_read(this.handle, part, BigInt(first), taken, piece, err));
        all.set(new Uint8Array(m.x.memory.buffer, piece, taken * unit), first * unit);
      }
    } finally {
      m.x.tessera_release(piece);
    }
    return all;
  }

  tally(entry) { return new Tally(this.m, this.m.checked((err) => this.m.x.tessera_tally(this.handle, entry, err))); }
  diff(other, options = {}) {
    const { layout, canonical, atol, rtol } = optionsOf("diff", options, { layout: "flag", canonical: "flag", atol: "real", rtol: "real" });
    if (!(other instanceof Checkpoint)) throw new TypeError("diff: other must be a Checkpoint");
    if (other.m !== this.m) throw new TypeError("diff: other is a Checkpoint of another Tessera");
    const tolerant = atol !== undefined || rtol !== undefined;
    const flags = (layout ? DIFF.layout : 0) | (canonical ? DIFF.canonical : 0) | (tolerant ? DIFF.tolerant : 0);
    return new Diff(this.m, this.m.checked((err) => this.m.x.tessera_diff(this.handle, other.handle, flags, atol ?? 0, rtol ?? 0, err)));
  }

  /** tessera.fqn/1 of the keys, by text. */
  canonicalize(options = {}) {
    const { prefix = "" } = optionsOf("canonicalize", options, { prefix: "text" });
    return JSON.parse(this.m.withTexts([prefix], (text) => this.m.document((err) => this.m.x.tessera_names(this.handle, ...text, err))));
  }

  /** What `tessera optim WHAT` would write, as a checkpoint that reads from this one. */
  optimizer(what, options = {}) {
    argumentOf("optimizer", "what", what, "text");
    const given = optionsOf("optimizer", options, { modules: "document", flatParams: "document", worldSize: "count", at: "text", sharded: "flag", rank: "count" });
    if (!this.handle) throw new TesseraError("no checkpoint is open", "usage", undefined);
    const writers = this.m.second();
    const made = makeOptimizer(writers, this.#source, what, given);
    try {
      const derived = openSource(this.m, made.source, { ...made, parent: this.#derived });
      this.#derived.add(derived);
      return derived;
    } catch (e) {
      closeMade(writers, made);
      throw e;
    }
  }

  twins() { return new Twins(this.m, this.m.checked((err) => this.m.x.tessera_twins(this.handle, err))); }

  close() {
    for (const derived of [...this.#derived]) derived.close();
    super.close();
    this.m.stores.delete(this.#store);
    if (this.#made) {
      closeMade(this.m.writers, this.#made);
      this.#made.parent.delete(this);
      this.#made = undefined;
    }
  }
}

function closeMade(writers, made) {
  writers.x.tessera_close(made.handle);
  writers.stores.delete(made.number);
}

function describeMade(writers, made) {
  try {
    const { single, files, warnings } = JSON.parse(writers.document((err) => writers.x.tessera_made_document(made.handle, err)));
    const listing = sorted(files.map((file, i) => new MadeFile(writers, made.handle, i, file)));
    return { ...made, warnings, source: { listing, primary: single ? files[0].name : undefined, unsummed: true } };
  } catch (e) {
    closeMade(writers, made);
    throw e;
  }
}

/** Lays down the options as tessera_optim_options has them and converts; gives the files of the result. */
function makeOptimizer(writers, source, what, given) {
  const texts = ["modules", "flatParams", "at"].map((name) => given[name]);
  const present = texts.filter((text) => text !== undefined).map(documentText);
  return writers.withTexts([`${what}\0`, ...present], ([action, , ...placed]) => {
    const options = new DataView(new ArrayBuffer(48));
    const flags = (given.sharded ? OPTIM.sharded : 0) | (given.worldSize !== undefined ? OPTIM.hasWorldSize : 0) | (given.rank !== undefined ? OPTIM.hasRank : 0);
    options.setUint32(0, action, true);
    options.setUint32(4, flags, true);
    texts.forEach((text, i) => {
      const [pointer, size] = text === undefined ? [0, 0] : placed.splice(0, 2);
      options.setUint32(8 + 8 * i, pointer, true);
      options.setUint32(12 + 8 * i, size, true);
    });
    options.setBigUint64(32, BigInt(given.worldSize ?? 0), true);
    options.setBigUint64(40, BigInt(given.rank ?? 0), true);
    const pointer = writers.put(new Uint8Array(options.buffer));
    try {
      const made = writers.withFiles(source, (args) => writers.checked((err) => writers.x.tessera_optimizer(...args, pointer, err)));
      return describeMade(writers, made);
    } finally {
      writers.x.tessera_release(pointer);
    }
  });
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
  /** tessera.diff/1, parsed. */
  result() { return JSON.parse(this.document()); }
  document(pathA = "a", pathB = "b") {
    return this.m.withTexts([pathA, pathB], (paths) => this.m.document((err) => this.m.x.tessera_diff_document(this.handle, ...paths, err)));
  }
}
