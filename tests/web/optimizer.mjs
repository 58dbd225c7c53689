/** Optimizer state in another form: the preview and the saved file are what `tessera optim` writes. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { root, samples } from "./browser.mjs";
import { chosenFiles, clearChosen, lendPlaces, tessera } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { goTo, open as openFiles } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");
const forms = (page) => page.locator("section[aria-label='Another form']");

/** A file of a training script, whose optimizer uses ids, and the module tree of its model. */
const MAKE = `import json, sys, torch
sys.path.insert(0, sys.argv[1] + "/samples")
from describe_modules import modules_document
from torch import nn
at = sys.argv[2]
model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
optimizer = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.25}, {"params": model[1].parameters(), "lr": 0.5}])
model(torch.arange(10.0).reshape(2, 5)).sum().backward()
optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, at + "/train.pt")
json.dump({**modules_document(model), "groups": [["0.weight", "0.bias"], ["1.weight", "1.bias"]]}, open(at + "/modules.json", "w"))
`;

async function open(page, target) {
  await openFiles(page, target);
  await goTo(page, "Optimizer");
  await forms(page).waitFor();
}

async function expectForm(page, target, action, { scratch, modules }) {
  await clearChosen(page);
  await lendPlaces(page);
  await open(page, target);
  if (modules) {
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Choose the module tree…" }).click()]);
    await chooser.setFiles(modules);
  }
  await forms(page).getByLabel("Form").selectOption(action);
  const to = path.join(scratch, `${path.basename(target)}-${action}.pt`);
  tessera("optim", action, target, to, ...(modules ? ["--modules", modules] : []));
  const want = JSON.parse(tessera("inspect", to, "--json")).entries.map((e) => e.fqn).sort();
  await forms(page).locator("[role=status]", { hasText: `${want.length} entries in the result` }).waitFor();
  await page.waitForFunction((last) => [...document.querySelectorAll("[aria-label='Entries of the result'] tbody tr")].some((r) => r.textContent.includes(last)), want.at(-1));
  const got = await forms(page).locator("[aria-label='Entries of the result'] tbody tr").evaluateAll((l) => l.map((r) => r.firstChild.textContent).sort());
  check(JSON.stringify(got) === JSON.stringify(want), `${JSON.stringify(got)} instead of ${JSON.stringify(want)}`);
  await forms(page).getByLabel("Name").fill("one");
  await forms(page).getByRole("button", { name: "Save…", exact: true }).click();
  await forms(page).locator(".written").waitFor();
  const bytes = (await chosenFiles(page)).get("one.pt");
  check(bytes?.equals(fs.readFileSync(to)), `the saved file has ${bytes?.length} bytes, the command line's ${fs.statSync(to).size}, or other ones`);
}

export async function testOptimizer({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-optimizer-"));
  try {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await test("dcp_fsdp2: flattened as tessera optim flatten writes it", () => expectForm(page, path.join(samples, "dcp_fsdp2"), "flatten", { scratch }));
    await test("dcp_fsdp2_flat_optim: unflattened as tessera optim unflatten writes it", () => expectForm(page, path.join(samples, "dcp_fsdp2_flat_optim"), "unflatten", { scratch }));
    await test("names for ids without a module tree are refused, and the error names the field", async () => {
      await open(page, path.join(samples, "torch_train_state"));
      await forms(page).getByLabel("Form").selectOption("to-fqn");
      await forms(page).locator(".trouble", { hasText: "needs “Choose the module tree”" }).waitFor();
    });
    if (fs.existsSync(python)) {
      const p = spawnSync(python, ["-c", MAKE, root, scratch], { encoding: "utf8" });
      check(p.status === 0, p.stderr);
      await test("names for ids, from the module tree", () => expectForm(page, path.join(scratch, "train.pt"), "to-fqn", { scratch, modules: path.join(scratch, "modules.json") }));
    } else skip("names for ids", "there is no .local/venv");
    await test("no form breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
