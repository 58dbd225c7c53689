/** While something is being computed, nothing older is stated as its result. Requests to the worker are held back, so no test depends on
 *  speed. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { native } from "./files.mjs";
import { ENTRIES, pick, samples } from "./browser.mjs";
import { spawnSync } from "node:child_process";
import { check, test } from "../support/harness.mjs";
import { goTo, openSample, showExports } from "./views.mjs";

/** Holds back requests of this kind while `body` asks for one. `body` must lead to one. */
export async function holding(page, kind, ask, whileHeld) {
  await page.evaluate((of) => {
    const post = Worker.prototype.postMessage, held = [];
    Worker.prototype.postMessage = function (message, ...rest) {
      if (message.kind === of) held.push(() => post.call(this, message, ...rest));
      else post.call(this, message, ...rest);
    };
    globalThis.isHeld = () => held.length > 0;
    globalThis.release = () => { Worker.prototype.postMessage = post; held.forEach((send) => send()); };
  }, kind);
  await ask();
  await page.waitForFunction(() => globalThis.isHeld());
  await whileHeld();
  await page.evaluate(() => globalThis.release());
}

const json = (...args) => JSON.parse(spawnSync(native, [...args, "--json"], { encoding: "utf8" }).stdout);

/** What is in `box` is marked as older, and says what is waited for. */
async function expectOlder(box, waiting) {
  await box.locator(".waiting", { hasText: waiting }).waitFor();
  check(await box.getAttribute("aria-busy") === "true" && await box.locator(":scope > [inert]").count() === 1, "what is older can be used");
}

async function testForms(page) {
  await test("what Convert would write is not that of the answers before", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    await goTo(page, "Convert…");
    const box = page.locator("section[aria-label=Save] .current"), before = "dcp_tp_fsdp2.safetensors.objects.json";
    await box.locator("table", { hasText: before }).waitFor();
    await holding(page, "previewWriting", () => page.getByRole("radio", { name: "Weights only" }).check(), async () => {
      await expectOlder(box, "Deciding what to write …");
      check(await page.getByRole("button", { name: "Save…" }).isDisabled(), "it could be saved");
    });
    await page.locator("section[aria-label=Save] .current:not([aria-busy=true]) p", { hasText: "of tensors; 1 file." }).waitFor();
    check(await page.locator(".current [inert], .waiting").count() === 0 && !(await box.textContent()).includes(before), await box.textContent());
  });
  await test("a plan is not that of the ranks before, and names the mesh that it is for", async () => {
    await goTo(page, "Reshard…");
    const box = page.locator(".outcome > .current"), meshes = () => box.locator("[aria-label=Ranks] tbody td:nth-child(2)").allTextContents();
    await box.locator("figcaption", { hasText: "Each of 2 ranks" }).waitFor();
    await holding(page, "plan", () => page.getByRole("spinbutton", { name: "Ranks" }).fill("4"), async () => {
      await expectOlder(box, "Planning …");
      check(await page.getByRole("button", { name: "Save plan.json" }).getAttribute("aria-disabled") === "true", "the plan before could be saved");
    });
    await box.locator("figcaption", { hasText: "4 ranks" }).waitFor();
    await page.getByRole("radio", { name: "A device mesh" }).check();
    await holding(page, "plan", () => page.getByRole("button", { name: "Add a mesh dim" }).click(), async () => {
      await expectOlder(box, "Planning …");
      check((await meshes()).join() === "dp=0,dp=1,dp=2,dp=3", `the ranks of the plan before have the coordinates ${(await meshes()).join("; ")}`);
    });
    await box.locator("figcaption", { hasText: "8 ranks" }).waitFor();
    check((await meshes()).at(-1) === "dp=3, dim1=1", (await meshes()).join("; "));
    await page.getByRole("radio", { name: "A number of ranks" }).check();
    await box.locator("figcaption", { hasText: "4 ranks" }).waitFor();
    check((await meshes()).join() === "dp=0,dp=1,dp=2,dp=3", `a dim that is not asked for is named: ${(await meshes()).join("; ")}`);
  });
  await test("the optimizer's entries are not those of the form before", async () => {
    await goTo(page, "Optimizer");
    const box = page.locator("section[aria-label='Another form'] > .current");
    await box.locator("td", { hasText: "state.block.up.weight.exp_avg_sq" }).waitFor();
    await holding(page, "optimizerPreview", () => page.getByLabel("Form", { exact: true }).selectOption("unflatten"), () => expectOlder(box, "Changing the form …"));
    await page.locator("section[aria-label='Another form'] > .current:not([aria-busy=true])").waitFor();
    check(await box.locator("td", { hasText: "state.block.up.weight.exp_avg_sq" }).count() === 0 && await box.getByRole("alert").count() === 1, await box.textContent());
  });
  await test("whether it would load is not stated of the prefix before", async () => {
    await goTo(page, "Would it load?");
    await page.locator(".samples button", { hasText: "dcp_hsdp" }).click();
    const box = page.locator("section[aria-label='Would it load?'] > .current"), status = () => box.locator("[inert=false] [role=status], :scope > :not([inert]) [role=status]").first().textContent();
    await box.locator("[role=status]").first().waitFor();
    const before = await status();
    await holding(page, "checkLoad", () => page.getByLabel("Only names with this prefix").fill("model."), () => expectOlder(box, "Checking whether it would load …"));
    await page.locator("section[aria-label='Would it load?'] > .current:not([aria-busy=true])").waitFor();
    check(await status() !== before, `with a prefix: ${before}`);
  });
}

const fact = (page, name) => page.locator("aside .facts div", { has: page.locator("dt", { hasText: name }) }).locator("dd").first().textContent();

async function testComparison(page) {
  const comparison = page.locator("section[aria-label=Comparison]"), box = comparison.locator(".compared > .current"), button = (name) => page.getByRole("button", { name });
  const compare = async (a, b) => {
    await openSample(page, a);
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: b }).click();
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
  };
  await test("a verdict is not that of the toggles before, and is not exported", async () => {
    await compare("torch_ranks_tp_fsdp2", "dcp_tp_fsdp2");
    await showExports(page);
    await holding(page, "diff", () => button("Sharding").click(), async () => {
      await expectOlder(box, "Comparing …");
      check(await comparison.getAttribute("aria-busy") === "true" && await button("Export JSON").getAttribute("aria-disabled") === "true", "the differences before could be exported");
    });
    await page.locator("section[aria-label=Comparison]:not([aria-busy=true])").waitFor();
    const { changed } = json("diff", path.join(samples, "torch_ranks_tp_fsdp2"), path.join(samples, "dcp_tp_fsdp2"), "--layout"), text = await box.textContent();
    check(changed.length === 0 ? !/changed/.test(text) : text.includes(`${changed.length} changed`), `${changed.length}: ${text}`);
  });
  await test("a filter that is typed while new differences are listed stays", async () => {
    const status = page.locator(".filter [role=status][aria-busy=false]");
    await page.getByLabel("Filter").fill("bias");
    await status.filter({ hasText: "match" }).waitFor();
    await holding(page, "showDiff", () => button("Canonical names").click(), () => page.getByLabel("Filter").fill("weight"));
    await page.locator("section[aria-label=Comparison]:not([aria-busy=true])").waitFor();
    await page.locator(".window .row", { hasText: "weight" }).first().waitFor();
    check(await page.getByLabel("Filter").inputValue() === "weight", `the filter became ${await page.getByLabel("Filter").inputValue()}`);
    check(!(await page.locator(".window").textContent()).includes("bias"), "the list is not that of the filter");
    await button("Canonical names").click();
    await page.locator("section[aria-label=Comparison]:not([aria-busy=true])").waitFor();
    await page.getByLabel("Filter").fill("");
  });
  await test("the chosen entry shows the differences that the list shows", async () => {
    const { changed } = json("diff", path.join(samples, "torch_ranks_tp_fsdp2"), path.join(samples, "dcp_tp_fsdp2"), "--values"), [{ fqn, differing }] = changed;
    await button("Sharding").click();
    await page.locator("section[aria-label=Comparison]:not([aria-busy=true])").waitFor();
    await page.getByLabel("Filter").fill(fqn);
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor();
    await page.locator(ENTRIES, { hasText: fqn.split(".").at(-1) }).first().click();
    await page.locator("aside [aria-label='Comparison with B']").waitFor();
    check(/values not compared/.test(await fact(page, "change")), await fact(page, "change"));
    await button(/^Values/).click();
    await page.locator("aside .facts dd", { hasText: "changed: value" }).waitFor();
    check(await fact(page, "values that differ") === String(differing), await fact(page, "values that differ"));
    await page.getByLabel("atol", { exact: true }).fill("1000");
    await page.getByLabel("atol", { exact: true }).press("Enter");
    await page.locator("aside .facts dd", { hasText: "same" }).waitFor();
  });
  await test("a tolerance that is being typed stays while the view is drawn again", async () => {
    const field = page.getByLabel("rtol", { exact: true });
    await field.fill("0.5");
    await holding(page, "diff", () => button("Sharding").evaluate((toggle) => toggle.click()), () => expectOlder(box, "Comparing …")); // the field keeps the focus
    await page.locator("section[aria-label=Comparison]:not([aria-busy=true])").waitFor();
    check(await field.inputValue() === "0.5", `it is '${await field.inputValue()}'`);
    await field.fill("x");
    await field.press("Enter");
    check(await field.inputValue() === "", "what is not a number stays");
  });
  await test("differences of an entry name the slice that they are of", async () => {
    await page.locator("aside .facts dt", { hasText: "differing" }).waitFor();
    check(await page.locator("aside .facts dt", { hasText: "slice" }).count() === 0, "the slice of the field is said twice");
    await page.getByLabel("Slice to compare").fill("0:2,0:3");
    check(await fact(page, "slice") === ":,:" && !(await fact(page, "differing")).endsWith("of 6"), "the differences before have the new slice");
    await button("Show differences").click();
    await page.locator("aside .facts dd", { hasText: /of 6$/ }).waitFor();
    check(await page.locator("aside .facts dt", { hasText: "slice" }).count() === 0, "the slice of the field is said twice");
  });
  await test("an entry of a comparison is closed with B", async () => {
    await button("Another B").click();
    await page.locator(".samples button").first().waitFor();
    check(await page.locator("aside").count() === 0, "what is compared with the B before is still shown");
  });
}

async function testLists(page, scratch) {
  await test("the totals are not those of the filter before", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    const field = page.getByLabel("Filter"), status = page.locator(".filter [role=status] > span"), totals = (text) => page.locator(".filter [role=status][aria-busy=false]", { hasText: text });
    await field.fill("**.weight");
    await totals("matches").waitFor();
    const before = await status.textContent();
    await holding(page, "arrange", () => field.fill("nothing has this name"), async () => check(!await status.isVisible(), `${before} is shown of another filter`));
    await totals("0 matches").waitFor();
    check(await status.isVisible(), "the totals stay hidden");
    await holding(page, "arrange", () => field.fill("**.weight"), async () => check(await page.getByText("No entry matches the filter").count() === 0, "another filter is said to match nothing"));
    await totals(before).waitFor();
  });
  await test("only the slice that the field names is saved", async () => {
    await page.locator(ENTRIES, { hasText: "weight" }).first().click();
    await page.getByRole("button", { name: "Save .npy" }).waitFor();
    await page.getByLabel("Slice", { exact: true }).fill("0:1");
    check(await page.getByRole("button", { name: /^Save (.npy|CSV)/ }).count() === 0, "another slice could be saved under this one's name");
    await page.getByRole("button", { name: "Show values" }).click();
    await page.getByRole("button", { name: "Save CSV" }).waitFor();
  });
  await test("a scan that could read no tensor does not say that it found no NaN", async () => {
    const file = path.join(scratch, "packed.safetensors"), header = JSON.stringify({ packed: { dtype: "F4", shape: [4, 4], data_offsets: [0, 8] } }), size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(header.length));
    fs.writeFileSync(file, Buffer.concat([size, Buffer.from(header), Buffer.alloc(8, 0x21)]));
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, file);
    await goTo(page, /^Problems/);
    await page.getByRole("button", { name: /^Scan the values/ }).click();
    const scan = page.locator("section[aria-label='Values scan'] .fine");
    await scan.waitFor();
    check(await scan.textContent() === "0 tensors scanned." && !/found no NaN/.test(await page.locator("section[aria-label=Problems]").textContent()), await page.locator("section[aria-label=Problems]").textContent());
  });
}

export async function testCurrent({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-current-"));
  try {
    await page.goto(url);
    await testForms(page);
    await testComparison(page);
    await testLists(page, scratch);
    await test("no view breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true, force: true });
  }
}
