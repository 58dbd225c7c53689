/** The module, and files of the disk, under Node. */
import fs from "node:fs";
import path from "node:path";
import { Tessera } from "./tessera.js";

export { sinkOf } from "./sink.js";

const moduleBytes = (name) => fs.readFileSync(new URL(name, import.meta.url));

/** The module next to this file, loaded and ready. */
export async function load() {
  const tessera = await Tessera.load(moduleBytes("tessera.wasm"));
  await tessera.prepare(moduleBytes("tessera-writers.wasm"));
  return tessera;
}

class DiskFile {
  #fd;

  constructor(root, name) {
    this.name = name;
    this.at = path.join(root, name);
    const { size, mtimeNs } = fs.statSync(this.at, { bigint: true });
    this.size = Number(size);
    this.modified = `${mtimeNs / 1000000000n}.${String(mtimeNs % 1000000000n).padStart(9, "0")}`;
  }

  read(offset, into) {
    this.#fd ??= fs.openSync(this.at, "r");
    for (let done = 0; done < into.length;) {
      const got = fs.readSync(this.#fd, into, done, into.length - done, offset + done);
      if (got === 0) throw new Error(`${this.at} ends at byte ${offset + done}`);
      done += got;
    }
  }

  close() {
    if (this.#fd !== undefined) fs.closeSync(this.#fd);
    this.#fd = undefined;
  }
}

/* What an output that is being written consists of has such a name; it belongs to no checkpoint. */
const entriesOf = (folder) => fs.readdirSync(folder, { withFileTypes: true }).filter((e) => !e.name.includes(".tessera-"));

const LEVELS_BELOW = 3;
const MOST_FILES = 100000;

/** The files of a directory and of those up to three levels below it, so that checkpoints there can be named. */
function listed(root) {
  const names = [];
  const list = (below, levels) => {
    for (const entry of entriesOf(path.join(root, below))) {
      if (names.length >= MOST_FILES) return;
      if (entry.isFile()) names.push(below + entry.name);
      else if (entry.isDirectory() && levels) list(`${below}${entry.name}/`, levels - 1);
    }
  };
  list("", LEVELS_BELOW);
  return names;
}

/** The arguments of `open` for a directory (and three levels below it) or one file, and `close` for the descriptors. */
export function filesOf(target) {
  const single = fs.statSync(target).isFile();
  const root = single ? path.dirname(target) : target;
  const files = (single ? [path.basename(target)] : listed(root)).map((name) => new DiskFile(root, name));
  return { files, options: single ? { primary: files[0].name } : {}, close: () => files.forEach((f) => f.close()) };
}
