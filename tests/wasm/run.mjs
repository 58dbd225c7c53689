/** The WebAssembly module, the npm package and its command line for Node against the native program. Each family gets the loaded module, its
 *  bytes, the native program, and every sample. Usage: run.mjs [--tessera PROGRAM] [--node NODE] [--sample PART] [--jobs N] [WORD…]
 *    --tessera: the native program    --node: the Node that runs the package's command line
 *    --sample: use only the samples whose names contain PART    --jobs: families at a time
 *    WORD: run only the families whose names contain a word */
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { Tessera } from "../../wasm/tessera.js";
import { report, runFamilies } from "../support/harness.mjs";
import { opener, sourceOf } from "./opening.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url)), samples = path.join(root, "samples/checkpoints"), built = path.join(root, "build/wasm/bin");
const text = { type: "string" }, { values: options, positionals: words } = parseArgs({ options: { tessera: text, node: text, sample: text, jobs: { ...text, default: "2" } }, allowPositionals: true });
const native = path.resolve(options.tessera ?? path.join(root, "build/release/bin/tessera")), node = options.node ?? process.execPath;

/** The directory or file that each golden next to the samples describes. */
const targets = fs.readdirSync(samples).filter((n) => n.endsWith(".expect.json")).map((n) => {
  const expected = JSON.parse(fs.readFileSync(path.join(samples, n), "utf8"));
  return path.join(samples, expected.path ?? n.slice(0, -".expect.json".length));
}).filter((target) => path.basename(target).includes(options.sample ?? ""));

await runFamilies(path.join(root, "tests/wasm"), words, Number(options.jobs), async () => {
  const bytes = fs.readFileSync(path.join(built, "tessera.wasm")), module = await WebAssembly.compile(bytes);
  const writers = fs.readFileSync(path.join(built, "tessera-writers.wasm"));
  const tessera = await Tessera.load(module);
  await tessera.prepare(writers);
  const context = { tessera, bytes, module, writers, native, node, root, samples, targets, hasAllSamples: options.sample === undefined, sourceOf, withOpened: opener(tessera, sourceOf) };
  return [(family) => family(context), () => {}];
});
report();
