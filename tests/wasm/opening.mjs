/** Opens samples as the command line does. */
import fs from "node:fs";
import path from "node:path";
import { filesOf } from "../../wasm/node.js";

/** A file that represents a set (an index, .metadata) is opened with its directory, as the command line does. */
export function sourceOf(target) {
  const standsForSet = fs.statSync(target).isFile() && (target.endsWith(".json") || path.basename(target) === ".metadata");
  if (!standsForSet) return filesOf(target);
  const source = filesOf(path.dirname(target));
  return { ...source, files: source.files.filter((f) => !f.name.includes("/")), options: { primary: path.basename(target) } };
}

/** Returns a function that opens what `sourceOf(target)` returns, calls `body` with the checkpoint, and closes both. */
export function opener(tessera, sourceOf) {
  return (target, body, options = {}) => {
    const source = sourceOf(target);
    let opened;
    try {
      opened = tessera.open(source.files, { ...source.options, ...options });
      return body(opened);
    } finally {
      opened?.close();
      source.close();
    }
  };
}
