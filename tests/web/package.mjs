/** The npm package in a separate project: strict types, and the README's example for a worker, built by Vite and run in the
 *  browser. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { root, samples, serve } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";
import { everything, expectMembers, mistakes } from "./package_types.mjs";

const tool = (name) => path.join(root, "web/node_modules/.bin", name);
const run = (project, program, ...args) => {
  const p = spawnSync(program, args, { cwd: project, encoding: "utf8" });
  check(p.error === undefined && p.status === 0, `${path.basename(program)}: ${p.error ?? ""}${p.stdout}${p.stderr}`);
};

function expectTypes(project, resolution, module = "use.ts") {
  const options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom", "--exactOptionalPropertyTypes", ...resolution], { text, first, wrong } = mistakes();
  fs.writeFileSync(path.join(project, module), everything());
  run(project, tool("tsc"), ...options, module);
  fs.writeFileSync(path.join(project, "misuse.ts"), text);
  const p = spawnSync(tool("tsc"), [...options, "misuse.ts"], { cwd: project, encoding: "utf8" });
  wrong.forEach((line, i) => check(p.stdout.includes(`misuse.ts(${first + i},`), `${line} was taken: ${p.stdout}`));
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
    await test("its classes have the members that their types state", expectMembers);
    await test("its types hold under Node's resolution", () => expectTypes(project, ["--module", "nodenext"]));
    await test("its types hold under the resolution of Node 16, in a module of a CommonJS project", () => expectTypes(project, ["--module", "node16"], "use.mts"));
    await test("its types hold under a bundler's resolution", () => expectTypes(project, ["--module", "esnext", "--moduleResolution", "bundler"]));
    await test("the README's worker runs in a browser, built by Vite", () => expectWorker(page, project));
  } finally {
    fs.rmSync(project, { recursive: true });
  }
}
