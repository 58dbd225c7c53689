/** Writes commands.js and commands.d.ts, the options of calls with their types, and program/values.js, those of the command line; made
 *  from the table of all commands and options (core/commands/table.c).
 *  Usage: commands.mjs TESSERA [--check]   TESSERA: the native program; --check: only compare */
import fs from "node:fs";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const [tessera, check] = process.argv.slice(2);
if (!tessera) throw new Error("usage: commands.mjs TESSERA [--check]");
const { commands, options: global } = JSON.parse(spawnSync(tessera, ["completions", "json"], { encoding: "utf8" }).stdout);

/** Types of the table, as options.js checks them and as TypeScript has them. */
const TYPES = {
  flag: ["flag", "boolean"],
  text: ["text", "string"],
  texts: ["texts", "readonly string[]"],
  choice: ["text"],
  real: ["real", "number"],
  number: ["count", "number"],
  count: ["count", "number"],
  size: ["size", "string | number"],
  document: ["document", "DocumentOrText"],
  checkpoint: ["any", "Checkpoint"],
  model: ["any", "Checkpoint | readonly string[] | DocumentOrText"],
};

/** Options that only JavaScript has: kind, type and text. */
const RUN = [
  { name: "signal", kind: "signal", type: "AbortSignal", text: "Stops the conversion after the current step. The call then rejects with the signal's reason" },
  { name: "onProgress", kind: "function", type: "((progress: { readonly done: number; readonly total: number }) => void)", text: "Called after each step, with the numbers of bytes of tensors" },
];
const OWN = {
  open: [{ name: "primary", kind: "text", type: "string", text: "The file that the user named, if it represents a set of files (an index)" }],
  convert: RUN,
  reshard: RUN,
};

const camel = (name) => name.replace(/-([a-z])/g, (_, letter) => letter.toUpperCase());

/** Returns a help text about the options of a call only, whose names are `names`, as JavaScript names them. */
const helpOf = (help, names) => help
  .replace(/^With --([a-z-]+): (.)/, (text, name, letter) => (names.has(name) ? text : letter.toUpperCase()))
  .replace(/ \(implies --([a-z-]+)\)/, (text, name) => (names.has(name) ? text : ""))
  .replace(/--([a-z-]+)/g, (text, name) => (names.has(name) ? `\`${camel(name)}\`` : text))
  .replace(" (repeatable)", "");

/** An option of a call whose options have these names. */
function optionOf({ name, npm_name: other, npm_needs: needed = false, type, words, help, default: preset }, names) {
  const [kind, written] = TYPES[type], named = helpOf(needed ? help.replace(` (default: ${preset})`, "") : help, names);
  const text = other ? `With false: ${named[0].toLowerCase()}${named.slice(1)}` : named;
  return { name: other ?? camel(name), kind, type: written ?? words.map((word) => JSON.stringify(word)).join(" | "), text, needed };
}

/** The calls, in alphabetical order, with their options. Options of the opened checkpoint are those of `open`. */
function callsOf() {
  const calls = new Map([["open", new Map()]]);
  for (const { npm: call, options } of commands) {
    if (!call) continue;
    const names = new Set([...options, ...global].filter((option) => option.not_in_npm === null).map(({ name }) => name));
    calls.set(call, new Map());
    for (const option of options.filter((one) => one.not_in_npm === null)) calls.get(option.npm_opens ? "open" : call).set(option.name, optionOf(option, names));
  }
  return [...calls].sort(([a], [b]) => (a < b ? -1 : 1)).map(([call, options]) => [call, [...options.values(), ...(OWN[call] ?? [])]]);
}

/** A comment of lines of at most 125 characters. */
function commentOf(text) {
  const lines = [""];
  for (const word of `${text}.`.split(" ")) {
    if (lines.at(-1).length + word.length > 115) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return `  /** ${lines.join("\n   *  ")} */\n`;
}

/** What follows each option on the command line: nothing (flag), a path or another text. Documents and checkpoints are paths, and these texts. */
const PATHS = new Set(["also", "output", "pages", "source", "step"]), PATH_TYPES = new Set(["document", "checkpoint", "model"]);
const valueOf = ({ name, type }) => (type === "flag" ? "flag" : PATH_TYPES.has(type) || PATHS.has(name) ? "path" : "text");

const typeName = (call) => `${call[0].toUpperCase()}${call.slice(1)}Options`;
const calls = callsOf(), made = "Made by wasm/commands.mjs from the table in core/commands.";

const files = {
  "commands.js": `/** The options of calls, with their types. ${made} */
export const OPTIONS = {
${calls.map(([call, options]) => `  ${call}: { ${options.map(({ name, kind }) => `${name}: "${kind}"`).join(", ")} },\n`).join("")}};
`,
  "program/values.js": `/** What follows the options of each command. ${made} */
export const VALUES = {
${commands.map(({ name, options }) => `  ${name}: { ${[...options, ...global].map((option) => `"--${option.name}": "${valueOf(option)}"`).join(", ")} },\n`).join("")}};
`,
  "commands.d.ts": `/* ${made} */
import type { Checkpoint, DocumentOrText } from "./tessera.js";

${calls.map(([call, options]) => `/** The options of \`${call}\`. */
export interface ${typeName(call)} {
${options.map(({ name, type, text, needed }) => `${commentOf(text)}  readonly ${name}${needed ? `: ${type}` : `?: ${type} | undefined`};\n`).join("")}}
`).join("\n")}`,
};

for (const [name, text] of Object.entries(files)) {
  const target = fileURLToPath(new URL(name, import.meta.url));
  if (!check) fs.writeFileSync(target, text);
  else if (fs.readFileSync(target, "utf8") !== text) throw new Error(`${name} is not what the table says; run wasm/commands.mjs`);
}
