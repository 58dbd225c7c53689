#!/usr/bin/env node
/** Splits the linked module into two files: the functions and data that the first file needs, and everything else.
 *
 *  The first file contains what its exports can reach, directly or through addresses in data. The references are those of
 *  the object file that link-time optimization made (--save-temps). They are not followed to the functions that LATER lists
 *  by name, nor from a reader of a rare format (tsr_reader.is_rare) to its functions, because core asks for the second file
 *  before it calls these.
 *
 *  Usage: split.mjs WHOLE OBJECT EXPORTS_FIRST LATER FIRST SECOND [--names]
 *  With --names both files keep the names of functions, for sizes.mjs. That also makes the code 1 % larger. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { execFileSync } from "node:child_process";
import { nearAlike } from "./alike.mjs";
import { withLocalsNumbered } from "./locals.mjs";
import { bodiesOf, readObject, segmentsOf, withSegments } from "./object_file.mjs";
import { withDataPlaced } from "./place.mjs";

const [whole, object, exportsFirst, later, first, second, names] = process.argv.slice(2);
const NAMES = names === "--names" ? ["-g"] : [];
const FEATURES = ["mutable-globals", "bulk-memory", "sign-ext", "nontrapping-float-to-int", "simd"].map((name) => `--enable-${name}`);
// Control flow that is rebuilt from flat code is 0.4 % smaller than what the compiler produces. Writing and reading the
// module again saves another 0.5 %. Engines ignore the alignment that a load or store states. If it is always the same
// (--dealign), gzip finds less that differs.
const SMALL = ["-Oz", "--converge", "--flatten", "--rereloop", "-Oz", "-Oz", "--low-memory-unused", "--zero-filled-memory", "--dealign", ...(NAMES.length ? [] : ["--strip-debug"]), "--strip-producers"];
const SMALLER = ["--optimize-instructions", "--precompute-propagate", "-Oz", "--low-memory-unused"];
const IS_RARE = 4; // offset in tsr_reader (core/formats/common/reader.h)
const OFTEN = 60; // the number of functions that come first, because their numbers take one byte in calls
const CLOSE = 64; // a gap of at most this many bytes costs less than another segment
const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-split-"));
const at = (name) => path.join(directory, name);
// The tools warn about names of data that have moved, so warnings are shown only if a tool fails.
const tool = (name, ...args) => execFileSync(name, [...FEATURES, ...args], { encoding: "utf8", maxBuffer: 1 << 28, stdio: ["ignore", "pipe", "pipe"] });
const namesIn = (file) => new Set(fs.readFileSync(file, "utf8").split("\n").filter((line) => /^[a-z_]/.test(line)));

const { functions, segments, constructors } = readObject(fs.readFileSync(object));
const doors = namesIn(later), exported = namesIn(exportsFirst);
for (const name of doors) if (!functions.some((f) => f.name === name)) throw new Error(`${later}: there is no function ${name}, or it was inlined`);

const isRareReader = ({ name, kind, bytes }) => kind === "data" && name.startsWith("tsr_reader_") && bytes.length > IS_RARE && bytes[IS_RARE] === 1;

/** Returns the items that must be loaded together with an item. */
function needs(item) {
  return isRareReader(item) ? [] : item.references.map((r) => r.to).filter((to) => to !== undefined && !(to.kind === "function" && doors.has(to.name)));
}

/** Functions that are not in the object file, because they come from the compiler's library, stay in the first file. Of the
 *  functions here, they call only those that replace functions of that library (--wrap). */
const kept = new Set([...constructors, ...functions.filter((f) => exported.has(f.name) || f.name.startsWith("__wrap_"))]);
for (const left = [...kept]; left.length;)
  for (const item of needs(left.pop())) if (!kept.has(item)) left.push(item), kept.add(item);

/* ---- data, then functions ---- */

const { bytes, placed } = withDataPlaced(fs.readFileSync(whole), { functions, segments }, (segment) => !kept.has(segment));
fs.writeFileSync(at("placed"), withSegments(bytes, joined(placed)));

const present = new Set(tool("wasm-opt", at("placed"), "--print-function-map", "-o", at("same.wasm")).split("\n").filter(Boolean).map((line) => line.slice(line.indexOf(":") + 1)));
const moved = functions.filter((f) => !kept.has(f) && present.has(f.name)).map((f) => f.name);
if (moved.length === 0) throw new Error("there is nothing for the second file");
fs.writeFileSync(at("moved"), moved.join("\n"));
tool("wasm-split", ...NAMES, "--split", at("placed"), `--split-funcs=@${at("moved")}`, "-o1", at("first"), "-o2", at("second"));

/** Joins segments that are close together, because a segment costs more bytes than a small gap. */
function joined(list) {
  const runs = [];
  for (const { address, bytes: content } of list) {
    const last = runs.at(-1), gap = last ? address - last.end : Infinity;
    if (gap <= CLOSE) last.parts.push(Buffer.alloc(gap), content), (last.end = address + content.length);
    else runs.push({ address, end: address + content.length, parts: [content] });
  }
  return runs.map(({ address, parts }) => ({ address, bytes: Buffer.concat(parts) }));
}

/** Removes imports that stand for functions of the second file: one per function type is enough, because all of them throw
 *  the same error. */
function withoutTwins(text) {
  const byType = new Map(), stands = new Map();
  const fewer = text.replace(/^ \(import "placeholder" "\d+" \(func (\S+)(.*)\)\)\n/gm, (line, name, type) => {
    stands.set(name, byType.get(type) ?? name);
    if (byType.has(type)) return "";
    byType.set(type, name);
    return line;
  });
  return fewer.replace(/^ \(elem .*$/gm, (line) => line.replace(/\$[^\s)]+/g, (name) => stands.get(name) ?? name));
}

/** Counts how often each function is called by name. */
function callsIn(text) {
  const calls = new Map();
  for (const [, name] of text.matchAll(/\(call (\$[^\s)]+)/g)) calls.set(name, (calls.get(name) ?? 0) + 1);
  return (line) => calls.get(/\(func (\$[^\s)]+)/.exec(line)[1]) ?? 0;
}

/** Returns the text of a module with the most frequently called imports and functions first. After them, similar functions
 *  are near each other. */
function ordered(binary) {
  const bodies = bodiesOf(fs.readFileSync(binary)), text = withoutTwins(tool("wasm-dis", binary)), callsOf = callsIn(text);
  const FUNCTION = /^ \(func [^]*?^ \)\n/gm, IMPORT = /^ \(import \S+ \S+ \(func .*\n/gm;
  const blocks = text.match(FUNCTION) ?? [], imports = (text.match(IMPORT) ?? []).sort((a, b) => callsOf(b) - callsOf(a));
  if (blocks.length !== bodies.length) throw new Error(`${binary}: ${blocks.length} functions in the text, ${bodies.length} in the file`);
  const often = [...blocks.keys()].sort((a, b) => callsOf(blocks[b]) - callsOf(blocks[a]) || a - b).slice(0, OFTEN), order = nearAlike(bodies, often);
  let nextImport = 0, next = 0;
  return text.replace(IMPORT, () => imports[nextImport++]).replace(FUNCTION, () => blocks[order[next++]]);
}

for (const [name, isLate, file] of [["first", false, first], ["second", true, second]]) {
  fs.writeFileSync(at(`${name}.wasm`), withSegments(fs.readFileSync(at(name)), joined(placed.filter((p) => p.isLate === isLate))));
  fs.mkdirSync(path.dirname(file), { recursive: true });
  tool("wasm-opt", ...NAMES, ...SMALL, at(`${name}.wasm`), "-o", at(`${name}.small.wasm`));
  fs.writeFileSync(at(`${name}.wat`), ordered(at(`${name}.small.wasm`)));
  tool("wasm-opt", ...NAMES, ...SMALLER, at(`${name}.wat`), "-o", at(`${name}.ordered.wasm`));
  const last = withLocalsNumbered(fs.readFileSync(at(`${name}.ordered.wasm`)));
  fs.writeFileSync(file, withSegments(last, joined(segmentsOf(last)))); // wasm-opt has divided segments at zeros
}
fs.rmSync(directory, { recursive: true });
