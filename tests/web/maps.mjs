/** Compare and Names with a map that is applied to A: they show and export what the commands state with --map. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { allowWorkers, ENTRIES, pick, root, rowsIn } from "./browser.mjs";
import { diffOf, native, tessera } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { goTo, open, openSample, showExports } from "./views.mjs";

/** torchtitan's own model, and what its state_dict_adapter wrote for Hugging Face. */
const TITAN = path.join(root, "tests/golden/titan"), MAP = "torchtitan-llama3";

function parsed(file) {
  const bytes = fs.readFileSync(file), size = Number(bytes.readBigUInt64LE());
  return { header: JSON.parse(bytes.subarray(8, 8 + size)), data: bytes.subarray(8 + size) };
}

/** Writes the tensors that the header lists, one after the other: a file may not contain other bytes. */
function write(file, header, data) {
  const parts = Object.values(header).map((tensor) => data.subarray(...tensor.data_offsets));
  let end = 0;
  Object.values(header).forEach((tensor, i) => { tensor.data_offsets = [end, end += parts[i].length]; });
  const text = Buffer.from(JSON.stringify(header)), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, Buffer.concat([size, text, ...parts]));
}

/** Copies a model with its settings. `change` may change it. Returns its directory. */
function model(directory, name, [file, settings], change = () => undefined) {
  const { header, data } = parsed(path.join(TITAN, file)), at = path.join(directory, name);
  change(header, data);
  write(path.join(at, "model.safetensors"), header, data);
  fs.copyFileSync(path.join(TITAN, settings), path.join(at, "config.json"));
  return at;
}

const CHANGED = "model.layers.1.self_attn.q_proj.weight", RENAMED = "model.layers.2.mlp.up_proj.weight", LEFT_OUT = "model.layers.0.mlp.down_proj.weight";

/** Changes a value that the map permutes, renames a tensor and changes a value of it, and leaves one out. */
function alter(header, data) {
  const float = (name, index) => header[name].data_offsets[0] + 4 * index;
  data.writeFloatLE(data.readFloatLE(float(CHANGED, 31)) + 0.5, float(CHANGED, 31));
  data.writeFloatLE(-7, float(RENAMED, 5));
  header["model.layers.2.mlp.raised.weight"] = header[RENAMED];
  delete header[RENAMED];
  delete header[LEFT_OUT];
}

const group = (page) => page.locator("[role=group][aria-label=Map]");
const choose = (page, name) => group(page).locator("select").selectOption(name);
const openMap = (page) => page.getByRole("button", { name: "Map of A" }).click();
const verdict = (page, text) => page.locator(".current[aria-busy=false] .verdict-line", { hasText: text }).waitFor();
const values = (page) => page.getByRole("button", { name: /^Values/ });

/** Waits until values are compared again: the button states how many bytes that reads until they are. */
async function compared(page) {
  await page.getByRole("button", { name: "Values", exact: true }).waitFor();
  await verdict(page, "values included");
}

async function compare(page, a, b) {
  await open(page, a);
  await goTo(page, "Compare");
  await pick(page, b);
  await verdict(page, "values not compared yet");
}

async function exported(page) {
  await showExports(page);
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export JSON", exact: true }).click()]);
  return JSON.parse(fs.readFileSync(await download.path(), "utf8"));
}

/** Checks that the page exports the command's document. The page adds how many values of renamed tensors differ. */
async function expectDiff(page, native) {
  const ours = await exported(page), plain = (diff) => JSON.stringify({ ...diff, a: "", b: "", renamed: diff.renamed.map(({ differing, ...r }) => r) });
  const [got, want] = [ours, native].map(plain), at = [...want].findIndex((c, i) => c !== got[i]);
  check(got === want, `${got.slice(Math.max(0, at - 80), at + 300)}\ninstead of\n${want.slice(Math.max(0, at - 80), at + 300)}`);
  return ours;
}

const filtered = async (page, text, status) => {
  await page.getByLabel("Filter").fill(text);
  await page.locator(".filter [role=status][aria-busy=false]", { hasText: status }).waitFor();
};
const entries = (page) => page.locator(ENTRIES);
const section = (page, name) => page.locator(`section[aria-label='${name}']`);

/** Returns the float32 values of a tensor of a golden. */
function valuesOf(file, name) {
  const { header, data } = parsed(path.join(TITAN, file)), [from, to] = header[name].data_offsets;
  return new Float32Array(data.buffer.slice(data.byteOffset + from, data.byteOffset + to));
}

async function expectMax(page, all) {
  const max = await page.locator("section[aria-label^=Values] .facts dt:text-is('max') + dd").textContent();
  check(Math.abs(Number(max) - Math.max(...all)) < 1e-4, `${max} instead of ${Math.max(...all)}`);
}

async function testCompare(page, { titan, hf, altered, few }) {
  await test("Compare: torchtitan's model with the map is Hugging Face's, as `tessera diff --map` states", async () => {
    await compare(page, titan, hf);
    check((await expectDiff(page, diffOf(titan, hf))).removed.length === 29, "the names are equal without the map");
    await openMap(page);
    await choose(page, MAP);
    await verdict(page, /^30 entries with equal names/);
    await expectDiff(page, diffOf(titan, hf, "--map", MAP));
    await values(page).click();
    await verdict(page, /^30 entries equal, values included/);
    await expectDiff(page, diffOf(titan, hf, "--values", "--map", MAP));
  });
  await test("Compare: the map backwards", async () => {
    await compare(page, hf, titan);
    await openMap(page);
    await choose(page, MAP);
    await group(page).getByLabel("Apply the map backwards").check();
    await verdict(page, /^30 entries with equal names/);
    await values(page).click();
    await verdict(page, /^30 entries equal, values included/);
    await expectDiff(page, diffOf(hf, titan, "--values", "--map", MAP, "--inverse"));
  });
  await test("Compare: changes, renames and missing tensors are those of the command, in every form of comparison", async () => {
    await compare(page, titan, altered);
    await openMap(page);
    await choose(page, MAP);
    await verdict(page, "1 perhaps renamed");
    await expectDiff(page, diffOf(titan, altered, "--map", MAP));
    await values(page).click();
    await verdict(page, /^1 changed, 1 only in A, 1 perhaps renamed, 27 entries equal, values included/);
    const { renamed: [pair] } = await expectDiff(page, diffOf(titan, altered, "--values", "--map", MAP));
    check(pair.a === RENAMED && pair.differing === 1, JSON.stringify(pair));
    await page.getByRole("button", { name: "Canonical names" }).click();
    await compared(page);
    await expectDiff(page, diffOf(titan, altered, "--values", "--map", MAP, "--canonical"));
    await page.getByRole("button", { name: "Sharding" }).click();
    await verdict(page, /^6 changed/);
    await expectDiff(page, diffOf(titan, altered, "--values", "--map", MAP, "--canonical", "--layout"));
    for (const button of ["Sharding", "Canonical names"]) await page.getByRole("button", { name: button }).click();
    await compared(page);
    await verdict(page, /^1 changed/);
  });
  await test("Compare: rows, filters and the entry have the names, shapes and values that the map makes", async () => {
    await filtered(page, "is:only-a", "1 match"); // the other one is renamed
    const names = async () => (await (await rowsIn(page)).allInnerTexts()).join(" ");
    check(/down_proj/.test(await names()) && !/feed_forward|attention\./.test(await names()), await names());
    await filtered(page, "is:renamed", "1 match");
    await page.locator(".mark.renamed", { hasText: "renamed to model.layers.2.mlp.raised.weight; values differ" }).waitFor();
    await filtered(page, CHANGED, "1 match");
    await entries(page).click();
    await page.locator("aside h2", { hasText: CHANGED }).waitFor();
    await section(page, "Comparison with B").locator(".facts", { hasText: /values that differ\s*1(?!\d)/ }).waitFor();
    await page.getByRole("button", { name: "Show differences" }).click();
    await page.locator(".facts", { hasText: /differing\s*1 of 900\s*largest finite \|A − B\|\s*0\.5(?!\d)/ }).waitFor();
  });
  await test("Compare: values and statistics of an entry are those of A through the map", async () => {
    await page.getByLabel("Slice", { exact: true }).fill("1,:");
    await page.getByRole("button", { name: "Show values" }).click();
    const all = valuesOf("llama3.hf.safetensors", CHANGED), cells = page.locator("[aria-label='Values of A'] table.values tbody td");
    await cells.first().waitFor();
    const shown = await cells.evaluateAll((list) => list.map((c) => Number(c.title))); // the exact value; its text has four digits
    check(shown.length > 10 && shown.every((v, i) => Math.fround(v) === all[30 + i]), `${shown} instead of ${all.subarray(30, 60)}`);
    await page.getByRole("button", { name: /^Statistics/ }).click();
    await expectMax(page, all);
    check(await page.locator("[aria-label='A of the comparison'] .map .chunk").count() === 10, "the chunks are not those of the map");
  });
  await test("Compare: an entry is the one that the map makes, where A has another one with its number", async () => {
    await compare(page, titan, few.made);
    await openMap(page);
    await group(page).locator("input[type=file]").setInputFiles(few.map);
    await verdict(page, /^1 entry with equal names/);
    await filtered(page, "few", "1 match");
    await entries(page).click();
    await section(page, "A of the comparison").locator(".facts", { hasText: /shape\s*30(?!\d)/ }).waitFor();
    await page.getByRole("button", { name: /^Statistics/ }).click();
    await expectMax(page, valuesOf("llama3.safetensors", "layers.1.ffn_norm.weight"));
  });
}

async function testMisfit(page, { titan, hf, mine, own }) {
  await test("Compare: a map that does not fit is an error at its fields, and goes with the map", async () => {
    await compare(page, titan, hf);
    await filtered(page, "tok_embeddings", "1 match");
    await entries(page).click();
    await page.locator("aside h2", { hasText: "tok_embeddings.weight" }).waitFor();
    await openMap(page);
    await choose(page, "transformers-mixtral");
    await page.locator(".compared .trouble", { hasText: "is missing, which the map requires of every model" }).waitFor();
    check(!/damaged/.test(await page.locator(".compared .trouble").textContent()), "the file is called damaged");
    const refused = spawnSync(native, ["diff", titan, hf, "--map", "transformers-mixtral"], { encoding: "utf8" });
    check(refused.status === 2 && refused.stderr.includes(await page.locator(".compared .trouble strong").textContent()), refused.stderr);
    check(await page.locator(".page > .trouble").count() === 0 && await page.locator(".verdict-line").count() === 0 && await page.locator(".window").count() === 0, "there are results or other errors");
    check(await page.locator("aside h2", { hasText: "tok_embeddings" }).count() === 0, "the entry of the comparison before is still shown");
    await values(page).click();
    await page.locator(".compared .trouble", { hasText: "is missing" }).waitFor();
    await values(page).click();
    await choose(page, "");
    await verdict(page, /^\d+ only in A/);
    check(await page.locator(".compared .trouble").count() === 0, "the error stays");
    await expectDiff(page, diffOf(titan, hf));
  });
  await test("Compare: a map in a file, which is chosen and forgotten", async () => {
    await group(page).locator("input[type=file]").setInputFiles(own);
    await group(page).getByRole("button", { name: path.basename(own), exact: true }).waitFor(); // it is read, and the verdict is of it
    await verdict(page, /^\d+ only in A/);
    await expectDiff(page, diffOf(titan, hf, "--map", own));
    await compare(page, titan, mine);
    await openMap(page);
    await group(page).locator("input[type=file]").setInputFiles(own);
    await verdict(page, /^30 entries with equal/);
    await values(page).click();
    await verdict(page, /^30 entries equal, values included/);
    await expectDiff(page, diffOf(titan, mine, "--values", "--map", own));
    await page.getByRole("button", { name: "Forget the map file" }).click();
    await verdict(page, /perhaps renamed, 0 entries equal, values included/);
    await expectDiff(page, diffOf(titan, mine, "--values"));
  });
}

async function testChoice(page, { titan, hf }) {
  await test("the map is one choice of Convert, Compare and Names, and ends with the checkpoint", async () => {
    await compare(page, titan, hf);
    await goTo(page, "Convert…");
    await choose(page, MAP);
    await goTo(page, "Compare");
    await verdict(page, /^30 entries with equal names/);
    check(await group(page).locator("select").inputValue() === MAP, "the fields have no map");
    await page.getByRole("button", { name: "Another B" }).click();
    await pick(page, hf);
    await verdict(page, /^30 entries with equal names/);
    await goTo(page, "Names");
    check(await group(page).locator("select").inputValue() === MAP, "Names has no map");
    await choose(page, "");
    await goTo(page, "Compare");
    await verdict(page, /^\d+ only in A/);
    await goTo(page, "Names");
    await choose(page, MAP);
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Names");
    await page.locator("section[aria-label=Names] > [role=status]").waitFor();
    check(await group(page).locator("select").inputValue() === "", "the map outlived its checkpoint");
  });
  await test("a link is not about a name that only the map makes", async () => {
    const { url } = await page.evaluate(() => ({ url: location.href.split("#")[0] }));
    await page.goto(`${url}?url=safetensors_index/model.safetensors.index.json`);
    await page.locator(".window .row .text").first().waitFor();
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: "dcp_fsdp2" }).first().click();
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
    await openMap(page);
    await group(page).locator("input[type=file]").setInputFiles({ name: "all.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify({ schema: "tessera.map/1", rules: [{ from: ["{all...}"], to: ["mapped.{all...}"] }] })) });
    await filtered(page, "mapped", "matches");
    await entries(page).first().click();
    await page.locator("aside h2", { hasText: "mapped" }).waitFor();
    await goTo(page, "Share");
    const link = await page.locator(".command code").textContent();
    check(!new URL(link).searchParams.has("entry"), link);
    await page.goto(url);
  });
}

async function testNames(page, { titan, hf, wrapped, own }) {
  const names = page.locator("section[aria-label=Names]"), status = names.locator("> [role=status]"), rows = page.locator("[aria-label='Names and canonical names'] tbody tr");
  const fqn = (target, ...args) => JSON.parse(tessera("fqn", "--checkpoint", target, "--json", ...args));
  const expectNames = async (target, ...args) => {
    const want = fqn(target, ...args);
    await rows.nth(Math.min(want.names.length, 500) - 1).waitFor();
    const [ours, theirs] = [await exported(page), want].map((d) => JSON.stringify(d));
    check(ours === theirs, `${ours} instead of ${theirs}`);
    const shown = await rows.evaluateAll((list) => list.map((r) => [r.children[0].textContent, r.children[1].textContent]));
    check(JSON.stringify(shown) === JSON.stringify(want.names.map((n) => [n.raw, n.fqns.join(" ")])), JSON.stringify(shown));
  };
  await test("Names: those that the map makes, canonicalized as `tessera fqn --map` does", async () => {
    await open(page, titan);
    await goTo(page, "Names");
    await status.waitFor();
    await choose(page, MAP);
    await rows.filter({ hasText: "model.layers.0.self_attn.q_proj.weight" }).waitFor();
    await expectNames(titan, "--map", MAP);
    await choose(page, "torchtitan-qwen3");
    await names.locator("> .trouble").waitFor();
    const refused = spawnSync(native, ["fqn", "--checkpoint", titan, "--map", "torchtitan-qwen3"], { encoding: "utf8" });
    check(refused.status === 2 && refused.stderr.includes(await names.locator("> .trouble strong").textContent()), refused.stderr);
    check(await rows.count() === 0 && await page.locator(".page > .trouble").count() === 0, "there are names or other errors");
    await choose(page, "");
    await status.filter({ hasText: "All 30 names are canonical already." }).waitFor();
    check(await names.locator("> .trouble").count() === 0, "the error stays");
  });
  await test("Names: wrappers that the map puts in, and the map backwards", async () => {
    await group(page).locator("input[type=file]").setInputFiles(wrapped);
    await status.filter({ hasText: "30 of 30 names change." }).waitFor();
    await expectNames(titan, "--map", wrapped);
    await page.locator("li", { hasText: "module" }).first().waitFor();
    await open(page, hf);
    await goTo(page, "Names");
    await choose(page, MAP);
    await names.locator("> .trouble").waitFor();
    await group(page).getByLabel("Apply the map backwards").check();
    await rows.filter({ hasText: "tok_embeddings.weight" }).waitFor();
    await expectNames(hf, "--map", MAP, "--inverse");
  });
}

/** Models of 54 MiB: layers.N.w of A becomes blocks.N.w, transposed. Values of two tensors differ. */
function makeLarge(directory) {
  const rows = 256, columns = 2048, count = 28, size = rows * columns;
  const at = ["large-a.safetensors", "large-b.safetensors"].map((name) => path.join(directory, name)), map = path.join(directory, "large.json");
  const [a, b] = [new Float32Array(size * count), new Float32Array(size * count)];
  for (let i = 0; i < a.length; i++) {
    const tensor = Math.floor(i / size), row = Math.floor((i % size) / columns), column = i % columns;
    a[i] = b[tensor * size + column * rows + row] = tensor * 1000 + (i % size) / 7;
  }
  b[5 * size + 77] += 0.5;
  b.fill(NaN, 20 * size + 5, 20 * size + 9);
  const header = (name, shape) => Object.fromEntries(Array.from({ length: count }, (_, i) => [`${name}.${i}.w`, { dtype: "F32", shape, data_offsets: [4 * size * i, 4 * size * (i + 1)] }]));
  write(at[0], header("layers", [rows, columns]), Buffer.from(a.buffer));
  write(at[1], header("blocks", [columns, rows]), Buffer.from(b.buffer));
  fs.writeFileSync(map, JSON.stringify({ schema: "tessera.map/1", rules: [{ from: ["layers.{i}.w"], to: ["blocks.{i}.w"], do: [{ transpose: [1, 0] }] }] }));
  return { at, map };
}

async function testTeam({ context, url }, directory) {
  const { at: [a, b], map } = makeLarge(directory), page = await context.newPage();
  await allowWorkers(page, 3);
  await page.goto(url);
  await test("several workers compare A through the map", async () => {
    await compare(page, a, b);
    await openMap(page);
    await group(page).locator("input[type=file]").setInputFiles(map);
    await verdict(page, /^28 entries with equal names/);
    let workers = 0;
    page.on("worker", () => { workers++; });
    await values(page).click();
    await verdict(page, /^2 changed, 26 entries equal, values included/);
    await page.getByRole("heading", { name: "1 changed tensor has NaN or infinity" }).waitFor();
    check(workers === 6, `${workers} workers`); // three compare, then three measure
    await expectDiff(page, diffOf(a, b, "--values", "--map", map));
  });
  await page.close();
}

async function testTied(page, { titan, hf }) {
  await test("Compare: copies that the map leaves out are compared before values are, and the error is at the fields", async () => {
    const refused = spawnSync(native, ["diff", titan, hf, "--values", "--map", MAP], { encoding: "utf8" });
    check(refused.status === 2 && refused.stderr.includes("tie_word_embeddings"), refused.stderr);
    await compare(page, titan, hf);
    await openMap(page);
    await choose(page, MAP);
    await verdict(page, "values not compared yet");
    await values(page).click();
    await page.locator(".compared .trouble").waitFor();
    check(refused.stderr.includes(await page.locator(".compared .trouble strong").textContent()), await page.locator(".compared .trouble").textContent());
    await page.getByRole("button", { name: /^Values/, pressed: false }).waitFor();
    await page.locator(".compared .trouble", { hasText: "tie_word_embeddings" }).waitFor();
  });
}

function makeModels(directory) {
  const own = path.join(directory, "my map.json"), wrapped = path.join(directory, "wrapped.json"), all = (to) => JSON.stringify({ schema: "tessera.map/1", rules: [{ from: ["{all...}"], to: [to] }] });
  fs.writeFileSync(own, all("mine.{all...}"));
  fs.writeFileSync(wrapped, all("module._orig_mod.{all...}"));
  const titan = model(directory, "titan", ["llama3.safetensors", "llama3.json"]), mine = path.join(directory, "mine.safetensors");
  tessera("convert", titan, mine, "--map", own);
  const few = { map: path.join(directory, "few.json"), made: path.join(directory, "few.safetensors") };
  fs.writeFileSync(few.map, JSON.stringify({ schema: "tessera.map/1", unmatched: "drop", rules: [{ from: ["layers.1.ffn_norm.weight"], to: ["few.norm"] }] }));
  tessera("convert", titan, few.made, "--map", few.map);
  return { titan, mine, own, wrapped, few, hf: model(directory, "hf", ["llama3.hf.safetensors", "llama3.json"]), altered: model(directory, "altered", ["llama3.hf.safetensors", "llama3.json"], alter) };
}

/** A model whose output layer is not the embedding, although its settings state that. */
const makeUntied = (directory) => ({
  titan: model(directory, "untied", ["llama3-tied.safetensors", "llama3-tied.json"], (header, data) => data.writeFloatLE(-9, header["lm_head.weight"].data_offsets[0])),
  hf: model(directory, "untied-hf", ["llama3-tied.hf.safetensors", "llama3-tied.json"]),
});

export async function testMaps({ page, url, context, broken }) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-maps-"));
  try {
    const models = makeModels(directory);
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await testCompare(page, models);
    await testMisfit(page, models);
    await testTied(page, makeUntied(directory));
    await testNames(page, models);
    await testChoice(page, models);
    await testTeam({ context, url }, directory);
    await test("no map breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(directory, { recursive: true });
  }
}
