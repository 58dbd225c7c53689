/** Writes a checkpoint to disk, in Node: first next to its destination, so that it appears completely or not at all. */
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { isSidecar, keptNames, refusal } from "./replaced.js";

function sync(at) {
  const fd = fs.openSync(at, "r");
  try {
    fs.fsyncSync(fd);
  } finally {
    fs.closeSync(fd);
  }
}

function writeAll(fd, bytes, offset) {
  for (let done = 0; done < bytes.length;) done += fs.writeSync(fd, bytes, done, bytes.length - done, offset + done);
}

class DiskSink {
  #target;
  #overwrite;
  #aside; // a directory next to the target; everything is written into it first
  #files = new Map();

  constructor(target, overwrite) {
    this.#target = target;
    this.#overwrite = overwrite;
    this.#refuseExisting(target);
  }

  #refuseExisting(at) {
    const info = this.#overwrite ? undefined : fs.statSync(at, { throwIfNoEntry: false });
    if (info) throw refusal(`${at === this.#target ? "the destination " : ""}'${at}' exists; --overwrite replaces ${info.isDirectory() ? "the checkpoint in it, and keeps its other files" : "it"}`);
  }

  /** `name` is the name of a file in the directory, or the text after the target's own name. */
  create(name, size) {
    this.#refuseExisting(this.#target);
    if (name.includes("/") && fs.existsSync(this.#target)) throw refusal(`'${this.#target}' cannot be replaced by a checkpoint that has directories, which is only written to a new directory; remove '${this.#target}' first`);
    const { dir, base } = path.parse(path.resolve(this.#target));
    if (!this.#aside) {
      this.#aside = path.join(dir, `.${base}.tessera-${crypto.randomBytes(6).toString("hex")}`);
      fs.mkdirSync(this.#aside);
    }
    const at = path.join(this.#aside, name || "file");
    fs.mkdirSync(path.dirname(at), { recursive: true });
    const fd = fs.openSync(at, "wx");
    this.#files.set(name, { at, fd });
    if (size) fs.ftruncateSync(fd, size);
  }

  write(name, offset, bytes) { writeAll(this.#files.get(name).fd, bytes, offset); }

  finish(name) {
    const file = this.#files.get(name);
    fs.fsyncSync(file.fd);
    fs.closeSync(file.fd);
    file.fd = undefined;
  }

  done() {
    const parent = path.dirname(path.resolve(this.#target));
    this.#refuseExisting(this.#target);
    if (this.#files.has("")) this.#placeFile();
    else this.#placeDirectory();
    fs.rmSync(this.#aside, { recursive: true, force: true });
    sync(parent);
  }

  /** The sidecar comes first, because the file completes the checkpoint. */
  #placeFile() {
    if (fs.existsSync(this.#target) && !fs.statSync(this.#target).isFile()) throw refusal(`'${this.#target}' is a directory; a file cannot replace it`);
    const beside = [...this.#files.keys()].filter((name) => name);
    for (const name of beside) {
      const to = this.#target + name;
      this.#refuseExisting(to);
      if (fs.existsSync(to) && !isSidecar(to)) throw refusal(`'${to}' exists and was not written by a conversion; move it away`);
    }
    for (const name of [...beside, ""]) fs.renameSync(this.#files.get(name).at, this.#target + name);
  }

  #placeDirectory() {
    sync(this.#aside);
    if (!fs.existsSync(this.#target)) fs.renameSync(this.#aside, this.#target);
    else this.#replaceDirectory();
  }

  /** Moves the old directory away as a whole. Its files that do not belong to the old checkpoint are moved into the new
   *  directory. */
  #replaceDirectory() {
    if (!fs.statSync(this.#target).isDirectory()) throw refusal(`'${this.#target}' is a file; a directory cannot replace it`);
    const kept = keptNames(this.#target, new Set(this.#files.keys()));
    const old = `${this.#aside}-old`, placed = this.#target;
    fs.renameSync(placed, old);
    try {
      fs.renameSync(this.#aside, placed);
    } catch (e) {
      fs.renameSync(old, placed);
      throw e;
    }
    for (const name of kept) fs.renameSync(path.join(old, name), path.join(placed, name));
    fs.rmSync(old, { recursive: true });
  }

  abort() {
    for (const { fd } of this.#files.values()) if (fd !== undefined) fs.closeSync(fd);
    this.#files.clear();
    if (this.#aside) fs.rmSync(this.#aside, { recursive: true, force: true });
  }
}

/** Makes a sink that writes a directory or a file. It rejects an existing destination unless `overwrite` is set. */
export function sinkOf(target, options = {}) {
  if (typeof options !== "object" || options === null || Array.isArray(options)) throw new TypeError("sinkOf: the options must be an object");
  for (const name of Object.keys(options)) if (name !== "overwrite") throw new TypeError(`sinkOf: there is no option '${name}'; the options are overwrite`);
  const { overwrite = false } = options;
  if (typeof target !== "string") throw new TypeError("sinkOf: path must be a string");
  if (typeof overwrite !== "boolean") throw new TypeError("sinkOf: option 'overwrite' must be true or false");
  return new DiskSink(target, overwrite);
}
