/** Commands that the page offers to copy: run as they are, by the program and through the Python package's parser of options, they give
 *  what the page shows and writes. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { pick, root } from "./browser.mjs";
import { chosenFiles, clearChosen, lendPlaces, native } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { goTo, open, showExports } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

const MAKE = `import sys, torch
from safetensors.torch import save_file
at = sys.argv[1]
a = {"model.embed.weight": torch.arange(48.0).reshape(6, 8), "model.norm.weight": torch.ones(8), "model.same.bias": torch.zeros(3), "optim.step": torch.tensor(7)}
b = {n: t.clone() for n, t in a.items() if n != "optim.step"} | {"model.more.bias": torch.ones(2)}
b["model.embed.weight"][2, 5] += 3.5
b["model.norm.weight"][1] += 0.001
save_file(a, at + "/it's a.safetensors")
save_file(b, at + "/b.safetensors")
`;

/** Runs the text with the package from the source tree, whose library is the built program. */
const RUN = `import json, os, subprocess, sys
from unittest import mock
package, program, text = sys.argv[1:]
library = mock.MagicMock()
library.TesseraError, library.in_python = Exception, lambda message, command: message
def run_command(command, operands, options, **_):
    words = [w for name, value in options for w in ([b"--" + name] if value is None else [b"--" + name, value])]
    p = subprocess.run([program, command, *operands, *words, "--json"], capture_output=True)
    assert p.returncode in (0, 1), p.stderr
    return p.stdout, [], True
library.run_command = run_command
sys.modules["tessera._library"] = library
sys.path.insert(0, package)
names = {}
exec(text, names)
print(json.dumps(names.get("diff", names.get("result"))))
`;

/** Returns what the buttons copy. */
async function copied(page, ...buttons) {
  await page.evaluate(() => { globalThis.copied = []; Object.defineProperty(navigator, "clipboard", { configurable: true, value: { writeText: async (t) => void globalThis.copied.push(t) } }); });
  for (const button of buttons) await button.click();
  return page.evaluate(() => globalThis.copied);
}

function shell(scratch, command) {
  check(command.startsWith("tessera "), command);
  const p = spawnSync("sh", ["-c", `"$0" ${command.slice(8)} --json`, native], { cwd: scratch, encoding: "utf8" });
  check(p.status < 2, `${command}: ${p.stderr}`);
  return JSON.parse(p.stdout);
}

function inPython(scratch, text) {
  const p = spawnSync(python, ["-c", RUN, path.join(root, "native/python"), native, text], { cwd: scratch, encoding: "utf8" });
  check(p.status === 0, `${text}: ${p.stderr.slice(-600)}`);
  return JSON.parse(p.stdout);
}

const same = (a, b, what) => check(JSON.stringify(a) === JSON.stringify(b), `${what}: ${JSON.stringify(a).slice(0, 400)} instead of ${JSON.stringify(b).slice(0, 400)}`);

async function testDiff(page, scratch) {
  const verdict = page.locator(".current[aria-busy=false] .verdict-line"), button = (name) => page.getByRole("button", { name });
  const expectDiff = async () => {
    await showExports(page);
    const [command, text] = await copied(page, button("Copy as command"), button("Copy as Python"));
    const [download] = await Promise.all([page.waitForEvent("download"), button("Export JSON").click()]);
    const shown = JSON.parse(fs.readFileSync(await download.path(), "utf8")), ran = shell(scratch, command);
    for (const key of ["same", "added", "removed", "changed", "summary"]) same(shown[key], ran[key], `${command}: ${key}`);
    same(inPython(scratch, text), ran, text);
    return [command, text];
  };
  await test("a comparison can be copied as a command and as Python", async () => {
    await open(page, path.join(scratch, "it's a.safetensors"));
    await goTo(page, "Compare");
    await pick(page, path.join(scratch, "b.safetensors"));
    await verdict.waitFor();
    await expectDiff();
    await button(/^Values/).click();
    await verdict.filter({ hasText: "2 changed" }).waitFor();
    const [command, text] = await expectDiff();
    check(command === "tessera diff 'it'\\''s a.safetensors' b.safetensors --values" && text === 'import tessera\n\ndiff = tessera.diff("it\'s a.safetensors", "b.safetensors", values=True)\n', `${command} ${text}`);
  });
  await test("so can one with a tolerance, chunks and canonical names", async () => {
    await page.getByLabel("atol").fill("1e-2");
    await page.getByLabel("atol").press("Enter");
    await verdict.filter({ hasText: "1 changed" }).waitFor();
    await button("Sharding").click();
    await button("Canonical names").click();
    await verdict.filter({ hasText: /1 changed.*values included/ }).waitFor(); // they are compared again under canonical names
    const [command, text] = await expectDiff();
    check(command.endsWith("--atol 0.01 --layout --canonical") && text.includes("atol=0.01, layout=True, canonical=True"), `${command} ${text}`);
  });
}

async function testConvert(page, scratch) {
  await test("a conversion can be copied as a command and as Python", async () => {
    await open(page, path.join(scratch, "it's a.safetensors"));
    await lendPlaces(page);
    await goTo(page, "Convert…");
    await page.getByRole("radio", { name: "Choose" }).check();
    await page.getByLabel("Only names that match").fill("model.** optim.**");
    await page.getByLabel("But not").fill("**.bias");
    await page.locator(".advanced").evaluate((details) => { details.open = true; });
    await page.getByLabel("Floating-point tensors become").selectOption("bfloat16");
    await page.getByLabel("Renames").fill("model.=m.");
    await page.locator("section[aria-label=Save] button.primary:enabled").click();
    await page.locator(".written").waitFor();
    const [[name, bytes]] = [...await chosenFiles(page)], file = path.join(scratch, name);
    const [command, text] = await copied(page, page.getByRole("button", { name: "Copy command" }), page.getByRole("button", { name: "Copy as Python" }));
    const ran = shell(scratch, command);
    check(fs.readFileSync(file).equals(bytes), `${command} writes other bytes`);
    fs.rmSync(file);
    const called = inPython(scratch, text);
    check(fs.readFileSync(file).equals(bytes), `${text} writes other bytes`);
    const timeless = ({ summary: { seconds: _, ...summary }, ...document }) => ({ ...document, summary });
    same(timeless(called), timeless(ran), text);
    check(ran.summary.tensors === 3 && text.includes('include=["model.**", "optim.**"], exclude=["**.bias"], rename=["model.=m."], dtype="bfloat16"'), text);
    await clearChosen(page);
  });
}

export async function testCommands({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-commands-"));
  const p = spawnSync(python, ["-c", MAKE, scratch], { encoding: "utf8" });
  if (p.status !== 0) return skip("copied commands", `PyTorch is not in .local (${p.error?.message ?? p.stderr.slice(-200)})`);
  try {
    await page.goto(url);
    await testDiff(page, scratch);
    await testConvert(page, scratch);
    await test("copied commands do not break the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true, force: true });
  }
}
