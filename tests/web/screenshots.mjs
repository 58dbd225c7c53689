/** Takes pictures of every view and of its states, for a person to look at, and runs axe on each of them in the light scheme and
 *  in the dark one. Usage: node tests/web/screenshots.mjs DIRECTORY [--sample PATH] [--views contents,…] [--widths 1440,1024,390]
 *  [--schemes light,dark]. With --sample, only the views of any checkpoint are taken, of that one. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { axeSource, ENTRIES, launch, pick, samples, serve } from "./browser.mjs";
import { takePickers } from "./files.mjs";
import { goTo, READY } from "./views.mjs";

const option = (name, otherwise) => process.argv[process.argv.indexOf(name) + 1 || process.argv.length] ?? otherwise;
const [, , directory = "screenshots"] = process.argv, given = option("--sample");
const widths = option("--widths", "1440,1024,390").split(",").map(Number), schemes = option("--schemes", "light,dark").split(",");
const MAIN = "dcp_tp_fsdp2", RANKS = "torch_ranks_tp_fsdp2";
const entry = option("--entry", given ? "kind:tensor" : "model.block.up.weight"), SETTLE_MS = 400;

/** A directory with two checkpoints, and one whose data files are absent. */
const made = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-pictures-"));
for (const name of ["dcp_fsdp2", "dcp_hsdp"]) fs.cpSync(path.join(samples, name), path.join(made, "runs", name), { recursive: true });
fs.cpSync(path.join(samples, MAIN), path.join(made, "partial"), { recursive: true });
fs.rmSync(path.join(made, "partial/__1_0.distcp"));
fs.mkdirSync(path.join(made, "metadata"));
fs.copyFileSync(path.join(samples, MAIN, ".metadata"), path.join(made, "metadata/.metadata"));

const key = (name) => (page) => page.keyboard.press(name);
const click = (role, name) => (page) => page.getByRole(role, { name }).first().click();
const sample = (name) => async (page) => { await page.locator(".samples button", { hasText: name }).first().click(); };
const choose = (name) => async (page) => {
  await page.getByLabel("Filter").fill(name);
  await page.waitForTimeout(SETTLE_MS);
  await page.locator(ENTRIES).first().click();
  await page.locator("aside :is(.legend, pre, .facts)").first().waitFor();
};
const open = (summary) => (page) => page.locator(summary).first().evaluate((details) => { details.open = true; details.scrollIntoView(); });
/** On a phone the panel scrolls, and not the view in it. */
const end = (selector) => (page) => page.locator(selector).evaluate((box) => { for (const e of [box, box.parentElement]) e.scrollTo(0, e.scrollHeight); });
const ready = (view) => async (page) => { await goTo(page, view === "Problems" ? /^Problems/ : view); await page.locator(READY[view]).first().waitFor(); };
const compared = (other) => async (page) => { await ready("Compare")(page); await sample(other)(page); await page.locator(".compared").waitFor(); await page.locator(".window .row").first().waitFor(); };
const values = async (page) => { await click("button", /^Values/)(page); await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values included" }).waitFor(); };
/** Holds back the answer to a request, so that what shows meanwhile stays. */
const held = (url) => (page) => page.route(url, () => undefined);
const type = (text) => async (page) => { await page.locator("dialog input").fill(text); };
const dragOver = (page) => page.evaluate(() => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(["x"], "x"));
  document.querySelector(".page").dispatchEvent(new DragEvent("dragover", { dataTransfer, bubbles: true, cancelable: true }));
});

/** The name of each picture, what is opened ("" for the start page), and what is done then. */
const ANY = {
  contents: [], problems: [ready("Problems")], files: [ready("Files")], optimizer: [ready("Optimizer")], names: [ready("Names")], compare: [ready("Compare")],
  convert: [ready("Convert…")], convert_end: [ready("Convert…"), end(".view")], reshard: [ready("Reshard…")], reshard_end: [ready("Reshard…"), end(".view")], load: [ready("Would it load?")], share: [ready("Share")],
  entry: [choose(entry)], entry_end: [choose(entry), click("button", /^Statistics/), (page) => page.locator("aside dt", { hasText: "std" }).waitFor(), end(".detail")],
};
const STATES = {
  start: ["", []], start_choice: [path.join(made, "runs"), []], start_failed: ["broken_dcp_metadata_truncated", []], start_shortcuts: ["", [key("?")]],
  opening: ["", [held("**/dcp_fsdp2/**"), sample("dcp_fsdp2")]],
  menu: [MAIN, [click("button", "Menu")]], palette: [MAIN, [key("Control+k")]], palette_empty: [MAIN, [key("Control+k"), type("nothing has this name")]],
  drop: [MAIN, [dragOver]],
  contents_empty: [MAIN, [(page) => page.getByLabel("Filter").fill("nothing has this name")]], contents_wrong: [MAIN, [(page) => page.getByLabel("Filter").fill(">12Q")]],
  contents_absent: [path.join(made, "partial"), []], contents_metadata: [path.join(made, "metadata"), []], contents_objects: ["torch_objects", []], contents_dtypes: ["torch_dtypes", []], contents_quantized: ["torch_quantized", []],
  entry_sharded: [MAIN, [choose("model.block.down.weight"), open("aside details")]], entry_absent: [path.join(made, "partial"), [choose("model.few.weight"), open("aside details")]], entry_hole: ["broken_dcp_hole", [choose("kind:tensor")]],
  entry_mesh: [RANKS, [choose("model.block.down.weight"), open("aside details")]], entry_replicated: [RANKS, [choose("model.block.down.bias")]], entry_object: [MAIN, [choose("kind:object")]], entry_complex: ["torch_dtypes", [choose("complex64")]], entry_quantized: ["torch_quantized", [choose("kind:opaque")]],
  problems_found: ["broken_dcp_hole", [ready("Problems")]], problems_checked: ["broken_dcp_byte_flipped", [ready("Problems"), click("button", /^Check every byte/), (page) => page.locator(".findings li").first().waitFor()]], problems_scanned: [MAIN, [ready("Problems"), click("button", /^Scan the values/), (page) => page.waitForTimeout(1000)]],
  files_absent: [path.join(made, "partial"), [ready("Files")]], files_one: ["safetensors_model", [ready("Files")]], files_duplicates: [MAIN, [ready("Files"), click("button", /^Look for/), (page) => page.locator("[aria-label=Duplicates] .fine").waitFor()]],
  optimizer_none: ["safetensors_model", [ready("Optimizer")]], names_changed: ["dcp_ddp", [ready("Names")]],
  compared: [MAIN, [compared("dcp_fsdp2")]], compared_entry: [MAIN, [compared("dcp_fsdp2"), (page) => page.locator(ENTRIES).first().click(), (page) => page.locator("[aria-label='B of the comparison']").waitFor()]],
  compared_values: [RANKS, [compared(MAIN), values]], compared_values_entry: [RANKS, [compared(MAIN), values, (page) => page.locator(ENTRIES).first().click(), (page) => page.locator("aside .plot").first().waitFor()]],
  compared_series: [RANKS, [compared(MAIN), click("button", "Layer by layer"), click("button", /^Read norms/), (page) => page.locator("table.series td").first().waitFor()]],
  load_result: [MAIN, [ready("Would it load?"), sample("dcp_fsdp2"), (page) => page.getByRole("button", { name: "Check against something else" }).waitFor()]],
  damaged: ["broken_dcp_truncated", []],
  convert_written: [MAIN, [takePickers, ready("Convert…"), click("button", "Weights for Hugging Face"), (page) => page.waitForTimeout(1000), click("button", "Save…"), (page) => page.locator(".written").waitFor(), end(".view")]],
  convert_choose: [MAIN, [ready("Convert…"), click("radio", "Choose"), open(".advanced")]], convert_failed: ["broken_dcp_missing_file", [ready("Convert…"), end(".view")]],
  reshard_mesh: [MAIN, [ready("Reshard…"), click("radio", "A device mesh"), click("button", "Add a mesh dim"), (page) => page.waitForTimeout(1000)]],
};
const views = given ? Object.fromEntries(Object.entries(ANY).map(([name, acts]) => [name, [given, acts]])) : { ...Object.fromEntries(Object.entries(ANY).map(([name, acts]) => [name, [MAIN, acts]])), ...STATES };
const wanted = option("--views", Object.keys(views).join()).split(",");

const server = await serve(), browser = await launch({ viewport: { width: 1440, height: 900 }, serviceWorkers: "block" });
fs.mkdirSync(directory, { recursive: true });
let trouble = 0;

async function take(page, name, [target, acts], file) {
  await page.goto(server.url);
  await page.locator(".samples button").first().waitFor();
  if (target) {
    await pick(page, fs.existsSync(target) ? target : path.join(samples, target));
    await page.locator(".window .row .text, .choices, .trouble").first().waitFor();
  }
  for (const act of acts) await act(page);
  await page.waitForTimeout(SETTLE_MS);
  await page.screenshot({ path: file });
  const violations = await page.evaluate(`${axeSource}; axe.run(document).then((r) => r.violations.map((v) => v.id + ": " + v.nodes.map((n) => n.target.join(" ")).join(", ")))`);
  for (const text of violations) { trouble++; console.log(`${name}: ${text}`); }
  const width = await page.evaluate("document.documentElement.scrollWidth - innerWidth");
  if (width > 0) { trouble++; console.log(`${name}: the page is ${width} px wider than the window`); }
}

try {
  for (const scheme of schemes) for (const width of widths) for (const name of wanted) {
    const page = await browser.context.newPage(), file = path.join(directory, `${name}_${width}_${scheme}.png`);
    page.setDefaultTimeout(given ? 60_000 : 8000);
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: width < 640 ? 844 : 900 });
    await take(page, `${name} at ${width} px, ${scheme}`, views[name], file).catch((e) => { trouble++; console.log(`${name} at ${width} px, ${scheme}: ${String(e.message).split("\n")[0]}`); });
    await page.close();
  }
} finally {
  await browser.close();
  server.stop();
  fs.rmSync(made, { recursive: true, force: true });
}
console.log(`${trouble} findings`);
process.exitCode = trouble ? 1 : 0;
