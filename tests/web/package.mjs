/** The npm package in a separate project: strict types, and the README's example for a worker, built by Vite and run in the
 *  browser. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { root, samples, serve } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";

const tool = (name) => path.join(root, "web/node_modules/.bin", name);
const run = (project, program, ...args) => {
  const p = spawnSync(program, args, { cwd: project, encoding: "utf8" });
  check(p.error === undefined && p.status === 0, `${path.basename(program)}: ${p.error ?? ""}${p.stdout}${p.stderr}`);
};

const USE = `import { Tessera, TesseraError, type Checkpoint, type EntryRow, type Level, type Row, type SourceFile } from "tessera-checkpoint";
import { filesOf, load } from "tessera-checkpoint/node";

const tessera: Tessera = await load();
const file: SourceFile = { name: "a", size: 1, read: (offset: number, into: Uint8Array): void => { into.fill(offset); } };
const source = filesOf("x"), checkpoint: Checkpoint = tessera.open([file, ...source.files], source.options);
const outline = checkpoint.outline({ objectsOnly: true }), rows: Row[] = outline.rows(0, 3);
const shapes: (readonly number[])[] = rows.filter((r): r is EntryRow => r.entry !== undefined).map((r) => r.shape);
const level: Level | undefined = rows[0]?.level, at: number | undefined = checkpoint.find("a");
const more: boolean = checkpoint.diff(checkpoint, { layout: true }).step(), text: string = checkpoint.document("entry", { entry: at ?? 0 });
try { outline.act(0, "open-all"); } catch (e) { if (e instanceof TesseraError) { const s: string = e.status, p: number | undefined = e.position; void [s, p]; } }
const names: readonly string[] = tessera.canonicalize({ schema: "tessera.modules/1" }, ["w"]).names.flatMap((n) => n.fqns);
const full: Checkpoint = checkpoint.optimizer("unshard", { flatParams: "{}", sharded: true, rank: undefined }), same: boolean = full.diff(checkpoint, { canonical: true, atol: 1e-6 }).result().same;
for (const e of checkpoint.inspect().entries) { const shape: readonly number[] = e.kind === "tensor" && !e.per_rank ? e.shape : e.shape ?? []; void [shape, e.dtype, e.value, e.hash?.digest]; }
void [names, same, full.warnings.length, checkpoint.canonicalize({ prefix: "model." }).collisions, tessera.prepare(new Uint8Array(8))];
void [shapes, level, more, text, checkpoint.plan({ target: "{}" }), checkpoint.tally(0).step(1), checkpoint.twins().document(), tessera.ruleHelp("x")];
`;
const MISUSE = [
  'import { Tessera } from "tessera-checkpoint";\nnew Tessera();',
  'import { load } from "tessera-checkpoint/node";\n(await load()).open([]).optimizer("flaten");',
  'import { load } from "tessera-checkpoint/node";\n(await load()).open([]).optimizer("shard", { flat_params: "" });',
];

function expectTypes(project, resolution) {
  const options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom", "--exactOptionalPropertyTypes", ...resolution];
  fs.writeFileSync(path.join(project, "use.ts"), USE);
  run(project, tool("tsc"), ...options, "use.ts");
  MISUSE.forEach((text, i) => fs.writeFileSync(path.join(project, `misuse${i}.ts`), text));
  const p = spawnSync(tool("tsc"), [...options, ...MISUSE.map((_, i) => `misuse${i}.ts`)], { cwd: project, encoding: "utf8" });
  MISUSE.forEach((text, i) => check(p.stdout.includes(`misuse${i}.ts(2`), `${text} was taken: ${p.stdout}`));
}

function workerExample() {
  const code = /```js\n(import \{ Tessera \}[^`]*)```/.exec(fs.readFileSync(path.join(root, "wasm/README.md"), "utf8"))?.[1];
  check(code?.includes("FileReaderSync"), "the README has another example for a worker");
  return code;
}

async function expectWorker(page, project) {
  fs.writeFileSync(path.join(project, "worker.js"), workerExample());
  fs.writeFileSync(path.join(project, "index.html"), '<!doctype html><input type="file" multiple><pre></pre><script type="module" src="/page.js"></script>');
  fs.writeFileSync(path.join(project, "page.js"), `import address from "./worker.js?worker&url";
const policy = trustedTypes.createPolicy("tessera", { createScriptURL: (url) => url }); // web/serve asks for one
const input = document.querySelector("input"), out = document.querySelector("pre"), worker = new Worker(policy.createScriptURL(address), { type: "module" });
worker.onmessage = ({ data }) => { if (data === "ready") input.onchange = () => worker.postMessage([...input.files]); else out.textContent = JSON.stringify(data); out.dataset.ready = "yes"; };
`);
  fs.writeFileSync(path.join(project, "vite.config.js"), 'export default { worker: { format: "es" }, build: { target: "es2022" } };');
  run(project, tool("vite"), "build", "--logLevel", "warn");
  const served = await serve(path.join(project, "dist"));
  try {
    await page.goto(served.url);
    await page.locator('pre[data-ready="yes"]').waitFor({ state: "attached" });
    const directory = path.join(samples, "broken_dcp_hole");
    await page.locator("input").setInputFiles(fs.readdirSync(directory).map((n) => path.join(directory, n)));
    await page.locator("pre", { hasText: "layout/hole" }).waitFor();
  } finally {
    served.stop();
  }
}

export async function testPackage({ page }) {
  const project = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-package-"));
  try {
    await test("the package installs", () => run(project, path.join(root, "tests/wasm/package.sh"), project));
    await test("its types hold under Node's resolution", () => expectTypes(project, ["--module", "nodenext"]));
    await test("its types hold under a bundler's resolution", () => expectTypes(project, ["--module", "esnext", "--moduleResolution", "bundler"]));
    await test("the README's worker runs in a browser, built by Vite", () => expectWorker(page, project));
  } finally {
    fs.rmSync(project, { recursive: true });
  }
}
