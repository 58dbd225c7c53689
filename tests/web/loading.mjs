/** "Would it load?": for module trees of real PyTorch modules, layouts, indexes and checkpoints, the page reports what
 *  `tessera validate --against` reports. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { pick, root, samples } from "./browser.mjs";
import { native, tessera } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { goTo, open as openFiles } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

/** A checkpoint of a model under "model.", the tree of the model, and a checkpoint of a model that has grown. */
const MAKE = `import json, sys, torch
sys.path.insert(0, sys.argv[1] + "/samples")
from describe_modules import modules_document
from torch import nn
at = sys.argv[2]
model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
torch.save({"model": model.state_dict(), "epoch": 4}, at + "/model.pt")
json.dump(modules_document(model), open(at + "/modules.json", "w"))
json.dump(modules_document(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(7), nn.Linear(7, 3), nn.Linear(3, 2))), open(at + "/grown.json", "w"))
json.dump(sorted(model.state_dict()), open(at + "/names.json", "w"))
`;

async function open(page, target) {
  await openFiles(page, target);
  await goTo(page, "Would it load?");
}

const view = (page) => page.locator("section[aria-label='Would it load?']");
const says = (page, text) => view(page).locator(".current > :not([inert]) > p[role=status]", { hasText: text }).waitFor();
const messages = (page) => view(page).locator("section ul.names li").evaluateAll((l) => l.map((e) => e.firstChild.textContent).sort());

function expectedOf(target, ...options) {
  const p = spawnSync(native, ["validate", target, "--format", "json", ...options], { encoding: "utf8" });
  check(p.status === 0 || p.status === 1, p.stderr);
  // The page proposes renames in place of the note about a prefix.
  return JSON.parse(p.stdout).findings.filter((f) => f.rule !== "layout/prefix").map((f) => f.message).sort();
}

async function testModel(page, made) {
  const target = path.join(made, "model.pt");
  await open(page, target);
  await test("a module tree: the missing and unexpected names of the command line, with a rename that fits", async () => {
    await pick(page, path.join(made, "modules.json"));
    await says(page, "It would not load as it is");
    const want = expectedOf(target, "--against", path.join(made, "modules.json"));
    check(JSON.stringify(await messages(page)) === JSON.stringify(want), `${JSON.stringify(await messages(page))} instead of ${JSON.stringify(want)}`);
    const rows = await page.locator("[aria-label=Renames] tbody tr").evaluateAll((l) => l.map((r) => [...r.children].slice(0, 2).map((c) => c.textContent)));
    check(JSON.stringify(rows) === JSON.stringify([["model.=", "9 of 9"]]), JSON.stringify(rows));
  });
  await test("with the prefix taken off, only the epoch is left out and it would load", async () => {
    await view(page).getByLabel(/^Only names with this prefix/).fill("model.");
    await says(page, "It would load");
    check(expectedOf(target, "--against", path.join(made, "modules.json"), "--prefix", "model.").length === 0, "the command line says otherwise");
  });
  await test("a model that has grown: what is missing and what has another shape", async () => {
    await page.getByRole("button", { name: "Check against something else" }).click();
    await pick(page, path.join(made, "grown.json"));
    await view(page).getByLabel(/^Only names with this prefix/).fill("model.");
    await says(page, "2 missing, 2 different");
    const want = expectedOf(target, "--against", path.join(made, "grown.json"), "--prefix", "model.");
    check(JSON.stringify(await messages(page)) === JSON.stringify(want), `${JSON.stringify(await messages(page))} instead of ${JSON.stringify(want)}`);
  });
  await test("a list of names, and unexpected entries that are to be ignored", async () => {
    await page.getByRole("button", { name: "Check against something else" }).click();
    await pick(page, path.join(made, "names.json"));
    await says(page, "It would not load as it is: 9 missing, 10 unexpected");
    await view(page).getByLabel("Ignore unexpected entries").check();
    await says(page, "It would not load as it is: 9 missing.");
  });
  await test("the buttons of suggested renames are in sight at every width", async () => {
    await view(page).getByLabel("Ignore unexpected entries").uncheck();
    const buttons = page.locator("[aria-label='Suggested renames'] td button");
    await buttons.first().waitFor();
    for (const width of [1440, 1024, 390]) {
      await page.setViewportSize({ width, height: 800 });
      const cut = await buttons.evaluateAll((list) => list.filter((e) => { const box = e.getBoundingClientRect(), frame = e.closest(".scroll").getBoundingClientRect(); return box.right > Math.min(frame.right, innerWidth) + 1 || e.scrollWidth > e.clientWidth + 1; }).map((e) => e.textContent));
      check(cut.length === 0 && await buttons.count() >= 2, `${width} px: ${cut.join(", ")}`);
    }
    await page.setViewportSize({ width: 1280, height: 800 });
  });
  await test("a suggested rename goes into the conversion, whose result would load", async () => {
    await page.getByRole("button", { name: "Convert with model.=" }).click();
    check(await page.getByLabel("Renames, one per line").inputValue() === "model.=", "the rename is not there");
    const to = path.join(made, "renamed.pt");
    tessera("convert", target, to, "--to", "torch", "--rename", "model.=");
    await open(page, to);
    await pick(page, path.join(made, "modules.json"));
    await view(page).getByLabel("Ignore unexpected entries").check();
    await says(page, "It would load");
  });
}

async function testOthers(page, scratch) {
  await test("another checkpoint, opened from its directory", async () => {
    await open(page, path.join(samples, "dcp_fsdp2"));
    await pick(page, path.join(samples, "dcp_hsdp"));
    await says(page, "It would");
    const want = expectedOf(path.join(samples, "dcp_fsdp2"), "--against", path.join(samples, "dcp_hsdp"));
    check(JSON.stringify(await messages(page)) === JSON.stringify(want), `${JSON.stringify(await messages(page))} instead of ${JSON.stringify(want)}`);
  });
  await test("of several checkpoints one must be dropped, and their names are said", async () => {
    await page.getByRole("button", { name: "Check against something else" }).click();
    const both = path.join(scratch, "both");
    for (const name of ["dcp_fsdp2", "dcp_hsdp"]) fs.cpSync(path.join(samples, name), path.join(both, name), { recursive: true });
    await pick(page, both);
    await view(page).locator(".trouble", { hasText: "'both' holds 2 checkpoints (both/dcp_fsdp2, both/dcp_hsdp); drop one of them" }).waitFor();
    await pick(page, path.join(samples, "dcp_hsdp"));
    await says(page, "It would");
  });
  await test("what is not a description is refused where it was dropped, with the core's message", async () => {
    await page.getByRole("button", { name: "Check against something else" }).click();
    const odd = path.join(scratch, "odd.json");
    fs.writeFileSync(odd, '{"schema": "something/1"}');
    await pick(page, odd);
    await view(page).locator(".trouble").waitFor();
    const p = spawnSync(native, ["validate", path.join(samples, "dcp_fsdp2"), "--against", odd], { encoding: "utf8" });
    const said = await view(page).locator(".trouble strong").textContent();
    check(p.stderr.includes(said.replace(/^.*?: /, "")), `the page says '${said}', the command line '${p.stderr.trim()}'`);
  });
  await test("the exported layout is the command line's contract", async () => {
    const exported = async (button) => {
      const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: button, exact: true }).click()]);
      return JSON.parse(fs.readFileSync(await download.path(), "utf8"));
    };
    for (const [button, options] of [["Export layout.json", ["--no-chunks"]], ["Export with sharding", []]]) {
      const want = JSON.parse(tessera("layout", path.join(samples, "dcp_fsdp2"), ...options)), got = await exported(button);
      check(JSON.stringify(got) === JSON.stringify(want), `${button}: ${JSON.stringify(got).slice(0, 300)}`);
    }
  });
}

export async function testLoading({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-loading-"));
  try {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    if (!fs.existsSync(python)) skip("module trees of PyTorch", "there is no .local/venv");
    else {
      const p = spawnSync(python, ["-c", MAKE, root, scratch], { encoding: "utf8" });
      check(p.status === 0, p.stderr);
      await testModel(page, scratch);
    }
    await testOthers(page, scratch);
    await test("no check breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
