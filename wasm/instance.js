/** A loaded module. Only this file calls the module's functions: it converts strings and errors, and provides files and
 *  sinks. */

import { TesseraError } from "./errors.js";
import { argumentOf, documentText } from "./options.js";
import { parseReal, printReal } from "./reals.js";
import { decoded, encoded } from "./texts.js";

const NO_NUMBER = 0xffffffff;
const NO_POSITION = 0xffffffffffffffffn;
/** Whether the engine can suspend a call of the module until a promise is settled (JavaScript Promise Integration). */
const CAN_WAIT = typeof WebAssembly.Suspending === "function";
const WAIT = 2;
const PLACE = 24; // bytes
const COMPARED_BYTES = 1 << 20;

/** A source file whose `read` returns a promise, for which the module cannot wait. */
class AsyncRead extends TypeError {
  constructor(name) {
    super(`read of '${name}' returns a promise; it must fill the array before it returns`);
    this.name = "TypeError";
  }
}

function fill(source, offset, into) {
  const result = source.read(offset, into), size = into.length;
  if (typeof result?.then === "function") {
    result.then(undefined, () => {}); // nobody else waits for it, so a rejection would end the process
    throw new AsyncRead(source.name);
  }
  if (typeof result === "number" && !(result >= size)) throw new Error(`read gave ${result} of ${size} bytes`);
}

/** Whether the engine ended a call of the module: it trapped, or had no stack left. */
const isTrap = (e) => e instanceof WebAssembly.RuntimeError || /call stack|recursion/i.test(e?.message);

/** An error that a function of the host threw. It is passed on unchanged to the caller. */
class HostFailure {
  constructor(error) { this.error = error; }
}

export class Instance {
  stores = new Map();
  sinks = new Map();
  nextNumber = 1;
  bytesRead = 0;
  onRead = undefined;
  isPrepared = false;
  #mayWait = false; // whether the call in progress is one that can be suspended
  #isWaiting = false; // whether it is suspended
  #fetching; // what it waits for
  #turn = Promise.resolve(); // settled after the last of the calls that can be suspended
  #closing = []; // what to do after it
  #depth = 0; // of calls that are not suspended: a source may make calls
  #trap; // the error to throw if the module cannot be used any more

  attach(exports) {
    this.x = exports;
    this.x._initialize?.();
    this.errorSize = this.x.tessera_error_size();
  }

  /** The module calls this to read a file. If the source fetches the bytes, the module calls `wait` and then this again. */
  read(store, file, offset, pointer, size) {
    this.#isWaiting = false;
    try {
      const source = this.stores.get(store)[file];
      this.#fetching = this.#mayWait && !this.#fetching ? source.fetch?.(Number(offset), size) : undefined;
      if (this.#fetching) return WAIT;
      fill(source, Number(offset), new Uint8Array(this.x.memory.buffer, pointer, size));
      this.bytesRead += size;
      this.onRead?.(this.bytesRead, source.name);
      return 0;
    } catch (e) {
      this.cause = e instanceof AsyncRead ? new HostFailure(e) : e;
      return 1;
    }
  }

  /** The module calls this with `count` places (tsr_store_place in store.h) that it will read soon. */
  prefetch(store, pointer, count) {
    if (!this.#mayWait) return 0;
    const places = new DataView(this.x.memory.buffer, pointer), ranges = new Map();
    for (let at = 0; at < PLACE * count; at += PLACE) {
      const file = places.getUint32(at, true), range = { offset: Number(places.getBigUint64(at + 8, true)), size: Number(places.getBigUint64(at + 16, true)) };
      ranges.set(file, [...ranges.get(file) ?? [], range]);
    }
    const announce = ([file, those]) => {
      try {
        return this.stores.get(store)[file].prefetch?.(those);
      } catch {
        return undefined; // the reads that follow report what is wrong
      }
    };
    const pending = [...ranges].map(announce).filter(Boolean);
    if (!pending.length) return 0;
    this.#fetching = Promise.all(pending).finally(() => { this.#fetching = undefined; });
    return WAIT;
  }

  /** The module goes on some time after this is settled, so it counts as waiting until it calls a function. */
  async wait() {
    this.#isWaiting = true;
    await Promise.resolve(this.#fetching).catch(() => {}); // the read that follows reports what is wrong
  }

  /** The module calls this to write to the sink of a conversion. After a failure the sink is not called again. */
  toSink(number, act) {
    this.#isWaiting = false;
    if (this.cause instanceof HostFailure) return 1;
    try {
      act(this.sinks.get(number));
      return 0;
    } catch (e) {
      this.cause = new HostFailure(e);
      return 1;
    }
  }

  bytes(pointer, size) { return new Uint8Array(this.x.memory.buffer, pointer >>> 0, size >>> 0); }

  needsPrepared() {
    if (!this.isPrepared) throw new TesseraError("the second file of the module is not loaded; await prepare() first", "usage", undefined);
  }

  /** Returns the findings of tessera.findings/1 in the form of a report. */
  report(findings, { format, path = "" }) {
    argumentOf("report", "option 'format'", format, "text");
    this.needsPrepared();
    return this.withTexts([format, path, findings], (texts) => this.document((err) => this.x.tessera_report(...texts, err)));
  }

  text(pointer, size) {
    const from = pointer >>> 0;
    const bytes = new Uint8Array(this.x.memory.buffer);
    return decoded(bytes.slice(from, size === undefined ? bytes.indexOf(0, from) : from + (size >>> 0)));
  }

  /** Returns the address of zeroed memory, to be released with tessera_release. */
  room(size) {
    if (this.#trap) throw this.#trap;
    const pointer = size < 2 ** 32 ? this.x.tessera_alloc(size) >>> 0 : 0;
    if (!pointer) throw new TesseraError("out of memory", "out of memory", undefined);
    return pointer;
  }

  put(bytes) {
    const pointer = this.room(bytes.length);
    new Uint8Array(this.x.memory.buffer).set(bytes, pointer);
    return pointer;
  }

  /** Calls `call` with the address of a copy of the array's bytes, which is freed afterwards. */
  withBytes(array, call) {
    const pointer = this.put(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    try {
      return call(pointer);
    } finally {
      this.x.tessera_release(pointer);
    }
  }

  /** Calls `call` with copies of texts in the module's memory, as (pointer, size) pairs, each with a NUL at the end. They
   *  are freed afterwards. */
  withTexts(texts, call) {
    const pointers = [];
    try {
      const args = texts.flatMap((text) => {
        const bytes = encoded(`${text}\0`);
        pointers.push(this.put(bytes));
        return [pointers.at(-1), bytes.length - 1];
      });
      return call(args);
    } finally {
      pointers.forEach((p) => this.x.tessera_release(p));
    }
  }

  /** Calls `call` with the address of a table of such pairs and the number of texts. */
  withTable(texts, call) {
    return this.withTexts(texts, (placed) => this.withBytes(Uint32Array.from(placed), (table) => call([table, texts.length])));
  }

  /** Calls `call` with the address of an error. If it returns 0, throws that error. */
  checked(call) {
    if (this.#isWaiting) throw new TesseraError("another call is waiting for a file; await its result first", "usage", undefined);
    const { cause } = this, mayWait = this.#mayWait, err = this.#begin(); // of a call that has ended, but whose error was not thrown yet
    this.#mayWait = false;
    this.#depth++;
    try {
      return this.#resultOf(this.#called(call, err), err);
    } finally {
      this.#depth--;
      this.#mayWait = mayWait;
      this.cause = cause;
      this.x.tessera_release(err);
      if (!this.#depth && !mayWait) this.#closeLate();
    }
  }

  #called(call, err) {
    try {
      return call(err);
    } catch (e) {
      throw this.#failureOf(e);
    }
  }

  #failureOf(e) { return isTrap(e) ? this.#stop(e) : e; }

  /** After a trap the module's memory may be in any state, so the module is not called again. Returns the error to throw. */
  #stop({ message }) {
    const { memory } = this.x;
    this.x = new Proxy({}, { get: (_, name) => (name === "memory" ? memory : () => 0) });
    this.#trap = new TesseraError(`the module failed (${message}) and cannot be used any more; load it again`, "unknown", undefined);
    return this.#trap;
  }

  #closeLate() { this.#closing.splice(0).forEach((close) => close()); }

  /** Calls an export whose last argument is the address of an error, like `checked`. If the engine can do that, the call is
   *  suspended while a source fetches bytes. A suspended call has its stack and unfinished changes in the module's memory.
   *  Therefore other calls of this kind wait until it has returned, and `checked` throws. */
  async checkedAsync(name, ...args) {
    if (!CAN_WAIT) return this.checked((err) => this.x[name](...args, err));
    const before = this.#turn;
    let end;
    this.#turn = new Promise((resolve) => { end = resolve; });
    await before;
    try {
      return await this.#suspendable(name, args);
    } finally {
      this.#closeLate();
      end();
    }
  }

  async #suspendable(name, args) {
    const err = this.#begin();
    this.#mayWait = true;
    try {
      const returned = await WebAssembly.promising(this.x[name])(...args, err).catch((e) => { throw this.#failureOf(e); });
      return this.#resultOf(returned, err);
    } finally {
      this.#mayWait = this.#isWaiting = false;
      this.x.tessera_release(err);
    }
  }

  /** Closes a handle, and forgets the files of a checkpoint. Waits for a call that is suspended, or that is reading from a
   *  source, because it may be using them. */
  close(handle, store) {
    const close = () => {
      this.x.tessera_close(handle);
      this.stores.delete(store);
    };
    if (this.#isWaiting || this.#mayWait || this.#depth) this.#closing.push(close);
    else close();
  }

  #begin() {
    const err = this.room(this.errorSize);
    this.cause = undefined;
    return err;
  }

  #resultOf(returned, err) {
    const result = returned >>> 0;
    if (result) return result;
    if (this.cause instanceof HostFailure) throw this.cause.error;
    const position = BigInt.asUintN(64, this.x.tessera_error_position(err));
    const message = this.text(this.x.tessera_error_message(err));
    const why = this.cause instanceof Error ? ` (${this.cause.message})` : "";
    throw new TesseraError(message + why, this.text(this.x.tessera_error_status(err)), position === NO_POSITION ? undefined : Number(position));
  }

  /** Returns the bytes whose address `call` returns. `call` stores their number at the address it is given first. */
  sized(call) {
    const size = this.room(4);
    try {
      return this.#sizedBytes(this.checked((err) => call(size, err)), size);
    } finally {
      this.x.tessera_release(size);
    }
  }

  /** Calls an export whose last arguments are the addresses of the number and of an error, like `sized` and `checkedAsync`. */
  async sizedAsync(name, ...args) {
    const size = this.room(4);
    try {
      return this.#sizedBytes(await this.checkedAsync(name, ...args, size), size);
    } finally {
      this.x.tessera_release(size);
    }
  }

  #sizedBytes(at, size) { return this.bytes(at, new DataView(this.x.memory.buffer).getUint32(size, true)); }

  /** Opens files, which are passed as a sorted table. Returns { handle, number }. The files stay registered under the
   *  number. */
  open(files, { primary, part, step, shards, salvage }) {
    const listing = joined(sorted(files)), number = this.nextNumber++;
    const at = primary === undefined ? NO_NUMBER : listing.findIndex((f) => f.file.name === primary);
    if (at < 0) throw new TesseraError(`there is no file '${primary}'`, "usage", undefined);
    const names = listing.map((f) => this.put(f.key));
    const table = new DataView(new ArrayBuffer(16 * listing.length));
    listing.forEach(({ file, key }, i) => {
      table.setUint32(16 * i, names[i], true);
      table.setUint32(16 * i + 4, key.length, true);
      table.setBigUint64(16 * i + 8, BigInt(file.size), true);
    });
    const pointer = this.put(new Uint8Array(table.buffer));
    const choice = [part, step, shards === undefined ? undefined : documentText(shards)];
    this.stores.set(number, listing.map((f) => f.file));
    try {
      const handle = this.withTexts(choice.map((text) => text ?? ""), (placed) => this.withBytes(Uint32Array.of(at, Number(listing.some((f) => f.file.remote)), Number(salvage ?? false), ...placed.map((value, i) => (choice[i >> 1] === undefined ? 0 : value))), (chosen) =>
        this.checked((err) => this.x.tessera_open(number, pointer, listing.length, chosen, err))));
      return { number, handle };
    } catch (e) {
      this.stores.delete(number);
      throw e;
    } finally {
      [pointer, ...names].forEach((p) => this.x.tessera_release(p));
    }
  }

  document(make) {
    const doc = this.checked(make);
    try {
      return this.text(this.x.tessera_document_data(doc), this.x.tessera_document_size(doc));
    } finally {
      this.x.tessera_document_free(doc);
    }
  }
}

/** Sorts files by the bytes of their names, as the module requires. */
function sorted(files) {
  const keyed = files.map((file) => ({ file, key: encoded(file.name) }));
  keyed.sort((a, b) => {
    const n = Math.min(a.key.length, b.key.length);
    for (let i = 0; i < n; i++) if (a.key[i] !== b.key[i]) return a.key[i] - b.key[i];
    return a.key.length - b.key.length;
  });
  return keyed;
}

function bytesOf(file, at) {
  const bytes = new Uint8Array(Math.min(COMPARED_BYTES, file.size - at));
  try {
    fill(file, at, bytes);
  } catch (e) {
    throw e instanceof AsyncRead ? e : new TesseraError(`'${file.name}' cannot be read (${e?.message})`, "input/output", undefined);
  }
  return bytes;
}

function equalBytes(a, b) {
  let isEqual = a.size === b.size;
  for (let at = 0; isEqual && at < a.size; at += COMPARED_BYTES) {
    const bytes = bytesOf(b, at);
    isEqual = bytesOf(a, at).every((byte, i) => byte === bytes[i]);
  }
  return isEqual;
}

/** Leaves out files that another file is equal to in name and bytes: several nodes may have written them to their disks. The
 *  module rejects files with the same name and other bytes. */
const joined = (listing) => listing.filter(({ file }, i) => !i || listing[i - 1].file.name !== file.name || !equalBytes(listing[i - 1].file, file));

async function compiled(source) {
  if (source instanceof WebAssembly.Module) return source;
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return WebAssembly.compile(source);
  const response = source instanceof Response ? source : await fetch(source);
  if (!response.ok) throw new TesseraError(`${response.url}: ${response.status} ${response.statusText}`, "input/output", undefined);
  return WebAssembly.compile(await response.arrayBuffer());
}

/** Functions that no build calls: system calls of the C library, and functions of the second file before it is loaded. */
function absent(module, about) {
  const imports = WebAssembly.Module.imports(module).filter((i) => i.module === about.module && i.kind === "function");
  return Object.fromEntries(imports.map((i) => [i.name, () => { throw new Error(`the module called ${i.name} of ${about.words}`); }]));
}

export async function instantiated(source) {
  const instance = new Instance();
  const module = await compiled(source);
  const u64 = (value) => BigInt.asUintN(64, value);
  const env = {
    tsr_read: (store, file, offset, pointer, size) => instance.read(store >>> 0, file >>> 0, u64(offset), pointer >>> 0, size >>> 0),
    tsr_prefetch: (store, places, count) => instance.prefetch(store >>> 0, places >>> 0, count >>> 0),
    tsr_wait: CAN_WAIT ? new WebAssembly.Suspending(() => instance.wait()) : () => {},
    tsr_create: (sink, file, name, nameSize, size, marker) =>
      instance.toSink(sink >>> 0, (to) => to.create(file >>> 0, instance.text(name, nameSize), Number(u64(size)), marker !== 0)),
    tsr_write: (sink, file, offset, pointer, size) =>
      instance.toSink(sink >>> 0, (to) => to.write(file >>> 0, Number(u64(offset)), instance.bytes(pointer, size))),
    tsr_print_real: (value, digits, pointer) => {
      const text = encoded(printReal(value, digits));
      instance.bytes(pointer, 40).set(text);
      return text.length;
    },
    tsr_parse_real: (pointer, size, used) => {
      const number = parseReal(instance.text(pointer, size));
      new DataView(instance.x.memory.buffer).setUint32(used >>> 0, number.used, true);
      return number.value;
    },
    emscripten_notify_memory_growth: () => {},
  };
  instance.env = env;
  instance.attach((await WebAssembly.instantiate(module, {
    env,
    wasi_snapshot_preview1: absent(module, { module: "wasi_snapshot_preview1", words: "the system" }),
    placeholder: absent(module, { module: "placeholder", words: "the second file, which is not loaded" }),
  })).exports);
  return instance;
}

/** Loads the second file into an instance, once. It shares the memory, and puts its functions into the table. */
export function prepared(instance, source) {
  const load = async () => {
    await WebAssembly.instantiate(await compiled(source), { primary: instance.x, env: instance.env });
    instance.x.tessera_prepare();
    instance.isPrepared = true;
  };
  instance.preparing ??= load().catch((e) => {
    instance.preparing = undefined;
    throw e;
  });
  return instance.preparing;
}
