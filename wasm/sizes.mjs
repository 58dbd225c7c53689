#!/usr/bin/env node
/** Shows where the bytes of the built modules are, with and without gzip: by module of the core, by source file, by
 *  function, and code against data. The share of a function in the gzip file is counted in bits of the compressed stream.
 *
 *  Usage: sizes.mjs [--top N] [BUILD]   BUILD is build/wasm; the modules are split again, with the names of functions */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import zlib from "node:zlib";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { KINDS_OF_NAMES, namesOf, Reader, sectionsOf, segmentsOf } from "./object_file.mjs";

const here = path.dirname(fileURLToPath(import.meta.url)), args = process.argv.slice(2);
const top = args[0] === "--top" ? Number(args.splice(0, 2)[1]) : 30;
const build = path.resolve(args[0] ?? path.join(here, "../build/wasm"));

/* ---- the cost of each byte in a deflate stream ---- */

const LENGTHS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const lengthBits = (i) => (i < 8 || i === 28 ? 0 : (i - 4) >> 2), distanceBits = (i) => (i < 4 ? 0 : (i - 2) >> 1);
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/** Returns Huffman codes as a map from "length:code" to the symbol. */
function codes(lengths) {
  const map = new Map();
  for (let size = 1, code = 0; size < 16; size++, code *= 2) lengths.forEach((l, symbol) => l === size && map.set(size * 65536 + code++, symbol));
  return map;
}

/** Returns the cost in bits of each byte in a raw deflate stream. */
function costs(stream, size) {
  const cost = new Float64Array(size);
  let at = 0, out = 0;
  const bits = (n) => { let v = 0; for (let i = 0; i < n; i++, at++) v |= ((stream[at >> 3] >> (at & 7)) & 1) << i; return v; };
  const symbol = (map) => { for (let n = 1, code = 0; ; n++) { code = code * 2 + bits(1); const found = map.get(n * 65536 + code); if (found !== undefined) return found; } };
  const dynamic = () => {
    const literals = bits(5) + 257, distances = bits(5) + 1, first = new Array(19).fill(0);
    for (let i = 0, n = bits(4) + 4; i < n; i++) first[ORDER[i]] = bits(3);
    const map = codes(first), lengths = [];
    while (lengths.length < literals + distances) {
      const s = symbol(map);
      if (s < 16) lengths.push(s);
      else for (let value = s === 16 ? lengths.at(-1) : 0, n = s === 16 ? 3 + bits(2) : s === 17 ? 3 + bits(3) : 11 + bits(7); n > 0; n--) lengths.push(value);
    }
    return [codes(lengths.slice(0, literals)), codes(lengths.slice(literals))];
  };
  for (let last = 0; !last;) {
    last = bits(1);
    if (bits(2) !== 2) throw new Error("a block of another kind than gzip -9 makes of a module");
    const [literals, distances] = dynamic();
    for (;;) {
      const begin = at, s = symbol(literals);
      if (s === 256) break;
      let count = 1;
      if (s > 256) {
        count = LENGTHS[s - 257] + bits(lengthBits(s - 257));
        bits(distanceBits(symbol(distances)));
      }
      for (let i = 0; i < count; i++) cost[out++] = (at - begin) / count;
    }
  }
  return cost;
}

/* ---- what the bytes are ---- */

/** Returns the source file of each function, according to the compiler's object files. */
function sources() {
  const files = new Map(), objects = execFileSync("find", [build, "-name", "*.c.o"], { encoding: "utf8" }).split("\n").filter(Boolean);
  const list = execFileSync("llvm-nm-14", ["-A", "--defined-only", ...objects], { encoding: "utf8", maxBuffer: 1 << 28 });
  for (const line of list.split("\n")) {
    const found = /^(.*?)\/CMakeFiles\/[^/]*\/(.*)\.o: -+ [a-zA-Z] (.*)$/.exec(line);
    if (found) files.set(found[3], path.join(path.relative(build, found[1]), found[2]).replace(/^.*\.local\//, ""));
  }
  return files;
}

function importCount(bytes) {
  const section = sectionsOf(bytes).find(({ id }) => id === 3), code = sectionsOf(bytes).find(({ id }) => id === 10);
  const own = new Reader(bytes, section.begin).u32();
  if (own !== new Reader(bytes, code.begin).u32()) throw new Error("functions and bodies differ in number");
  return Math.max(...namesOf(bytes, KINDS_OF_NAMES.functions).keys()) + 1 - own;
}

/** Returns [{ what, begin, end }] of a module: its functions and its data, and everything else by section. */
function items(bytes) {
  const list = [], names = namesOf(bytes, KINDS_OF_NAMES.functions), imported = importCount(bytes);
  for (const { id, name, head, begin, end } of sectionsOf(bytes)) {
    if (id === 10) {
      const r = new Reader(bytes, begin);
      let i = imported;
      r.list(() => { const size = r.u32(); list.push({ what: names.get(i++) ?? "?", kind: "code", begin: r.at, end: (r.at += size) }); });
    } else if (id === 11) for (const s of segmentsOf(bytes)) list.push({ what: "data", kind: "data", begin: s.bytes.byteOffset - bytes.byteOffset, end: s.bytes.byteOffset - bytes.byteOffset + s.bytes.length });
    else if (id !== 0 || name !== "name") list.push({ what: `section ${id}`, kind: "sections", begin: head, end });
  }
  return list;
}

/* ---- the tables ---- */

function table(title, rows, key, limit = Infinity) {
  const sums = new Map();
  for (const row of rows) {
    const sum = sums.get(key(row)) ?? sums.set(key(row), { raw: 0, gzip: 0, count: 0 }).get(key(row));
    sum.raw += row.raw; sum.gzip += row.gzip; sum.count++;
  }
  console.log(`\n${title}\n   gzip      raw  items`);
  for (const [name, { raw, gzip, count }] of [...sums].sort((a, b) => b[1].gzip - a[1].gzip).slice(0, limit))
    console.log(`${gzip.toFixed(0).padStart(7)} ${String(raw).padStart(8)} ${String(count).padStart(6)}  ${name}`);
}

const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-sizes-")), outputs = ["tessera.wasm", "tessera-writers.wasm"].map((name) => path.join(directory, name));
const whole = path.join(build, "wasm/whole.wasm");
execFileSync("node", [path.join(here, "split.mjs"), whole, `${whole}.lto.o`, path.join(here, "exports.txt"), path.join(here, "later.txt"), ...outputs, "--names"]);
const defined = sources(), rows = [];
for (const file of outputs) {
  const all = fs.readFileSync(file), nameSection = sectionsOf(all).find(({ name }) => name === "name");
  const bytes = Buffer.concat([all.subarray(0, nameSection.head), all.subarray(nameSection.end)]);
  const cost = costs(zlib.deflateRawSync(bytes, { level: 9 }), bytes.length);
  if (nameSection.end !== all.length) throw new Error("the names are not the last section");
  for (const { what, kind, begin, end } of items(all)) {
    let sum = 0;
    for (let i = begin; i < end; i++) sum += cost[i];
    const source = kind === "code" ? defined.get(what.replace(/_\d+$/, "")) ?? defined.get(what) ?? (what.startsWith("byn$") ? "(shared by binaryen)" : "(C library)") : `(${kind})`;
    rows.push({ file: path.basename(file), what, kind, source, raw: end - begin, gzip: sum / 8 });
  }
}
fs.rmSync(directory, { recursive: true });
table("By file and kind", rows, (r) => `${r.file} ${r.kind}`);
for (const file of ["tessera.wasm", "tessera-writers.wasm"]) {
  const own = rows.filter((r) => r.file === file);
  table(`${file} by module`, own, (r) => path.dirname(r.source) === "." ? r.source : path.dirname(r.source));
  table(`${file} by source file`, own, (r) => r.source, top);
  table(`${file} by function`, own.filter((r) => r.kind === "code"), (r) => r.what.replace(/\.__uniq\.\d+/, ""), top);
}
