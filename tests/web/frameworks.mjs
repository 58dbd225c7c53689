/** DeepSpeed's and Megatron's directories in the page: the parts, the findings and the written files are those of the
 *  command line. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { root } from "./browser.mjs";
import { chosenFiles, clearChosen, expectSame, filesBelow, lendPlaces, tessera } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { goTo, open, showFields } from "./views.mjs";

/** What is opened, and the form fields and options for its conversion. */
const CASES = [
  ["deepspeed/zero2_moe", { Form: "safetensors", "Only names that match": "model.**" }, ["--to", "safetensors", "--objects", "sidecar", "--include", "model.**"], "one"],
  ["deepspeed/zero3_bf16", { Form: "dcp" }, ["--to", "dcp"], "one"],
  ["megatron/layers", { Form: "torch" }, ["--to", "torch"], "one.pt"],
];

async function testParts(page, target, name) {
  await test(`${name} lists the parts that inspect lists`, async () => {
    await open(page, target);
    const { parts } = JSON.parse(tessera("inspect", target, "--json")).summary;
    check(parts.length > 0, "it has no parts");
    for (const { name: part } of parts) await page.locator(".chip-line").getByRole("button", { name: part, exact: true }).waitFor();
  });
}

async function testFindings(page, target, name) {
  await test(`${name} has the findings of validate --deep`, async () => {
    await open(page, target);
    const { findings } = JSON.parse(tessera("validate", target, "--deep", "--json"));
    await goTo(page, /^Problems/);
    await page.getByRole("button", { name: /^Check every byte/ }).click();
    await page.locator(".view", { hasText: /Every byte was checked/ }).waitFor();
    const text = await page.locator(".view").innerText();
    for (const rule of new Set(findings.map((f) => f.rule))) check(text.includes(rule), `${rule} is not shown: ${text}`);
    const tab = await page.getByRole("tab", { name: /^Problems/ }).textContent(), problems = findings.filter((f) => f.level !== "note").length;
    check(tab === (problems ? `Problems ${problems}` : "Problems"), `${tab}, and validate lists ${problems} problems`);
  });
}

async function testConversion(page, scratch, target, [name, fields, options, output]) {
  await test(`${name} is written as tessera convert ${options.join(" ")} writes it`, async () => {
    await clearChosen(page);
    await lendPlaces(page);
    await open(page, target);
    await goTo(page, "Convert…");
    await showFields(page);
    for (const [label, value] of Object.entries(fields)) {
      const field = page.locator("form.questions").getByLabel(label, { exact: true });
      if (await field.evaluate((e) => e.tagName) === "SELECT") await field.selectOption(value);
      else await field.fill(value);
    }
    await page.locator("section[aria-label=Save]").getByLabel("Name").fill("one");
    await page.getByRole("button", { name: "Save…", exact: true }).and(page.locator(":enabled")).click();
    await page.locator(".written").waitFor();
    const at = fs.mkdtempSync(path.join(scratch, "native-"));
    tessera("convert", target, path.join(at, output), ...options);
    expectSame(await chosenFiles(page), filesBelow(at));
  });
}

export async function testFrameworks({ page, url }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-frameworks-"));
  try {
    await page.goto(url);
    for (const one of CASES) {
      const target = path.join(root, "tests/golden", one[0]);
      await testParts(page, target, one[0]);
      await testFindings(page, target, one[0]);
      await testConversion(page, scratch, target, one);
    }
  } finally {
    fs.rmSync(scratch, { recursive: true, force: true });
  }
}
