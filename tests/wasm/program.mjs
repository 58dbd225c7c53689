/** Runs the npm package's command line for Node, as npm installs it, and the native program. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { check, same } from "../support/harness.mjs";

/** A text without what differs from run to run: times, rates, and the numbers of processes and random tags in hidden names. */
const steady = (text) => text.replace(/"(seconds|modified)": ("[\d.]+"|[\d.e-]+)/g, "$1").replace(/\b\d+(\.\d+)? s\b(, [\d.]+ [KMGT]?i?B\/s)?/g, "TIME").replace(/\.tessera-w?[0-9a-f]+/g, ".tessera-TAG");

/** Each name below a directory, with its kind, mode and bytes. */
export function tree(directory, prefix = "") {
  return fs.readdirSync(directory, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1)).flatMap((entry) => {
    const at = path.join(directory, entry.name), name = prefix + entry.name, mode = (fs.lstatSync(at).mode & 0o7777).toString(8);
    if (entry.isSymbolicLink()) return [`${name} -> ${fs.readlinkSync(at)}`];
    return entry.isDirectory() ? [`${name}/ ${mode}`, ...tree(at, `${name}/`)] : [`${name} ${mode} ${fs.readFileSync(at).toString("base64")}`];
  });
}

/** Installs the package in a directory that is removed when the process ends. */
function install({ native, node, root, samples }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-npx-")), project = path.join(scratch, "project");
  process.on("exit", () => fs.rmSync(scratch, { recursive: true, force: true }));
  const packed = spawnSync(path.join(root, "tests/wasm/package.sh"), [project], { encoding: "utf8" });
  if (packed.status !== 0) throw new Error(packed.stdout + packed.stderr);
  const installed = path.join(project, "node_modules/.bin/tessera-checkpoint");
  const runNative = (cwd, args, options) => spawnSync(native, args, { cwd, encoding: "utf8", maxBuffer: 1 << 28, ...options });
  const runProgram = (cwd, args, options) => spawnSync(node, [installed, ...args], { cwd, encoding: "utf8", maxBuffer: 1 << 28, ...options });

  let directories = 0;
  /** Runs the commands with both programs, each in its own directory that `prepare` fills. `{samples}` is where the samples are. */
  function both(commands, prepare = () => {}) {
    const [a, b] = ["native", "program"].map((side) => {
      const directory = path.join(scratch, `${directories}`, side);
      fs.mkdirSync(directory, { recursive: true });
      prepare(directory);
      return directory;
    });
    directories++;
    for (const command of commands) {
      if (typeof command === "function") {
        [a, b].forEach(command);
        continue;
      }
      const args = command.map((word) => word.replaceAll("{samples}", samples)), what = args.join(" ");
      const [x, y] = [runNative(a, args), runProgram(b, args)];
      check(x.error === undefined && y.error === undefined, `${what}: ${x.error ?? y.error}`);
      same(steady(x.stderr), steady(y.stderr), `messages of ${what}`);
      same(steady(x.stdout), steady(y.stdout), `output of ${what}`);
      check(x.status === y.status, `${what} exits with ${x.status} natively, with ${y.status} in Node`);
    }
    const [x, y] = [tree(a), tree(b)];
    const differing = [...x.filter((line) => !y.includes(line)), ...y.filter((line) => !x.includes(line))].map((line) => line.slice(0, 100));
    check(differing.length === 0, `the files of ${commands.filter(Array.isArray).at(-1).join(" ")} differ: ${differing.join("; ")}`);
  }

  const keep = (name, as = name) => (directory) => fs.cpSync(path.join(samples, name), path.join(directory, as), { recursive: true });
  return { both, installed, keep, runNative, runProgram, scratch };
}

let program;
/** Returns what runs both programs; the package is installed once, for all families. */
export const programOf = (context) => (program ??= install(context));

/** A sample in the words of a command, for `both`. */
export const at = (name) => `{samples}/${name}`;
