/** Statements that the page once got wrong, each with a checkpoint that real libraries wrote. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { ENTRIES, pick, root, rowsIn, rowsOf, samples } from "./browser.mjs";
import { tessera } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { goTo, open, openSample, showExports } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

export const verdict = (page) => page.locator(".verdict").textContent();
export const filter = async (page, text, status) => {
  await page.getByLabel("Filter").fill(text);
  await page.locator(".filter [role=status][aria-busy=false]", { hasText: status }).waitFor();
};

async function exported(page, button) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: button, exact: true }).click()]);
  return fs.readFileSync(await download.path());
}

async function testMetadataOnly(page, scratch) {
  const lone = path.join(scratch, "lone");
  fs.mkdirSync(lone);
  fs.copyFileSync(path.join(samples, "dcp_tp_fsdp2/.metadata"), path.join(lone, ".metadata"));
  await test("metadata alone: the verdict says so, with one problem", async () => {
    await open(page, lone);
    check(await verdict(page) === "Metadata only: 4 of 4 data files absent", await verdict(page));
    await page.getByRole("tab", { name: "Problems 1" }).waitFor();
    check(await (await rowsIn(page, " .level")).count() === 0, "single entries are marked");
  });
  await test("metadata alone: ranks and files keep their names", async () => {
    await filter(page, "model.block.up.weight", "1 match");
    await page.locator(ENTRIES).click();
    await page.locator(".legend li").first().waitFor();
    const legend = await page.locator(".legend li").allTextContents();
    for (const rank of [0, 1, 2, 3]) check(legend.some((l) => l.includes(`rank ${rank} __${rank}_0.distcp (absent)`)), legend.join("; "));
    check(new Set(await page.locator(".map .chunk").evaluateAll((l) => l.map((c) => c.getAttribute("style")))).size === 4, "the ranks have one colour");
  });
  await test("metadata alone: values are not offered, and it is said why", async () => {
    await page.locator("section[aria-label=Values]", { hasText: "They cannot be read, because 4 data files are absent." }).waitFor();
    check(await page.locator("section[aria-label=Values] button").count() === 0, "they are offered");
  });
  await test("some files absent: the entries in them are marked, the others are not", async () => {
    const some = path.join(scratch, "some");
    fs.cpSync(path.join(samples, "dcp_tp_fsdp2"), some, { recursive: true });
    fs.rmSync(path.join(some, "__1_0.distcp"));
    await open(page, some);
    check(await verdict(page) === "1 of 4 data files absent", await verdict(page));
    await filter(page, "kind:tensor", "29 matches");
    const rows = await (await rowsIn(page, ":not(.group)")).evaluateAll((l) => l.map((r) => [r.querySelector(".text").textContent, r.querySelector(".level") !== null]));
    check(rows.some(([, marked]) => marked) && rows.some(([, marked]) => !marked), JSON.stringify(rows));
  });
  await test("some files absent: what needs them is not offered, and it is said why", async () => {
    const some = path.join(scratch, "some"), whole = path.join(samples, "dcp_tp_fsdp2"), offer = (name) => page.getByRole("button", { name });
    const { chunks } = JSON.parse(tessera("inspect", whole, "--include", "model.steps_seen", "--json")).entries[0];
    check(chunks.every(({ file }) => file !== "__1_0.distcp"), "it is in the absent file");
    await page.locator(ENTRIES, { hasText: "steps_seen" }).click();
    await page.locator("section[aria-label=Values] table").waitFor(); // all of it is here
    await goTo(page, /^Problems/);
    await page.getByText("Values cannot be scanned, because 1 data file is absent.").waitFor();
    check(await offer(/^Scan/).count() === 0 && await offer(/^Check every byte/).count() === 1, "the scan is offered, or the check is not");
    await goTo(page, "Files");
    await page.getByText("Tensors cannot be compared with each other, because 1 data file is absent.").waitFor();
    check(await offer(/^Look for/).count() === 0, "the search is offered");
    for (const [a, b, side] of [[some, whole, "A"], [whole, some, "B"]]) {
      await open(page, a);
      await goTo(page, "Compare");
      await pick(page, b);
      await page.getByText(`Values cannot be compared, because 1 data file is absent in ${side}.`).waitFor();
      check(await offer(/^Values/).count() === 0, "the comparison is offered");
      await filter(page, "model.few.weight", "1 match");
      await page.locator(ENTRIES).click();
      await page.locator("aside", { hasText: "Their values cannot be compared, because 1 data file is absent." }).waitFor();
    }
  });
}

async function testCounts(page, made) {
  await test("1,024 absent files are counted, in the verdict and in the export", async () => {
    await open(page, path.join(made, "many_ranks"));
    check(await verdict(page) === "Metadata only: 1,024 of 1,024 data files absent", await verdict(page));
    await goTo(page, /^Problems/);
    await showExports(page);
    const { findings, summary } = JSON.parse(await exported(page, "Export JSON"));
    check(new Set(findings.map((f) => f.file)).size === 1024 && summary.errors === 1024 && summary.unlisted === undefined, `${findings.length} findings, ${JSON.stringify(summary)}`);
    const sarif = JSON.parse(await exported(page, "Export SARIF")).runs[0].results;
    check(new Set(sarif.map((r) => r.message.text)).size === 1024 && new Set(sarif.map((r) => r.locations[0].physicalLocation.artifactLocation.uri)).size === 1024, `${sarif.length} results`);
  });
  await test("a folded row counts all of its layers, in entries and in bytes", async () => {
    await open(page, path.join(made, "layers.safetensors"));
    const folded = (await rowsOf(page)).find((r) => r.includes("12 alike"));
    check(folded?.includes("24 entries") && folded.includes("2.8 KiB"), folded); // 12 × (40 + 20) × 4 bytes
  });
  await test("groups under a filter have the totals of what it keeps", async () => {
    await filter(page, "up", "12 matches · 480 elements · 1.9 KiB");
    await page.locator(".window .row", { hasText: "12 entries" }).first().waitFor();
    const group = (await rowsOf(page))[0];
    check(group.includes("12 entries") && group.includes("1.9 KiB"), group);
  });
  await test("columns sort: the largest first, then the smallest", async () => {
    await page.getByLabel("Filter").fill("layers.3");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "2 matches" }).waitFor();
    const names = async () => (await (await rowsIn(page, ":not(.group) .text")).allTextContents()).join();
    for (const [order, expected] of [["descending", "up,down"], ["ascending", "down,up"]]) {
      await page.getByRole("button", { name: "Size" }).click();
      await page.locator(`[aria-sort="${order}"]`, { hasText: "Size" }).waitFor();
      const shown = await names();
      check(shown === expected, `${order}: ${shown}`);
    }
  });
  await test("an invalid filter is an error, not a count", async () => {
    for (const [text, says] of [["dtype:flaot", "no tensor here is 'flaot'"], ["kind:tensors", "'tensors' is not a kind"], ["size:5", "'size:' is not a filter"], [">5X", "'5X' is not a size"], ["shape:a", "'a' is not a shape"]]) {
      await filter(page, text, says);
      check(!/match/.test(await page.locator(".filter [role=status][aria-busy=false]").textContent()), `'${text}' has matches`);
    }
  });
  await test("an entry that has others below it is counted once, with its own dtype and size", async () => {
    await open(page, path.join(made, "four_bit.safetensors"));
    const largest = page.locator("section[aria-label='Largest tensors'] li");
    await largest.first().waitFor();
    check((await largest.allTextContents()).slice(0, 2).join() === "norm.weight600 B,layers.0.proj.weight512 B", (await largest.allTextContents()).join());
    const weight = async () => (await rowsOf(page)).find((row) => row.startsWith("▾layers.0.proj.weight"));
    check(await weight() === "▾layers.0.proj.weight | 512 × 1 | uint8 | 512 B", await weight());
    await filter(page, "proj", `4 matches · ${512 + 16 + 16 + 88} elements · ${512 + 64 + 64 + 88} B`);
    check(await weight() === "▾layers.0.proj.weight | 512 × 1 | uint8 | 512 B", await weight());
  });
  await test("texts of a safetensors file's __metadata__ are shown", async () => {
    await open(page, path.join(made, "layers.safetensors"));
    await page.locator("section[aria-label='File metadata']", { hasText: "the tests" }).waitFor();
  });
}

/** Writes a safetensors file of float32 tensors: their values by name. */
function small(scratch, name, tensors) {
  let at = 0;
  const header = Buffer.from(JSON.stringify(Object.fromEntries(Object.entries(tensors).map(([key, values]) => [key, { dtype: "F32", shape: [values.length], data_offsets: [at, (at += 4 * values.length)] }])))), size = Buffer.alloc(8), file = path.join(scratch, `${name}.safetensors`);
  size.writeBigUInt64LE(BigInt(header.length));
  fs.writeFileSync(file, Buffer.concat([size, header, Buffer.from(Float32Array.from(Object.values(tensors).flat()).buffer)]));
  return file;
}

async function testFew(page, scratch) {
  await test("one is not written as several", async () => {
    await open(page, small(scratch, "one", { w: [1.5] }));
    await page.locator(".window .row").first().click();
    await page.getByText("1 chunk in 1 file: it covers every element.").waitFor();
    check(/1 parameter(?!s)/.test(await page.locator(".about").textContent()), await page.locator(".about").textContent());
    await goTo(page, "Names");
    await page.getByText("The name is canonical already.").waitFor();
    await open(page, small(scratch, "twins", { a: [1, 2], b: [1, 2], c: [3] }));
    await goTo(page, "Files");
    await page.getByRole("button", { name: /^Look for tensors/ }).click();
    await page.getByText("1 group of tensors holds equal bytes, 8 B more than once").waitFor();
  });
  await test("names that differ in spaces only look different", async () => {
    await open(page, small(scratch, "spaces", { "a b": [1], "a  b": [2], " a b": [3] }));
    await page.locator(".window .row .text").nth(2).waitFor();
    const names = await (await rowsIn(page, " .text")).evaluateAll((l) => l.map((e) => e.innerText));
    check(JSON.stringify(names) === '["a b","a  b"," a b"]', JSON.stringify(names));
    const largest = page.locator("section[aria-label='Largest tensors'] li button");
    await largest.nth(2).waitFor();
    const listed = await largest.evaluateAll((l) => l.map((e) => e.innerText));
    check(JSON.stringify(listed) === JSON.stringify(names), JSON.stringify(listed));
    check(await page.locator(".page").evaluate((e) => e.getBoundingClientRect().y === 0 && document.documentElement.scrollHeight === innerHeight), "spaces around the page are shown, too");
  });
  await test("a checkpoint without entries asks nobody to choose one", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, small(scratch, "none", {}));
    await page.getByText("0 tensors in 1 file.").waitFor();
    check(await page.getByText("Choose an entry").count() === 0, "it does");
  });
  await test("a file that is not recognized is not called recognized", async () => {
    const picture = path.join(scratch, "picture.jpg");
    fs.writeFileSync(picture, Buffer.from([0xff, 0xd8, 0xff, 0xe0, 0, 16, 74, 70]));
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, picture);
    const alert = page.getByRole("alert").filter({ hasText: "is not in a recognized checkpoint format" });
    await alert.waitFor();
    check(!/recognizes/.test(await alert.textContent()), await alert.textContent());
    await page.getByRole("button", { name: "Dismiss" }).click();
  });
}

async function testOptimizer(page, made) {
  await test("optimizer state without param groups is an optimizer", async () => {
    await open(page, path.join(made, "optimizer_without_groups"));
    await goTo(page, "Optimizer");
    await page.locator(".view .fine", { hasText: "147 parameters with 3 states each: all complete" }).waitFor();
    await page.locator(".view .bad", { hasText: "There are no param groups" }).waitFor();
    check(await page.locator(".view tbody tr", { hasText: "3 × 2" }).count() === 147, "parameters have no shapes");
    check((await page.locator(".about").textContent()).includes("882 parameters"), await page.locator(".about").textContent()); // 147 × 3 × 2
  });
  await test("hyper-parameters of the groups are shown", async () => {
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Optimizer");
    await page.locator("[aria-label='Param groups'] tr", { hasText: /weight_decay\s*0\.1/ }).waitFor();
  });
}

async function testComparison(page, made) {
  const compare = async (a, b) => {
    await open(page, a);
    await goTo(page, "Compare");
    await pick(page, b);
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
  };
  const line = (page_) => page_.locator(".current[aria-busy=false] .verdict-line").textContent();
  await test("nothing is called equal before values were compared, and values stay when other toggles change", async () => {
    await compare(path.join(samples, "dcp_fsdp2"), path.join(samples, "dcp_hsdp"));
    check((await line(page)).includes("values not compared yet") && !/same|equal, values/i.test(await line(page)), await line(page));
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "equal, values included" }).waitFor();
    await page.getByRole("button", { name: "Sharding" }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "changed" }).waitFor();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values included" }).waitFor();
    await page.locator(".window .mark.changed", { hasText: "sharding" }).first().waitFor();
  });
  await test("groups whose values were not compared have no differences, and each side has its own dtype", async () => {
    const file = path.join(made, "four_bit.safetensors");
    await compare(file, file);
    await page.locator(".window .mark.match").first().waitFor();
    check(!(await rowsOf(page)).some((row) => /difference/.test(row)), (await rowsOf(page)).join("\n"));
    const weight = (await rowsOf(page)).find((row) => row.startsWith("▾layers.0.proj.weight"));
    check(weight === "▾layers.0.proj.weight | ≈ values not compared | uint8 512 × 1 | uint8 512 × 1", weight);
    await compare(file, path.join(made, "sixteen_bit.safetensors"));
    await page.locator(".window .row", { hasText: "changed: dtype, shape; 3 differences below" }).first().waitFor(); // a tensor with three others below its name
  });
  await test("a comparison is filtered as contents are, by what either side has", async () => {
    const [a, b] = [path.join(samples, "dcp_fsdp2"), path.join(samples, "dcp_hsdp")];
    const count = (...options) => JSON.parse(tessera("inspect", a, ...options, "--json")).entries;
    await compare(a, b);
    await filter(page, "**.weight", `${count("--include", "**.weight").length} matches`);
    await filter(page, "**.weight -optim", `${count("--include", "**.weight", "--exclude", "optim.**").length} matches`);
    await filter(page, "kind:object", `${count().filter((e) => e.kind === "object").length} matches`);
    await compare(path.join(made, "four_bit.safetensors"), path.join(made, "sixteen_bit.safetensors"));
    for (const text of ["dtype:uint8 shape:512x1", "dtype:bfloat16", "is:changed", "is:different -is:only-a"]) {
      await filter(page, text, "1 match");
      await page.locator(".window .mark.changed[title]").waitFor();
    }
    for (const [text, says] of [["is:new", "'new' is not a result of a comparison"], ["size:5", "'size:' is not a filter"], [">5X", "'5X' is not a size"], ["dtype:flaot", "no tensor here is 'flaot'"]]) await filter(page, text, says);
  });
  await test("renamed tensors are compared", async () => {
    await compare(path.join(made, "renamed_a.safetensors"), path.join(made, "renamed_b.safetensors"));
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".mark.renamed", { hasText: "renamed to body.a; values equal" }).waitFor();
    await page.locator(".mark.renamed", { hasText: "renamed to body.b; values differ" }).waitFor();
    await showExports(page);
    const { renamed } = JSON.parse(await exported(page, "Export JSON"));
    check(renamed.find((r) => r.b === "body.b").differing === 1, JSON.stringify(renamed));
  });
}

async function testPlaces(page, url, scratch) {
  await test("the URL of an index opens the tensors of its shards", async () => {
    await page.goto(url);
    await page.getByLabel(/^URL/).fill("safetensors_index/model.safetensors.index.json");
    await page.getByRole("button", { name: "Open URL" }).click();
    await page.locator(".window .row .text").first().waitFor();
    check(/^8 tensors in 3 files\./.test(await page.locator("aside .quiet").first().textContent()), await page.locator("aside").textContent());
    check(!/object/.test(await page.locator("aside .quiet").first().textContent()), "entries are objects");
  });
  await test("the URL of a DCP's metadata opens its data files", async () => {
    await page.goto(`${url}?url=dcp_tp_fsdp2/.metadata&entry=model.block.up.weight`);
    await page.locator("table.values").waitFor();
    check(await verdict(page) === "Structure OK — bytes not checked", await verdict(page));
    await goTo(page, "Share");
    const link = await page.locator(".command code").textContent();
    check(new URL(link).searchParams.get("entry") === "model.block.up.weight" && /dcp_tp_fsdp2\/\.metadata$/.test(new URL(link).searchParams.get("url")), link);
  });
  await test("checkpoints three levels down are a choice; a single one opens", async () => {
    const run = path.join(scratch, "run");
    for (const step of ["step-10", "step-20"]) fs.cpSync(path.join(samples, step === "step-10" ? "dcp_fsdp2" : "dcp_tp_fsdp2"), path.join(run, "out/checkpoints", step), { recursive: true });
    await page.goto(url);
    await pick(page, run);
    await page.locator(".chooser h2", { hasText: "run holds 2 checkpoints" }).waitFor();
    await page.locator(".chooser button", { hasText: "step-20" }).click();
    await page.locator(".window .row .text").first().waitFor();
    check(await page.locator(".top h1").textContent() === "run/out/checkpoints/step-20", await page.locator(".top h1").textContent());
    fs.rmSync(path.join(run, "out/checkpoints/step-10"), { recursive: true });
    await open(page, run);
    check((await page.locator(".top h1").textContent()).endsWith("step-20"), "it did not open");
  });
}

async function testSlices(page, made, scratch) {
  await test("a slice is saved as the .npy that NumPy reads, and as CSV", async () => {
    await open(page, path.join(made, "renamed_a.safetensors"));
    await filter(page, "encoder.b", "1 match");
    await page.locator(ENTRIES).click();
    await page.getByLabel("Slice").fill("1:4,2");
    await page.getByRole("button", { name: "Show values" }).click();
    await page.locator("table.values", { hasText: "9.5" }).waitFor();
    const file = path.join(scratch, "slice.npy");
    fs.writeFileSync(file, await exported(page, "Save .npy"));
    const read = spawnSync(python, ["-c", `import numpy; a = numpy.load(${JSON.stringify(file)}); print(a.dtype, a.tolist())`], { encoding: "utf8" });
    check(read.stdout.trim() === "float32 [9.5, 16.5, 23.5]", read.stdout + read.stderr);
    check(String(await exported(page, "Save CSV")).trim() === "9.5,16.5,23.5", "the CSV is another");
    await page.getByRole("img", { name: "Line of 3 values from 9.5 to 23.5" }).waitFor();
  });
}

async function testScan(page, made) {
  await test("a scan of all values finds NaN, infinite, all-zero and constant tensors", async () => {
    await open(page, path.join(made, "suspects.safetensors"));
    await goTo(page, /^Problems/);
    await page.getByRole("button", { name: /^Scan the values/ }).click();
    await page.locator("section[aria-label='Values scan'] tbody tr").first().waitFor();
    const rows = await page.locator("section[aria-label='Values scan'] tbody tr").evaluateAll((l) => l.map((r) => [...r.children].map((c) => c.textContent).join()));
    check(JSON.stringify(rows.sort()) === JSON.stringify(["constant,0,0,constant", "has_inf,0,1,", "has_nan,2,0,", "zero,0,0,all zero"]), JSON.stringify(rows));
    check(/5 tensors scanned/.test(await page.locator("section[aria-label='Values scan'] .fine").textContent()), "another number was scanned");
  });
}

export async function testTruth({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-truth-"));
  try {
    await page.goto(url);
    await testMetadataOnly(page, scratch);
    await testFew(page, scratch);
    await testPlaces(page, url, scratch);
    const made = path.join(scratch, "made");
    fs.mkdirSync(made);
    if (!fs.existsSync(python)) return skip("checkpoints made by PyTorch", "there is no .local/venv");
    const p = spawnSync(python, [path.join(root, "tests/web/make_checkpoints.py"), made], { encoding: "utf8" });
    check(p.status === 0, p.stderr);
    await testCounts(page, made);
    await testOptimizer(page, made);
    await testComparison(page, made);
    await testSlices(page, made, scratch);
    await testScan(page, made);
    await test("none of these breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
  return undefined;
}
