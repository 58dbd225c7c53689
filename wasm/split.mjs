#!/usr/bin/env node
/** Splits the linked module in two files: what the first exports can reach, and everything else.
 *
 *  Direct calls are read from the module. What an indirect call can reach is taken from two links of the same objects without
 *  inlining: a function whose address is taken counts for the first file unless it is absent from PLAIN_FIRST, which exports
 *  nothing else.
 *
 *  Usage: split.mjs WHOLE PLAIN_WHOLE PLAIN_FIRST EXPORTS_FIRST FIRST SECOND */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { execFileSync } from "node:child_process";

const FEATURES = ["mutable-globals", "bulk-memory", "sign-ext", "nontrapping-float-to-int"].map((name) => `--enable-${name}`);
const SMALL = ["-Oz", "--converge", "--low-memory-unused", "--zero-filled-memory", "--strip-debug", "--strip-producers"];
const [whole, plainWhole, plainFirst, exportsFirst, first, second] = process.argv.slice(2);
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-split-"));
const at = (name) => path.join(folder, name);
const tool = (name, ...args) => execFileSync(name, [...FEATURES, ...args], { encoding: "utf8", maxBuffer: 1 << 28 });

const namesOf = (module) => new Set(tool("wasm-opt", module, "--print-function-map", "-o", at("same.wasm"))
  .split("\n").filter(Boolean).map((line) => line.slice(line.indexOf(":") + 1)));

/** Who calls whom, and whose address is taken. */
function callsOf(module) {
  const calls = new Map(), taken = new Set();
  const graph = tool("wasm-opt", module, "--print-call-graph", "-o", at("same.wasm")).split("digraph call").at(-1);
  for (const line of graph.split("\n")) {
    const call = /^  "(.*)" -> "(.*)";/.exec(line), node = /^  "(.*)" \[.*rounded/.exec(line);
    if (call) calls.set(call[1], [...(calls.get(call[1]) ?? []), call[2]]);
    else if (node) taken.add(node[1]);
  }
  return { calls, taken };
}

function reachable(calls, roots) {
  const seen = new Set(roots), left = [...seen];
  for (let name = left.pop(); name !== undefined; name = left.pop())
    for (const called of calls.get(name) ?? []) if (!seen.has(called)) left.push(called), seen.add(called);
  return seen;
}

const all = namesOf(whole), inFirst = namesOf(plainFirst);
/* The C library's static functions are numbered by the linker, differently in each link: they tell nothing. */
const isNumbered = (name) => /\.\d+$/.test(name) && !name.includes(".__uniq.");
const later = new Set([...namesOf(plainWhole)].filter((name) => !inFirst.has(name) && !isNumbered(name)));
const { calls, taken } = callsOf(whole);
const exported = fs.readFileSync(exportsFirst, "utf8").split("\n").filter((line) => /^[a-z]/.test(line));
const kept = reachable(calls, ["_initialize", "stackSave", "stackRestore", "stackAlloc", "__errno_location", ...exported, ...[...taken].filter((name) => !later.has(name))]);
const wrong = [...kept].filter((name) => later.has(name));
if (wrong.length) throw new Error(`the first file would call ${wrong.join(", ")}`);
const moved = [...all].filter((name) => !kept.has(name));
if (moved.length === 0) throw new Error("there is nothing for the second file");

tool("wasm-split", "--split", whole, `--split-funcs=${moved.join(",")}`, "-o1", at("first"), "-o2", at("second"));
fs.mkdirSync(path.dirname(first), { recursive: true });
tool("wasm-opt", ...SMALL, at("first"), "-o", first);
tool("wasm-opt", ...SMALL, at("second"), "-o", second);
fs.rmSync(folder, { recursive: true });
