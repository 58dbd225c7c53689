/** What Compare and Convert state about every form of samples is what the documents of `tessera diff` and `tessera convert` have. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { pick, rowsIn, samples } from "./browser.mjs";
import { clearChosen, chosenFiles, diffOf, expectSame, filesBelow, lendPlaces, native } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { filter } from "./truth.mjs";
import { goTo, open } from "./views.mjs";

const run = (...args) => spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 });
const document = (...args) => JSON.parse(run(...args, "--json").stdout);
const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
const plural = (n, one, many = `${one}s`) => `${grouped(n)} ${n === 1 ? one : many}`;
function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"], at = bytes < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(bytes) / 10));
  return at === 0 ? `${bytes} B` : `${(bytes / 1024 ** at).toFixed(1)} ${units[at]}`;
}
const shown = (text) => text.replace(/(?! )[\p{C}\p{Z}\p{DI}\u2800]/gu, (c) => { const code = c.codePointAt(0).toString(16); return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`; }) || "(empty name)";

/** One sound sample of each form: a format, with or without objects, opaque entries and tensors that differ from rank to rank. */
function sampleOfEachForm() {
  const names = fs.readdirSync(samples).filter((n) => n.endsWith(".expect.json") && !/^(broken|unsupported)_/.test(n)), ofForm = new Map();
  for (const name of names) {
    const at = path.join(samples, JSON.parse(fs.readFileSync(path.join(samples, name), "utf8")).path ?? name.slice(0, -".expect.json".length)), target = at.endsWith(".json") ? path.dirname(at) : at, { status, stdout } = run("inspect", target, "--json");
    if (status !== 0) continue;
    const { format, summary: { objects, opaque, tensors }, entries } = JSON.parse(stdout), form = [format, ...[objects, opaque, tensors, entries.some((e) => e.per_rank)].map(Boolean)].join();
    if (entries.length && !ofForm.has(form)) ofForm.set(form, target);
  }
  return [...ofForm.values()];
}

/* ---- Compare ---- */

const sideText = (side) => side === undefined ? "–" : side.kind === "tensor" ? `${side.dtype} ${side.shape.length ? side.shape.join(" × ") : "scalar"}` : side.repr ?? side.kind;

/** The sentences above the rows. */
function sentencesOf(diff, [ofA, ofB]) {
  const { summary: s, metadata: m } = diff, onlyA = s.removed - s.renamed, onlyB = s.added - s.renamed, texts = m.added.length + m.removed.length + m.changed.length;
  const both = ofA - onlyA, counts = [s.changed && `${grouped(s.changed)} changed`, onlyA && `${grouped(onlyA)} only in A`, onlyB && `${grouped(onlyB)} only in B`, s.renamed && `${grouped(s.renamed)} perhaps renamed`, texts && `${plural(texts, "text")} of __metadata__ differ${texts === 1 ? "s" : ""}`];
  return {
    verdict: `${[...counts.filter(Boolean), `${plural(s.same, "entry", "entries")} ${s.values_compared ? "equal, values included" : "with equal names, dtypes, shapes and objects; values not compared yet"}`].join(", ")}.`,
    sums: `A has ${plural(ofA, "entry", "entries")}, B has ${grouped(ofB)}; ${grouped(both)} of them are in both.`,
    chips: [["Differences", s.changed + onlyA + onlyB + s.renamed], ["Changed", s.changed], ["Only in A", onlyA], ["Only in B", onlyB], ["Perhaps renamed", s.renamed]].filter(([, n]) => n > 0).map(([label, n]) => `${label} ${grouped(n)}`),
  };
}

/** What each row of an entry that differs has to say. */
function marksOf({ changed, added, removed, renamed }) {
  const from = new Set(renamed.map((r) => r.a)), to = new Set(renamed.map((r) => r.b));
  return new Map([
    ...changed.map((c) => [c.fqn, [`≠ changed: ${c.what.map((w) => w === "layout" ? "sharding" : w).join(", ")}`, sideText(c.a), sideText(c.b)]]),
    ...removed.filter((fqn) => !from.has(fqn)).map((fqn) => [fqn, ["− only in A"]]),
    ...added.filter((fqn) => !to.has(fqn)).map((fqn) => [fqn, ["+ only in B"]]),
    ...renamed.map((r) => [r.a, [`→ renamed to ${shown(r.b)}`]]),
  ]);
}

/** Returns the rows that are drawn, with whole names: those of a tree are without what their groups say. */
async function rowsWithNames(page) {
  const rows = await (await rowsIn(page)).evaluateAll((list) => list.sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)
    .map((r) => [Number(r.ariaLevel), r.querySelector(".text").textContent, ...[...r.querySelectorAll(".change, .side")].map((c) => c.textContent.trim())]));
  const groups = [];
  return rows.map(([level, text, ...cells]) => {
    groups.splice(level - 1, Infinity, text.replace(/ … .*/, "")); // of layers that are alike, the first
    return [groups.join("."), ...cells];
  });
}

/** Each row of an entry that differs says how. The document of a diff does not compare the values of renamed entries. */
async function expectRows(page, diff) {
  const want = marksOf(diff), ofShown = new Map([...want].map(([fqn, marks]) => [shown(fqn), marks]));
  if (want.size === 0) return;
  await filter(page, "is:different", `${grouped(want.size)} match`);
  const rows = (await rowsWithNames(page)).filter(([, change]) => change && !/^\d[\d,]* differences?$/.test(change));
  check(rows.length > 0, "no row says how an entry differs");
  for (const [name, change, ...sides] of rows) {
    const [mark, ...ofSides] = ofShown.get(name) ?? [];
    check(mark === change.replace(/; [\d,]+ differences? below$|; values (equal|differ)$/, "") && ofSides.every((text, i) => shown(text).startsWith(sides[i].replace(/…$/, ""))), `the row '${[name, change, ...sides].join(" | ")}' instead of '${[mark, ...ofSides].join(" | ")}'`);
  }
}

async function expectComparison(page, diff, entries) {
  const want = sentencesOf(diff, entries), line = page.locator(".current[aria-busy=false] .verdict-line");
  await line.filter({ hasText: diff.summary.values_compared ? "values included" : "values not compared yet" }).waitFor();
  check(await line.textContent() === want.verdict, `'${await line.textContent()}' instead of '${want.verdict}'`);
  check(await page.locator(".sums").textContent() === want.sums, `'${await page.locator(".sums").textContent()}' instead of '${want.sums}'`);
  const chips = await page.locator(".chip-line .chip").allTextContents();
  check(JSON.stringify(chips) === JSON.stringify(want.chips), `${chips} instead of ${want.chips}`);
  await expectRows(page, diff);
}

export async function testComparedForms({ page, url, broken }) {
  await page.goto(url);
  const targets = sampleOfEachForm(), entriesOf = (target) => document("inspect", target).entries.length;
  for (const [i, a] of targets.entries()) {
    const b = targets[(i + 1) % targets.length];
    await test(`${path.basename(a)} compared with ${path.basename(b)}`, async () => {
      const entries = [a, b].map(entriesOf), values = run("diff", a, b, "--values", "--json");
      await open(page, a);
      await goTo(page, "Compare");
      await pick(page, b);
      await expectComparison(page, diffOf(a, b), entries);
      await page.getByRole("button", { name: /^Values/ }).click();
      if (values.status < 2) return expectComparison(page, JSON.parse(values.stdout), entries);
      const said = page.locator(".compared .trouble strong");
      await said.waitFor();
      check(shown(values.stderr.trim()).endsWith(await said.textContent()), `'${await said.textContent()}' instead of '${values.stderr.trim()}'`);
      return undefined;
    });
  }
  await test("no comparison breaks the page", () => check(broken.length === 0, broken.join("; ")));
}

/* ---- Convert ---- */

/** The words of a command for a shell. */
const wordsOf = (text) => [...text.matchAll(/(?:'[^']*'|\\.|[^\s'\\])+/g)].map(([word]) => word.replace(/'([^']*)'|\\(.)/g, (_, quoted, one) => quoted ?? one));

/** The sentence about what was written. */
function writtenText({ summary: s, entries }, files, sidecar) {
  const why = new Map(), aside = entries.filter((e) => e.left_out === "written to the sidecar").length, left = s.left_out - aside;
  for (const { left_out: text } of entries) if (text && text !== "written to the sidecar") why.set(text, (why.get(text) ?? 0) + 1);
  const reason = ([text, n]) => text === "objects are dropped" ? plural(n, "object") : `${grouped(n)} ${text}`;
  const more = [s.cast && `${plural(s.cast, "tensor")} cast`, s.kept && `${plural(s.kept, "scalar")} of optimizer state not cast`, s.copied && `${plural(s.copied, "tied tensor")} copied`, aside && `${plural(aside, "object")} as JSON in ${sidecar}`, left && `${plural(left, "entry", "entries")} left out (${[...why].map(reason).join(", ")})`].filter(Boolean);
  return `Wrote ${plural(s.tensors, "tensor")}${s.objects ? ` and ${plural(s.objects, "object")}` : ""} to chosen: ${sizeText(files.reduce((n, [, bytes]) => n + bytes.length, 0))} in ${plural(files.length, "file")}${more.length ? `; ${more.join(", ")}` : ""}.`;
}

const cellsOf = (page, label) => page.getByRole("region", { name: label }).locator("tbody tr").evaluateAll((rows) => rows.map((r) => [...r.cells].map((c) => c.textContent)));

async function expectConversion(page, target, scratch) {
  const save = page.locator("section[aria-label=Save]"), button = page.getByRole("button", { name: "Save…", exact: true });
  await save.locator(".current[aria-busy=false]").waitFor({ state: "attached" });
  await save.locator("table, .trouble").first().waitFor();
  if (await save.getByRole("heading", { name: "What was written" }).count()) return; // another answer led to the same conversion
  const [, , , name, ...options] = wordsOf(await page.locator(".command code").textContent()), at = path.join(scratch, "out");
  fs.rmSync(at, { recursive: true, force: true });
  fs.mkdirSync(at);
  const done = run("convert", target, path.join(at, name), ...options, "--json");
  if (done.status !== 0) {
    const said = await save.locator(".trouble strong").first().textContent(), [plain] = said.split(/[“:;]/);
    check(done.status === 2 && done.stderr.includes(plain.trim()), `'${said}' instead of '${done.stderr.trim()}'`);
    check(await button.isDisabled(), "what the command refuses can be saved");
    return;
  }
  const result = JSON.parse(done.stdout), isFile = fs.statSync(path.join(at, name)).isFile(), files = [...filesBelow(isFile ? at : path.join(at, name))];
  const preview = await cellsOf(page, "Files that would be written"), ahead = `${sizeText(result.summary.bytes)} of tensors; ${plural(preview.length, "file")}.`;
  check(await save.locator(".current p[role=status]").first().textContent() === ahead, `'${await save.locator(".current p[role=status]").first().textContent()}' instead of '${ahead}'`);
  for (const [file, size] of preview) {
    const [, bytes] = files.find(([own]) => own === file) ?? [];
    check(bytes && (size === "known when written" || size === sizeText(bytes.length)), `the preview has '${file}' of ${size}; the command wrote ${files.map(([own, b]) => `${own} ${b.length}`)}`);
  }
  await save.getByText(isFile && files.length === 1 ? "The browser asks where to put the file." : "The browser asks for a directory. A new directory with this name is made in it.").waitFor();
  await button.click();
  await save.getByRole("heading", { name: "What was written" }).waitFor(); // what an earlier one wrote is still shown before that
  const got = [...await chosenFiles(page)].map(([file, bytes]) => [isFile && files.length === 1 ? file : file.slice(file.indexOf("/") + 1), bytes]); // several files are in a directory
  expectSame(new Map(got), new Map(files));
  const rows = await cellsOf(page, "Files that were written"), want = files.map(([file, bytes]) => [file, sizeText(bytes.length)]), sorted = (list) => JSON.stringify(list.map((row) => row.join(" ")).sort());
  check(sorted(rows.map(([file, size]) => [file || name, size])) === sorted(want), `${JSON.stringify(rows)} instead of ${JSON.stringify(want)}`);
  const said = (await save.locator(".written p").first().textContent()).replace(/ to (?:chosen|.*?): /, " to chosen: "), sidecar = files.find(([file]) => file.endsWith("objects.json"))?.[0];
  check(said === writtenText(result, files, sidecar), `'${said}' instead of '${writtenText(result, files, sidecar)}'`);
  const warnings = await save.locator(".written > .names li").allTextContents();
  check(warnings.length === (result.warnings ?? []).length, `${JSON.stringify(warnings)} instead of ${JSON.stringify(result.warnings)}`);
}

const FORMS = ["torch", "dcp", "safetensors", "megatron-dist", "deepspeed-universal"];

export async function testConvertedForms({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-forms-"));
  try {
    await page.goto(url);
    for (const [i, target] of sampleOfEachForm().entries()) {
      const form = FORMS[i % FORMS.length], begin = async () => { await clearChosen(page); await lendPlaces(page); };
      await test(`${path.basename(target)} converted: everything, the weights, and to ${form}`, async () => {
        await begin();
        await open(page, target);
        await goTo(page, "Convert…");
        await expectConversion(page, target, scratch);
        await begin();
        await page.getByRole("button", { name: "Weights for Hugging Face" }).click();
        await expectConversion(page, target, scratch);
        await begin();
        await page.getByRole("radio", { name: "Everything" }).check();
        await page.getByLabel("Form", { exact: true }).selectOption(form);
        await expectConversion(page, target, scratch);
      });
    }
    await test("no conversion breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
