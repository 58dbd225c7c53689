/** Loads the module and reads files from disk, in Node. */
import fs from "node:fs";
import path from "node:path";
import { Tessera } from "./tessera.js";

export { sinkOf } from "./sink.js";

const moduleBytes = (name) => fs.readFileSync(new URL(name, import.meta.url));

/** Loads both files of the module, which are next to this file. */
export async function load() {
  const tessera = await Tessera.load(moduleBytes("tessera.wasm"));
  await tessera.prepare(moduleBytes("tessera-writers.wasm"));
  return tessera;
}

const MOST_OPEN = 256;

/** A file of a listing. `open` has the files of the listing that have a descriptor; the one that was opened first comes
 *  first. */
class DiskFile {
  #fd;
  #open;

  constructor(root, name, open) {
    this.name = name;
    this.at = path.join(root, name);
    this.#open = open;
    const { size, mtimeNs, ino } = fs.statSync(this.at, { bigint: true });
    this.size = Number(size);
    this.modified = `${mtimeNs / 1000000000n}.${String(mtimeNs % 1000000000n).padStart(9, "0")}`;
    this.then = { size, mtimeNs, ino };
  }

  read(offset, into) {
    const fd = this.#descriptor();
    for (let done = 0; done < into.length;) {
      const got = fs.readSync(fd, into, done, into.length - done, offset + done);
      if (got === 0) throw new Error(`${this.at} ends at byte ${offset + done}`);
      done += got;
    }
    this.#refuseChanged(fd);
  }

  #descriptor() {
    if (this.#fd !== undefined) return this.#fd;
    if (this.#open.size >= MOST_OPEN) for (const oldest of this.#open) { oldest.close(); break; }
    this.#open.add(this);
    return (this.#fd = fs.openSync(this.at, "r"));
  }

  /** Throws if the file has changed, because earlier and later reads would otherwise come from different contents. */
  #refuseChanged(fd) {
    const now = fs.fstatSync(fd, { bigint: true });
    if (Object.entries(this.then).some(([key, value]) => now[key] !== value)) throw new Error(`${this.at} changed after it was listed (from ${this.size} to ${now.size} bytes)`);
  }

  close() {
    if (this.#fd !== undefined) fs.closeSync(this.#fd);
    this.#fd = undefined;
    this.#open.delete(this);
  }
}

const PASSED_OVER = ["ENOENT", "ELOOP", "ENOTDIR", "EACCES"]; // a dangling link, a file that is gone, or is not for this user

function unlessPassedOver(act, otherwise) {
  try {
    return act();
  } catch (e) {
    if (PASSED_OVER.includes(e.code)) return otherwise;
    throw e;
  }
}

/* Files of an output that is being written have such names. They belong to no checkpoint. */
const entriesOf = (directory) => fs.readdirSync(directory, { withFileTypes: true }).filter((e) => !e.name.includes(".tessera-"));

const LEVELS_BELOW = 6; // checkpoints up to three levels down, and the directories inside them
const MOST_FILES = 100000;

/** Lists the files of a directory and of the directories below it, so that checkpoints there can be selected. Proceeds level
 *  by level: if there are too many files, the deepest ones are left out. Links to files count as files. Links to directories
 *  are followed only in `root` itself. */
function listed(root, most = LEVELS_BELOW) {
  const names = [];
  for (let level = 0, directories = [{ below: "" }]; directories.length && (level < 2 || names.length < MOST_FILES); level++) {
    const deeper = [];
    for (const { below, isLink } of directories) {
      const at = path.join(root, below);
      for (const entry of level ? unlessPassedOver(() => entriesOf(at), []) : entriesOf(at)) {
        const link = entry.isSymbolicLink(), found = link ? unlessPassedOver(() => fs.statSync(path.join(at, entry.name)), entry) : entry;
        if (found.isFile()) names.push(below + entry.name);
        else if (found.isDirectory() && !isLink && !(link && level) && level < most) deeper.push({ below: `${below}${entry.name}/`, isLink: link });
      }
    }
    directories = deeper;
  }
  return names;
}

/** Whether a file represents the files next to it: .metadata, or an index, which is a JSON document. */
function standsForSet(at) {
  if (path.basename(at) === ".metadata") return true;
  const fd = fs.openSync(at, "r"), head = Buffer.alloc(16);
  try {
    const text = head.toString("latin1", 0, fs.readSync(fd, head, 0, head.length, 0));
    return /^[ \n\r\t]*\{/.test(text) && !text.includes("\0"); // the length at the start of a safetensors file has zeros
  } finally {
    fs.closeSync(fd);
  }
}

/** Returns the arguments of `open` for a directory and everything below it, or for a file, and a `close` for the
 *  descriptors. */
export function filesOf(target) {
  const isFile = fs.statSync(target).isFile(), primary = path.basename(target);
  const root = isFile ? path.dirname(target) : target;
  const beside = () => [...new Set([primary, ...listed(root, 0)])];
  const names = !isFile ? listed(root) : standsForSet(target) ? beside() : [primary];
  const open = new Set(), files = names.map((name) => new DiskFile(root, name, open));
  return { files, options: isFile ? { primary } : {}, close: () => files.forEach((f) => f.close()) };
}
