/** The fields of forms: what is typed stays as it is, and what is wrong is said where it was chosen. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { pick, root, samples } from "./browser.mjs";
import { check, test } from "./harness.mjs";
import { goTo } from "./views.mjs";

const forms = (page) => page.locator("section[aria-label='Another form']");

async function open(page, target, view) {
  await page.getByRole("button", { name: "Tessera", exact: true }).click();
  await pick(page, target);
  await page.locator(".window .row .text").first().waitFor();
  await goTo(page, view);
}

async function testTyping(page) {
  await test("the size of a mesh dim can be typed over", async () => {
    await open(page, path.join(samples, "dcp_fsdp2"), "Reshard…");
    const size = page.getByLabel("Size of mesh dim 1");
    await size.click();
    for (const key of ["End", "Backspace", "5"]) await page.keyboard.press(key);
    check(await size.inputValue() === "5", `${await size.inputValue()} instead of 5`);
    await page.locator("[aria-label=Ranks] tbody tr:nth-child(5)").waitFor();
    await page.keyboard.press("Backspace");
    await page.keyboard.press("Tab");
    check(await size.inputValue() === "5", `what is not a size became ${await size.inputValue()}`);
  });
  await test("what was chosen for an optimizer's form stays, and does not reach another checkpoint", async () => {
    await open(page, path.join(samples, "torch_train_state"), "Optimizer");
    const chosen = async () => `${await forms(page).getByLabel("Form").inputValue()} '${await forms(page).getByLabel("The optimizer's key").inputValue()}'`;
    await forms(page).getByLabel("Form").selectOption("unflatten");
    await forms(page).getByLabel("The optimizer's key").fill("optimizer");
    await goTo(page, "Files");
    await goTo(page, "Optimizer");
    await forms(page).waitFor();
    check(await chosen() === "unflatten 'optimizer'", await chosen());
    await open(page, path.join(samples, "torch_train_state"), "Optimizer");
    await forms(page).waitFor();
    check(await chosen() === "flatten ''", await chosen());
  });
  await test("an optimizer in a form that an action does not read is not called damaged", async () => {
    await open(page, path.join(root, "tests/golden/deepspeed/zero1_elastic"), "Optimizer");
    const trouble = forms(page).locator(".trouble").first();
    await trouble.waitFor();
    check(!/damaged/.test(await trouble.textContent()), await trouble.textContent());
  });
}

async function testDocuments(page, scratch) {
  const choose = (file) => page.locator("[role=group][aria-label=Map] input[type=file]").setInputFiles(file);
  const trouble = page.locator("[role=group][aria-label=Map] .trouble"), text = path.join(scratch, "notes.json"), none = path.join(scratch, "none.json");
  await test("a file that is not JSON is refused where it was chosen, and is not taken for the name of a map", async () => {
    fs.writeFileSync(text, "meta-llama");
    fs.writeFileSync(none, "7");
    await open(page, path.join(samples, "dcp_fsdp2"), "Names");
    await choose(text);
    await trouble.filter({ hasText: "'notes.json' is not JSON" }).waitFor();
    await choose(none);
    await trouble.filter({ hasText: "'none.json' is not a JSON object" }).waitFor();
    check(await page.getByText("names are canonical already").isVisible(), "the names were lost");
  });
  await test("a file that cannot be read is refused where it was chosen", async () => {
    await page.evaluate(() => {
      const { text: before } = File.prototype;
      File.prototype.text = async () => { File.prototype.text = before; throw new DOMException("it was removed", "NotFoundError"); };
    });
    await choose(text);
    await trouble.filter({ hasText: "'notes.json' cannot be read (it was removed); choose it again" }).waitFor();
    fs.writeFileSync(text, JSON.stringify({ schema: "tessera.map/1", rules: [{ from: ["{rest...}"], to: ["own.{rest...}"] }] }));
    await choose(text);
    await page.locator("td", { hasText: "own.model" }).first().waitFor();
    check(await trouble.count() === 0, "the refusal stays");
  });
}

export async function testFields({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-fields-"));
  try {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await testTyping(page);
    await testDocuments(page, scratch);
    await test("no field breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
