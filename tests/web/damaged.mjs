/** Damaged files: what is lost is said, what is whole is shown and written, as the command with --salvage does. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { pick, root, rowsIn } from "./browser.mjs";
import { holding } from "./current.mjs";
import { chosenFiles, clearChosen, lendPlaces, tessera } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { goTo, open } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

/** Files that torch and safetensors write, cut short, and one with bytes behind its end. */
const MAKE = `import sys, torch
from safetensors.torch import save_file
at = sys.argv[1]
state = {"model": {f"w{i}": torch.arange(2400.0 + 60 * i).reshape(40 + i, 60) + i for i in range(5)}, "step": 1001}
torch.save(state, at + "/whole.pt")
torch.save(state, at + "/legacy.pt", _use_new_zipfile_serialization=False)
for name in ("whole.pt", "legacy.pt"):
    data = open(f"{at}/{name}", "rb").read()
    open(f"{at}/cut_{name}", "wb").write(data[:len(data) * 6 // 10])
save_file({f"layer.{i}.w": torch.full((30, 7 + i), i + 1.0) for i in range(5)}, at + "/whole.safetensors", metadata={"format": "pt"})
data = open(at + "/whole.safetensors", "rb").read()
open(at + "/cut.safetensors", "wb").write(data[:-1500])
open(at + "/long.safetensors", "wb").write(data + b"x" * 100)
`;

/** Whether the tensors of a safetensors file are those of the whole file, as torch and safetensors read both. */
const CHECK = `import sys, torch
from safetensors.torch import load_file
got, whole = load_file(sys.argv[1]), sys.argv[2]
want = load_file(whole) if whole.endswith(".safetensors") else {"model." + n: t for n, t in torch.load(whole, weights_only=True)["model"].items()}
assert got and all(torch.equal(t, want[n]) for n, t in got.items())
print(*sorted(got))
`;

const namesIn = async (page) => (await rowsIn(page, " .text")).allTextContents();
const banner = (page) => page.getByRole("status", { name: "Damaged file" });

async function expectWritten(page, scratch, whole, names) {
  await lendPlaces(page);
  await goTo(page, "Convert…");
  await page.getByRole("radio", { name: "Weights only" }).check();
  await page.locator("section[aria-label=Save] button.primary:enabled").click();
  await page.locator(".written").waitFor();
  const [[name, bytes]] = [...await chosenFiles(page)], file = path.join(scratch, name);
  fs.writeFileSync(file, bytes);
  const p = spawnSync(python, ["-c", CHECK, file, whole], { encoding: "utf8" });
  check(p.status === 0 && p.stdout.trim() === names.join(" "), `${p.stderr.slice(-300)} ${p.stdout} instead of ${names.join(" ")}`);
  const text = await page.locator(".written").textContent();
  await clearChosen(page);
  return text;
}

async function testTorch(page, scratch, name) {
  await test(`${name}: what is whole is offered, shown and written, and what is lost is named`, async () => {
    const file = path.join(scratch, `cut_${name}`), { entries, findings } = JSON.parse(tessera("inspect", file, "--salvage", "--json"));
    const lost = findings.filter((f) => f.rule === "repair/lost").map((f) => f.fqn), tensors = entries.filter((e) => e.kind === "tensor").map((e) => e.fqn).sort();
    check(lost.length > 0 && tensors.length > 1, `${lost} are lost`);
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, file);
    const offer = page.locator("section[aria-label='What is whole'] button");
    await offer.waitFor();
    check((await offer.textContent()).includes(`${tensors.length} tensors`) && (await offer.textContent()).includes(`${lost.length} entries are lost`), await offer.textContent());
    await offer.click();
    await banner(page).waitFor();
    const said = await banner(page).textContent();
    check(lost.every((fqn) => said.includes(fqn)) && said.includes(`${lost.length} entries are lost`), said);
    await page.locator(".window .row .text", { hasText: "step" }).waitFor();
    const rows = await namesIn(page);
    check(tensors.every((fqn) => rows.some((row) => row.endsWith(fqn.replace("model.", "")))) && !rows.some((row) => lost.some((fqn) => row.endsWith(fqn.replace("model.", "")))), rows.join(" "));
    await page.locator(".window .row .text", { hasText: tensors[0].replace("model.", "") }).click(); // the old form stores tensors in an order of its own
    await page.locator("table.values td").first().waitFor();
    const written = await expectWritten(page, scratch, path.join(scratch, name), tensors);
    check(written.includes(`${lost.length} entries of the source whose bytes are lost`), written);
    const command = await page.locator(".command code").last().textContent();
    check(command.includes("--salvage"), command);
    await banner(page).getByRole("button").click();
    await page.locator(".findings code", { hasText: "repair/lost" }).waitFor();
  });
}

async function testSafetensors(page, scratch) {
  await test("a safetensors file that was cut short opens with all names, and what is whole can be opened and written", async () => {
    const file = path.join(scratch, "cut.safetensors"), { entries, findings } = JSON.parse(tessera("inspect", file, "--salvage", "--json"));
    const lost = findings.filter((f) => f.rule === "repair/lost").map((f) => f.fqn), tensors = entries.map((e) => e.fqn).sort();
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, file);
    await banner(page).waitFor();
    check((await banner(page).textContent()).includes(`The values of ${lost.length} tensors are lost`), await banner(page).textContent());
    await banner(page).getByRole("button", { name: "Open what is whole" }).click();
    await page.getByText(`${lost.length} entries are lost: ${lost.join(", ")}`).waitFor();
    const written = await expectWritten(page, scratch, path.join(scratch, "whole.safetensors"), tensors);
    check(written.includes(`${lost.length} entries of the source whose bytes are lost`), written);
  });
  await test("a safetensors file with bytes behind its end is written without them", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(scratch, "long.safetensors"));
    await banner(page).waitFor();
    check(/All tensors are whole/.test(await banner(page).textContent()) && await banner(page).getByRole("button").count() === 0, await banner(page).textContent());
    await expectWritten(page, scratch, path.join(scratch, "whole.safetensors"), [0, 1, 2, 3, 4].map((i) => `layer.${i}.w`));
  });
  await test("a sound file has no banner, and a damaged one leaves the checkpoint that is open", async () => {
    await open(page, path.join(scratch, "whole.pt"));
    check(await banner(page).count() === 0, "a banner");
    await page.evaluate(() => { location.hash = ""; });
    await pick(page, path.join(scratch, "cut_whole.pt"));
    await page.locator("section[aria-label='What is whole'] button").waitFor();
    await page.getByRole("button", { name: "Return to whole.pt" }).click();
    await page.locator(".window .row .text", { hasText: "step" }).waitFor();
  });
}

export async function testDamaged({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-damaged-"));
  const p = spawnSync(python, ["-c", MAKE, scratch], { encoding: "utf8" });
  if (p.status !== 0) return skip("damaged files", `PyTorch is not in .local (${p.error?.message ?? p.stderr.slice(-200)})`);
  try {
    await page.goto(url);
    for (const name of ["whole.pt", "legacy.pt"]) await testTorch(page, scratch, name);
    await testSafetensors(page, scratch);
    await test("the search for what is whole ends with the message that it belongs to", async () => {
      const offer = page.locator("section[aria-label='What is whole'] button"), again = async () => pick(page, path.join(scratch, "cut_whole.pt"));
      await page.getByRole("button", { name: "Tessera", exact: true }).click();
      await holding(page, "describe", again, async () => {
        await page.locator(".job", { hasText: "Looking at cut_whole.pt" }).waitFor();
        await page.getByRole("button", { name: "Dismiss" }).click();
        await page.locator(".job").waitFor({ state: "detached" });
      });
      await again();
      await offer.waitFor();
    });
    await test("damaged files do not break the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true, force: true });
  }
}
