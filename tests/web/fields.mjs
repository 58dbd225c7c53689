/** The fields of forms: what is typed stays as it is, every option that a message names has a field, and the same bytes are
 *  written as with the option. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { root, rowsOf, samples } from "./browser.mjs";
import { chosenFiles, clearChosen, expectSame, filesBelow, lendPlaces, tessera } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { load } from "./pure.mjs";
import { goTo, showFields, open as openFiles } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");
const forms = (page) => page.locator("section[aria-label='Another form']");
const save = (page) => page.locator("section[aria-label=Save]");
const command = (page) => page.locator(".command code").textContent();

async function open(page, target, view) {
  await openFiles(page, target);
  await goTo(page, view);
}

/** Saves under the name "one". Returns the files that were written, by their names below it. */
async function written(page) {
  await save(page).getByLabel("Name").fill("one");
  await page.getByRole("button", { name: "Save…", exact: true }).and(page.locator(":enabled")).waitFor();
  await page.getByRole("button", { name: "Save…", exact: true }).click();
  await page.locator(".written").waitFor();
  return new Map([...await chosenFiles(page)].map(([name, bytes]) => [name.replace(/^one[^/]*\/?/, ""), bytes]));
}

async function testTyping(page) {
  await test("the number of ranks can be typed over", async () => {
    await open(page, path.join(samples, "dcp_fsdp2"), "Reshard…");
    const size = page.getByRole("spinbutton", { name: "Ranks" });
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
    await open(page, path.join(samples, "dcp_fsdp2"), "Names");
    await choose(text);
    await trouble.filter({ hasText: "'notes.json' is not JSON" }).waitFor();
    for (const other of ["7", "null", "[1]"]) {
      fs.writeFileSync(none, other);
      await choose(none);
      await trouble.filter({ hasText: "'none.json' is not a JSON object" }).waitFor();
      await choose(text);
      await trouble.filter({ hasText: "'notes.json' is not JSON" }).waitFor();
    }
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

/** Linear layers: in float8 and in float32 with their scales, and two that can be quantized; and a tensor that repeats one element very often. */
const MAKE = `
import sys, torch
from safetensors.torch import save_file
at = sys.argv[1]
fill = lambda *shape: torch.arange(float(shape[0] * shape[1])).reshape(shape)
save_file({"proj.weight": (fill(256, 130) % 17).to(torch.float8_e4m3fn), "proj.weight_scale_inv": fill(2, 2) + 0.5, "norm.weight": torch.arange(3.)}, at + "/scaled.safetensors")
save_file({"up.weight": fill(256, 130), "up.weight_scale_inv": fill(2, 2) + 0.5}, at + "/float_with_scale.safetensors")
save_file({"up.weight": torch.sin(fill(256, 130)), "down.weight": torch.cos(fill(130, 256))}, at + "/full.safetensors")
torch.save({"w": torch.full((1, 1), 2.5).expand(20000, 20000), "b": torch.arange(5.)}, at + "/repeated.pt")
`;

async function testOptions(page, scratch) {
  if (!fs.existsSync(python)) return skip("fields for options", "there is no .local/venv");
  const p = spawnSync(python, ["-c", MAKE, scratch], { encoding: "utf8" });
  check(p.status === 0, p.stderr);
  const field = (name) => page.locator("form.questions").getByLabel(name, { exact: true });
  const says = (text) => save(page).locator(".trouble", { hasText: text }).waitFor();
  const CASES = [
    ["scaled.safetensors", async () => {
      await field("Floating-point tensors become").selectOption("bfloat16");
      await says("“Cast scaled numbers without their scales” to cast the stored numbers as they are");
      await field("Cast scaled numbers without their scales").check();
    }, ["--dtype", "bfloat16", "--raw-cast"]],
    ["full.safetensors", async () => {
      await field("Weights become").selectOption("fp8-block");
      await field("But keep these as they are").fill("down.*");
    }, ["--quantize", "fp8-block", "--no-quantize", "down.*"]],
  ];
  for (const [file, act, options] of CASES) {
    await test(`${options.find((o) => /^--(raw|no)-/.test(o))} has a field, and the same bytes are written`, async () => {
      await clearChosen(page);
      await lendPlaces(page);
      await open(page, path.join(scratch, file), "Convert…");
      await showFields(page);
      await act();
      check((await command(page)).endsWith(options.map((o) => o.includes("*") ? `'${o}'` : o).join(" ")), await command(page));
      const native = path.join(scratch, `native-${file}`);
      tessera("convert", path.join(scratch, file), native, ...options);
      const got = (await written(page)).get("");
      check(got?.equals(fs.readFileSync(native)), `the bytes are others: ${got?.length} instead of ${fs.statSync(native).size}`);
    });
  }
  await test("--no-quantize is named by its field where a weight has a scale already", async () => {
    await open(page, path.join(scratch, "float_with_scale.safetensors"), "Convert…");
    await showFields(page);
    await field("Weights become").selectOption("fp8-block");
    await says("or leave it as it is with “But keep these as they are”");
  });
  await test("--allow-expansion has a field in Convert and Reshard", async () => {
    for (const view of ["Convert…", "Reshard…"]) {
      await open(page, path.join(scratch, "repeated.pt"), view);
      if (view === "Convert…") {
        await field("Form").selectOption("dcp");
        await showFields(page);
      } else await page.locator(".advanced").evaluate((details) => { details.open = true; });
      await says("leave it out, or use “Accept tensors that repeat stored elements very often”");
      await page.getByLabel("Accept tensors that repeat stored elements very often").check();
      await save(page).getByText("1.5 GiB of tensors").waitFor();
      check(/ --allow-expansion/.test(await command(page)), await command(page));
    }
  });
  await test("--ignore-crc has a field, and the same bytes are written", async () => {
    const source = path.join(samples, "broken_dcp_byte_flipped"), native = path.join(scratch, "ignored");
    await clearChosen(page);
    await lendPlaces(page);
    await open(page, source, "Convert…");
    await showFields(page);
    await field("Form").selectOption("dcp");
    await save(page).getByLabel("Name").fill("one");
    await page.getByRole("button", { name: "Save…", exact: true }).and(page.locator(":enabled")).waitFor();
    await page.getByRole("button", { name: "Save…", exact: true }).click();
    await says("“Accept bytes that do not match their checksums” accepts the bytes as they are");
    await field("Accept bytes that do not match their checksums").check();
    tessera("convert", source, native, "--to", "dcp", "--ignore-crc");
    expectSame(await written(page), filesBelow(native));
  });
  return undefined;
}

async function testObjects(page, scratch) {
  const { bytesText } = await load("text.ts");
  const source = path.join(samples, "dcp_fsdp2"), chosen = page.getByLabel("Non-tensor objects");
  await test("objects that safetensors cannot store are refused only if told to", async () => {
    await open(page, source, "Convert…");
    await save(page).locator("table").waitFor();
    check((await command(page)).endsWith(" --to safetensors --objects sidecar"), await command(page));
    await showFields(page);
    await chosen.selectOption("refuse");
    await save(page).locator(".trouble", { hasText: "which safetensors cannot store" }).waitFor();
  });
  await test("a part without a name is not offered for a selection by names", async () => {
    await open(page, path.join(root, "tests/golden/megatron/layers"), "Convert…");
    const parts = page.getByRole("group", { name: "Parts to write" }).getByRole("button");
    await parts.first().waitFor();
    check((await parts.allTextContents()).join() === "common", (await parts.allTextContents()).join());
  });
  const CASES = [
    ["Everything", ["--objects", "sidecar"], undefined],
    ["Weights only", ["--objects", "drop", "--include", "model.**"], undefined],
    ["Weights for Hugging Face", ["--max-shard-size", "5GB", "--objects", "drop", "--prefix", "model."], { left: "Left out: every tensor whose name does not begin with “model.”, and 14 objects." }],
  ];
  for (const [answer, options, said] of CASES) {
    await test(`Convert: “${answer}” writes what ${options.join(" ")} writes, and says what it leaves out`, async () => {
      const at = fs.mkdtempSync(path.join(scratch, "answer-")), isDirectory = options.includes("--max-shard-size"), native = path.join(at, isDirectory ? "one" : "one.safetensors");
      await clearChosen(page);
      await lendPlaces(page);
      await open(page, source, "Convert…");
      await save(page).locator("table").waitFor();
      if (said) await page.getByRole("button", { name: answer }).click();
      else await page.getByRole("radio", { name: answer }).check();
      if (said) await save(page).getByText(said.left).waitFor();
      const { summary } = JSON.parse(tessera("convert", source, native, ...options, "--json"));
      await written(page);
      const files = filesBelow(at), got = new Map([...await chosenFiles(page)].map(([name, bytes]) => [path.basename(name), bytes]));
      expectSame(got, new Map([...files].map(([name, bytes]) => [path.basename(name), bytes])));
      const listed = await page.locator(".written tbody tr").evaluateAll((rows) => rows.map((r) => [...r.children].map((c) => c.textContent)));
      check(listed.length === files.size && listed.every(([name, size]) => [...files].some(([n, b]) => path.basename(n) === path.basename(name) && size === bytesText(b.length))), JSON.stringify(listed));
      const text = await page.locator(".written p").first().textContent();
      if (said) check((await page.locator(".written").textContent()).includes(said.left), await page.locator(".written").textContent());
      else check(options.includes("drop") ? text.includes(`${summary.left_out} entries left out (`) : text.includes(`${summary.left_out} objects as JSON in `), text);
    });
  }
  await test("Convert: no sample of a DCP ends in an error by default, unless the checkpoint itself is damaged", async () => {
    for (const name of ["dcp_dtypes", "dcp_objects", "dcp_fsdp2_flat_optim", "dcp_tp_fsdp2", "dcp_rank_local", "lightning_dist"]) {
      await open(page, path.join(samples, name), "Convert…");
      await save(page).locator("table, .trouble").first().waitFor();
      check(await save(page).locator(".trouble").count() === 0, `${name}: ${await save(page).locator(".trouble").allTextContents()}`);
    }
  });
}

async function testReshard(page, scratch) {
  await test("Reshard writes only the names that were chosen, as tessera reshard --include --exclude does", async () => {
    const source = path.join(samples, "dcp_fsdp2"), native = path.join(scratch, "some"), options = ["--include", "model.**", "--exclude", "**.bias"];
    await clearChosen(page);
    await lendPlaces(page);
    await open(page, source, "Reshard…");
    await page.getByRole("radio", { name: "Choose" }).check();
    await page.getByLabel("Only names that match").fill("model.**");
    await page.getByLabel("But not").fill("**.bias");
    tessera("reshard", source, native, "--mesh", "dp=2", "--placements", "shard(0)", ...options);
    const { totals, ranks } = JSON.parse(tessera("plan", source, "--mesh", "dp=2", "--placements", "shard(0)", ...options, "--json"));
    await page.locator(".facts", { hasText: new RegExp(`tensors${totals.tensors}(?!\\d)`) }).waitFor();
    const held = ranks.map((r) => r.held), [least, most] = [Math.min(...held), Math.max(...held)], size = (bytes) => bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toFixed(1)} KiB`;
    check(most === totals.held_max && held.length === 2, JSON.stringify(ranks));
    await page.getByRole("img", { name: `What the ranks hold: ${least === most ? `each of 2 ranks holds ${size(most)}` : `2 ranks hold ${size(least)} to ${size(most)}`}` }).waitFor();
    check((await page.locator(".plan-figure title").allTextContents()).every((text, i) => text === `rank ${i} holds ${size(held[i])}, reads ${size(ranks[i].read)} and receives ${size(ranks[i].received)}`), await page.locator(".plan-figure").textContent());
    check((await command(page)).endsWith("--include 'model.**' --exclude '**.bias'"), await command(page));
    expectSame(await written(page), filesBelow(native));
  });
}

async function testOpenAgain(page) {
  const again = page.getByRole("form", { name: "Open again" });
  const reopen = async () => {
    await again.getByRole("button", { name: "Open again" }).click();
    await page.locator("section.view .trouble").waitFor({ state: "detached" });
  };
  const nameOf = (row) => row.replace(/^[▾▸]/, "").split(/ \| |\./)[0]; // a row may join the names of single children
  await test("where a message names --part, one part can be opened, and all of it again", async () => {
    const source = path.join(root, "tests/golden/deepspeed/zero0_bf16_twins");
    await open(page, source, /^Problems/);
    await again.waitFor();
    await goTo(page, "Convert…");
    await save(page).locator(".trouble", { hasText: "open the 16-bit weights with “Only the part: module”" }).waitFor();
    await again.getByLabel("Only the part").fill("module");
    await reopen();
    await save(page).locator("table").waitFor();
    check((await command(page)).endsWith(" --part module"), await command(page));
    await goTo(page, "Contents");
    const want = JSON.parse(tessera("inspect", source, "--part", "module", "--json")).entries.map((e) => e.fqn.split(".")[0]);
    const got = (await rowsOf(page)).map(nameOf).filter((name) => want.includes(name));
    check(JSON.stringify(got) === JSON.stringify([...new Set(want)]), JSON.stringify(await rowsOf(page)));
    await goTo(page, "Convert…");
    await again.getByLabel("Only the part").fill("nosuch");
    await again.getByRole("button", { name: "Open again" }).click();
    await page.locator(".page > .trouble", { hasText: "there is no part 'nosuch'" }).waitFor();
    await again.getByLabel("Only the part").fill("");
    await again.getByRole("button", { name: "Open again" }).click();
    await save(page).locator(".trouble", { hasText: "have no names" }).waitFor();
  });
  await test("where the help about a problem names --shards, the ranks can be joined", async () => {
    await open(page, path.join(samples, "broken_ranks_differ"), /^Problems/);
    await page.locator(".findings", { hasText: "--shards" }).waitFor();
    await again.getByLabel("Ranks are joined by").waitFor();
  });
  await test("where a message names --shards, the ranks can be joined", async () => {
    await open(page, path.join(root, "tests/golden/meta/llama3-2"), "Reshard…");
    await page.locator("section.view .outcome > .current .trouble", { hasText: "use “Ranks are joined by” to join them" }).waitFor();
    await again.getByLabel("Ranks are joined by").selectOption("meta-llama");
    await reopen();
    await page.locator("[aria-label=Ranks] tbody tr").first().waitFor();
    const whole = fs.readFileSync(path.join(root, "tests/golden/meta/llama3-2.safetensors")); // joined by transformers' own converter
    const { shape } = JSON.parse(whole.subarray(8, 8 + Number(whole.readBigUInt64LE())))["lm_head.weight"];
    await goTo(page, "Contents");
    await page.locator('.window [role="row"]', { hasText: "output" }).first().waitFor();
    const rows = await rowsOf(page), at = rows.findIndex((r) => r.includes("output"));
    check(rows[at]?.startsWith(`output.weight | ${shape.join(" × ")} | `), JSON.stringify([shape, rows]));
  });
  await test("what a form lacks is said in words of the page", async () => {
    await open(page, path.join(root, "tests/golden/deepspeed/zero1_pipeline_tp"), "Optimizer");
    await forms(page).locator(".trouble", { hasText: "leave them out with “But not” in Convert" }).waitFor();
    await goTo(page, "Reshard…");
    const trouble = page.locator("section.view .outcome > .current .trouble", { hasText: "leave them out with “But not”" });
    await trouble.waitFor();
    check(!/--|\(convert, /.test(await trouble.textContent()), await trouble.textContent());
    await goTo(page, "Would it load?");
    await page.getByRole("button", { name: "Export layout.json" }).click();
    await page.locator(".page > .trouble", { hasText: "with --exclude" }).filter({ hasText: "Convert and Reshard have fields for most of them" }).waitFor();
  });
}

export async function testFields({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-fields-"));
  try {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await testTyping(page);
    await testDocuments(page, scratch);
    await testOptions(page, scratch);
    await testObjects(page, scratch);
    await testReshard(page, scratch);
    await testOpenAgain(page);
    await test("no field breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
