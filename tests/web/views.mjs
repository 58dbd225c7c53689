/** The views with real samples: what they show (compared with goldens of their structure), and what can be done in them. */
import fs from "node:fs";
import path from "node:path";
import { PATIENCE, pick, root, rowsOf, samples } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";

const golden = path.join(root, "tests/web/golden");
const isUpdate = process.argv.includes("--update");

async function expectStructure(page, name) {
  const snapshot = async () => `${await page.locator("main").ariaSnapshot()}\n`;
  const file = path.join(golden, `${name}.txt`);
  if (isUpdate) {
    await page.waitForTimeout(1000);
    fs.mkdirSync(golden, { recursive: true });
    fs.writeFileSync(file, await snapshot());
  }
  const want = fs.readFileSync(file, "utf8"), end = Date.now() + PATIENCE;
  let got = await snapshot();
  while (got !== want && Date.now() < end) got = await snapshot(); // rows and documents still have to arrive
  if (got === want) return;
  const [a, b] = [want.split("\n"), got.split("\n")], n = b.findIndex((line, i) => line !== a[i]);
  throw new Error(`structure of ${name} differs in line ${n + 1}: '${a[n]}' became '${b[n]}'`);
}

export const openSample = async (page, name) => {
  await page.getByRole("button", { name: "Tessera", exact: true }).click();
  await page.locator(".samples button", { hasText: name }).first().click();
  await page.locator(".window .row .text").first().waitFor();
};
/** Opens files or a directory in place of what is open. */
export async function open(page, target) {
  await page.getByRole("button", { name: "Tessera", exact: true }).click();
  await pick(page, target);
  await page.locator(".window .row .text").first().waitFor();
}
/** Chooses from the header's menu. */
export async function fromMenu(page, item) {
  await page.getByRole("button", { name: "Menu", exact: true }).click();
  await page.locator(".menu .items").getByRole("button", { name: item }).click();
}
const IN_MENU = ["Would it load?", "Share"];
/** Opens a tab, or a view of the menu. */
export const goTo = (page, view) => IN_MENU.includes(view) ? fromMenu(page, view) : page.getByRole("tab", { name: typeof view === "string" ? view.replace("…", "") : view }).click();
/** What each view shows once it is ready. */
export const READY = { Files: ".treemap", Optimizer: ".view .fine", Problems: "section[aria-label=Problems]", Compare: ".samples button", "Convert…": "section[aria-label=Save] :is(table, .trouble)", "Reshard…": "section[aria-label=Save] :is(table, .trouble), section[aria-label=Reshard] .outcome .trouble", "Would it load?": "section[aria-label='Layout contract']", Names: "section[aria-label=Names] [role=status]", Share: "section[aria-label=Share]" };
/** Shows the exports of Problems or of Compare; those of other views are not hidden. */
export async function showExports(page) {
  const more = page.getByRole("button", { name: "Export", exact: true });
  if (await more.count() && await more.getAttribute("aria-expanded") === "false") await more.click();
}

/** Shows every field of Convert: those of the answer "Choose" and the advanced ones. */
export async function showFields(page) {
  await page.getByRole("radio", { name: "Choose" }).check();
  await page.locator(".advanced").evaluate((details) => { details.open = true; });
}
const choose = (page, name) => page.locator(".window .row", { hasText: name }).first().click();

async function downloadedText(page, button) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: button, exact: true }).click()]);
  return fs.readFileSync(await download.path(), "utf8");
}

const downloaded = async (page, button) => JSON.parse(await downloadedText(page, button));

export async function testViews({ page, url, broken }) {
  await page.goto(url);
  await page.locator(".samples button").first().waitFor();
  await test("start", () => expectStructure(page, "start"));
  await test("entries", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    await expectStructure(page, "entries");
  });
  await test("a tensor with its shard map, values, statistics", async () => {
    await page.getByLabel("Filter").fill("model.block.up.weight");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /\b1 match\b/ }).waitFor();
    await choose(page, "weight");
    await page.getByRole("button", { name: /^Statistics/ }).click();
    await page.locator(".histogram").waitFor();
    await page.locator("table.values").waitFor();
    check(await page.locator(".map .chunk").count() === 4, "there are not 4 chunks");
    await expectStructure(page, "tensor");
  });
  for (const tab of Object.keys(READY)) {
    await test(tab.toLowerCase(), async () => {
      await goTo(page, tab === "Problems" ? /^Problems/ : tab);
      await page.locator(READY[tab]).first().waitFor();
      await expectStructure(page, tab.toLowerCase().replace(/[…?]/g, "").replaceAll(" ", "_"));
    });
  }
  await test("a target with rules, its plan, its command", async () => {
    await goTo(page, "Reshard…");
    await page.getByRole("radio", { name: "A device mesh" }).check();
    await page.getByLabel("Size of mesh dim 1").fill("3");
    await page.getByRole("button", { name: "Add a mesh dim" }).click();
    await page.locator(".plan-figure figcaption", { hasText: "6 ranks" }).waitFor();
    check(/--mesh dp=3,dim1=2 --placements 'shard\(0\),replicate'$/.test(await page.locator(".command code").textContent()), "the command is another");
    await page.getByLabel(/^Rules/).fill("**.bias replicate,shard(1)");
    await page.locator(".trouble", { hasText: "**.bias" }).waitFor();
    await page.getByLabel(/^Rules/).fill("**.bias replicate,replicate");
    await page.locator(".trouble").waitFor({ state: "detached" });
    const plan = await downloaded(page, "Save plan.json");
    check(plan.schema === "tessera.plan/1" && plan.totals.ranks === 6 && plan.target.rules[0].match === "**.bias", "the plan is another");
    const target = await downloaded(page, "Save target.json");
    check(JSON.stringify(target.default) === '["shard(0)","replicate"]', "the target is another");
    await goTo(page, "Files");
    await goTo(page, "Reshard…");
    check(await page.getByLabel("Size of mesh dim 1").inputValue() === "3", "the form was forgotten");
  });
  await test("what an optimizer lacks stands first", async () => {
    await openSample(page, "broken_dcp_hole");
    await goTo(page, "Optimizer");
    await page.locator(".fine", { hasText: "no optimizer state" }).waitFor();
    await openSample(page, "torch_train_state");
    await goTo(page, "Optimizer");
    await page.locator(".fine", { hasText: "3 parameters with 3 states each: all complete" }).waitFor();
  });
  await test("tensors with equal bytes are found", async () => {
    await goTo(page, "Files");
    await page.getByRole("button", { name: /^Look for tensors/ }).click();
    await page.locator('section[aria-label="Duplicates"] li', { hasText: "model.head.weight" }).waitFor();
    await openSample(page, "dcp_tp_fsdp2");
  });
  await test("an object shows its value", async () => {
    await goTo(page, "Contents");
    await page.getByRole("button", { name: /objects$/ }).click();
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "12 matches" }).waitFor();
    await choose(page, "lr");
    check(/0\.\d+|1e-/.test(await page.locator("aside pre").textContent()), "no value");
  });
  await test("a file of the storage view leads to its tensors", async () => {
    await goTo(page, "Files");
    await page.locator("table .link", { hasText: "__1_0.distcp" }).click();
    await page.waitForFunction(() => /match/.test(document.querySelector(".filter [role=status][aria-busy=false]")?.textContent));
    check((await rowsOf(page)).length > 3, "no rows");
  });
  await test("filters count, and errors of the filter are told", async () => {
    await page.getByLabel("Filter").fill("**.weight kind:tensor");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "5 matches" }).waitFor();
    await page.getByLabel("Filter").fill(">12Q");
    await page.locator(".filter .bad", { hasText: "is not a size" }).waitFor();
    await page.getByLabel("Filter").fill("");
  });
  await test("a planted fault is found: findings, entry, gap", async () => {
    await openSample(page, "broken_dcp_hole");
    await goTo(page, /^Problems 1/);
    await page.locator(".findings .link").first().click();
    await page.locator(".map .gap").waitFor();
    await page.locator("aside .finding", { hasText: "layout/hole" }).waitFor();
    check((await downloadedFindings(page)).findings[0].rule === "layout/hole", "the export lacks the finding");
    const sarif = await downloaded(page, "Export SARIF");
    check(sarif.version === "2.1.0" && sarif.runs[0].results[0].ruleId === "layout/hole", "the SARIF export lacks the finding");
    check(/<failure type="layout\/hole">/.test(await downloadedText(page, "Export JUnit")), "the JUnit export lacks the finding");
    check(/^::error file=.*,title=layout\/hole::/.test(await downloadedText(page, "Export GitHub")), "the GitHub export lacks the finding");
  });
  await test("missing and unused files are told", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(samples, "broken_dcp_missing_file"));
    await goTo(page, "Files");
    await page.locator(".view .bad", { hasText: "data file is absent" }).waitFor();
    await page.locator("td", { hasText: ".metadata" }).locator("text=lists the entries").waitFor();
  });
  await test("an overlap is drawn", async () => {
    await openSample(page, "broken_dcp_overlap");
    await goTo(page, /^Problems/);
    await page.locator(".findings .link").first().click();
    await page.locator(".map .twice").waitFor();
  });
  await test("checking every byte finds a flipped one", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(samples, "broken_dcp_byte_flipped"));
    await goTo(page, /^Problems$/);
    await page.getByRole("button", { name: /^Check every byte/ }).click();
    await page.locator(".findings code", { hasText: "zip/crc" }).waitFor();
  });
  await test("two checkpoints of two shardings are the same in values", async () => {
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: "dcp_hsdp" }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values not compared yet" }).waitFor();
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values included" }).waitFor();
    await expectStructure(page, "compared");
    await showExports(page);
    check((await downloaded(page, "Export JSON")).schema === "tessera.diff/1", "the export is not a diff");
  });
  await test("what is assumed of many names is said once", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(samples, "dcp_ddp"));
    await goTo(page, "Names");
    await page.locator("[aria-label='Names and canonical names'] td").first().waitFor();
    const text = await page.locator("section[aria-label=Names]").innerText();
    check(text.split("was assumed to be DistributedDataParallel's").length === 2 && text.includes("would look the same (7 names)"), text);
    check((await page.locator("[aria-label='Names and canonical names'] td:last-child").allTextContents()).join() === Array(7).fill("module").join(), text);
  });
  await test("a checkpoint without entries is said to have none", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(samples, "safetensors_empty"));
    await page.getByText("The checkpoint has no entries.").waitFor();
    await goTo(page, "Names");
    await page.locator("section[aria-label=Names] [role=status]", { hasText: /^There are no names\.$/ }).waitFor();
  });
  await test("no view breaks the page", () => check(broken.length === 0, broken.join("; ")));
}

async function downloadedFindings(page) {
  await goTo(page, /^Problems/);
  await showExports(page);
  return downloaded(page, "Export JSON");
}
