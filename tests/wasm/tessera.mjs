/** The module under Node: opens folders and files of the disk, for tests. */
import fs from "node:fs";
import path from "node:path";

export class Tessera {
  static async load(file) {
    const self = new Tessera();
    self.stores = [];
    self.readBytes = 0;
    const env = {
      tsr_read: (store, index, offset, pointer, size) => self.#read(store, index, offset, pointer >>> 0, size >>> 0),
      emscripten_notify_memory_growth: () => {},
    };
    const wasi = new Proxy({}, { get: (_, name) => () => { throw new Error(`the module called ${String(name)}`); } });
    self.module = await WebAssembly.compile(fs.readFileSync(file));
    const instance = await WebAssembly.instantiate(self.module, { env, wasi_snapshot_preview1: wasi });
    self.x = instance.exports;
    self.x._initialize?.();
    return self;
  }

  #read(store, index, offset, pointer, size) {
    const { fds, names, root } = this.stores[store];
    fds[index] ??= fs.openSync(path.join(root, names[index]), "r");
    const got = fs.readSync(fds[index], new Uint8Array(this.x.memory.buffer, pointer, size), 0, size, Number(offset));
    this.readBytes += got;
    return got === size ? 0 : 1;
  }

  #text(pointer, size) {
    const bytes = new Uint8Array(this.x.memory.buffer, pointer >>> 0);
    return new TextDecoder().decode(bytes.slice(0, size ?? bytes.indexOf(0)));
  }

  #withError(call) {
    const err = this.x.tessera_alloc(this.x.tessera_error_size());
    try {
      const result = call(err);
      if (result) return result;
      throw new Error(this.#text(this.x.tessera_error_message(err)));
    } finally {
      this.x.tessera_release(err);
    }
  }

  #put(bytes) {
    const pointer = this.x.tessera_alloc(bytes.length) >>> 0;
    new Uint8Array(this.x.memory.buffer).set(bytes, pointer);
    return pointer;
  }

  /** A folder (its files and those one level below), or one file; returns a handle. */
  open(target) {
    const single = fs.statSync(target).isFile();
    const root = single ? path.dirname(target) : target;
    const names = (single ? [path.basename(target)] : listed(root)).sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    const number = this.stores.push({ root, names, fds: [] }) - 1;
    const encoded = names.map((n) => new TextEncoder().encode(n));
    const pointers = encoded.map((n) => this.#put(n));
    const table = new DataView(new ArrayBuffer(16 * names.length));
    names.forEach((n, i) => {
      table.setUint32(16 * i, pointers[i], true);
      table.setUint32(16 * i + 4, encoded[i].length, true);
      table.setBigUint64(16 * i + 8, BigInt(fs.statSync(path.join(root, n)).size), true);
    });
    const files = this.#put(new Uint8Array(table.buffer));
    try {
      return this.#withError((err) => this.x.tessera_open(number, files, names.length, single ? 0 : 0xffffffff, err));
    } finally {
      [files, ...pointers].forEach((p) => this.x.tessera_release(p));
    }
  }

  document(handle, kind, shownPath) {
    const shown = this.#put(new TextEncoder().encode(shownPath));
    try {
      const doc = this.#withError((err) => this.x.tessera_document(handle, kind, shown, Buffer.byteLength(shownPath), err));
      const text = this.#text(this.x.tessera_document_data(doc), this.x.tessera_document_size(doc));
      this.x.tessera_document_free(doc);
      return text;
    } finally {
      this.x.tessera_release(shown);
    }
  }

  close(handle) {
    this.x.tessera_close(handle);
    this.stores.forEach((s) => s.fds.splice(0).forEach((fd) => fs.closeSync(fd)));
  }
}

function listed(root) {
  return fs.readdirSync(root, { withFileTypes: true }).flatMap((e) =>
    e.isDirectory() ? fs.readdirSync(path.join(root, e.name), { withFileTypes: true }).filter((f) => f.isFile()).map((f) => `${e.name}/${f.name}`)
      : e.isFile() ? [e.name] : []);
}
