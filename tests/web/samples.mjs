/** Opens every sample through the page's own pickers: the page reports what the command line reports, for sound and broken
 *  ones, and stays usable. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { pick, root, rowsIn, samples } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";

const native = path.join(root, "build/release/bin/tessera");

function validated(target) {
  let p = spawnSync(native, ["validate", target, "--format", "json"], { encoding: "utf8", maxBuffer: 1 << 28 });
  check(p.error === undefined, `${native} does not run: ${p.error}`);
  if (p.status === 1 && p.stdout.includes("parts/incomplete-save")) {
    // The page opens what inspect opens, but not an interrupted save whose names are unknown.
    const inspect = spawnSync(native, ["inspect", target], { encoding: "utf8" });
    if (inspect.status === 2) p = inspect;
  }
  return p.status === 2 ? { refusal: p.stderr } : JSON.parse(p.stdout);
}

async function findingsOf(page) {
  await page.getByRole("tab", { name: /^Problems/ }).click();
  await page.locator('section[aria-label="Problems"]').waitFor();
  const more = page.getByRole("button", { name: /^Show all \d/ });
  while (await more.count()) await more.first().click();
  return page.locator(".findings > li").evaluateAll((groups) => groups.flatMap((g) => [...g.querySelectorAll(".message")].map((m) => `${g.querySelector("code").textContent} ${m.textContent}`)));
}

const shown = (message) => message.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The overview and the verdict state what the documents of `inspect` and `validate` have. */
async function testOverview(page, target, { findings }) {
  const p = spawnSync(native, ["inspect", target, "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
  const { summary, entries } = JSON.parse(p.stdout), perRank = entries.filter((e) => e.per_rank).length, count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`.replace(/\B(?=(\d{3})+\b)/g, ",");
  const absent = new Set(findings.filter((f) => f.rule === "dcp/missing-file").map((f) => f.file)).size, files = summary.files + absent;
  const more = `${summary.objects ? `, ${count(summary.objects, "object")}` : ""}${summary.opaque ? `, ${count(summary.opaque, "opaque entry", "opaque entries")}` : ""}`;
  const line = await page.locator("aside .quiet").first().textContent(), tensors = `${count(summary.tensors, "tensor")}${perRank ? ` (${perRank} of them ${perRank === 1 ? "differs" : "differ"} from rank to rank)` : ""} in `;
  check(line.startsWith(tensors) && line.includes(`${more}.`) && (files === 0 || line.startsWith(`${tensors}${count(files, "file")}${more}.`)), `'${line}' for ${JSON.stringify(summary)}`);
  const bad = findings.filter((f) => f.level !== "note").length, verdict = await page.locator(".verdict").textContent();
  check(/^Structure OK/.test(verdict) === (bad === 0), `'${verdict}' for ${bad} errors and warnings`);
}

const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
/** The size that the command prints for so many bytes: binary units, with one digit. */
function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"], at = bytes < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(bytes) / 10));
  return at === 0 ? `${bytes} B` : `${(bytes / 1024 ** at).toFixed(1)} ${units[at]}`;
}

/** The header's sentence, the rows that are drawn, and the totals of a filter have the numbers of the document of `inspect`. */
async function testNumbers(page, target) {
  const { summary, entries } = JSON.parse(spawnSync(native, ["inspect", target, "--json"], { encoding: "utf8", maxBuffer: 1 << 28 }).stdout), about = await page.locator(".about").textContent();
  const dtypes = Object.keys(summary.dtypes), named = about.split(" · ").at(-1).split(/, | and /);
  if (summary.bytes > 0) check(about.split(" · ").includes(sizeText(summary.bytes)), `'${about}' does not have ${sizeText(summary.bytes)}`);
  if (dtypes.length) check(named.filter((text) => dtypes.includes(text)).length === Math.min(2, dtypes.length) && (dtypes.length < 3 || about.endsWith(` and ${dtypes.length - 2} more`)), `'${about}' for ${dtypes}`);
  const left = entries.map((e) => [e.fqn, e.kind === "tensor" && !e.per_rank ? `${e.shape.length ? e.shape.join(" × ") : "scalar"} | ${e.dtype} | ${sizeText(e.bytes)}` : undefined, e.per_rank ? "per rank" : e.kind]);
  for (const text of await (await rowsIn(page, ":not(.group)")).evaluateAll((rows) => rows.map((r) => [r.querySelector(".text").textContent, [...r.children].slice(1, 4).map((c) => c.textContent.trim()).join(" | ")]))) {
    const [name, cells] = text, at = left.findIndex(([fqn, want, kind]) => (shown(fqn || "(empty name)") === name || shown(fqn).endsWith(`.${name}`)) && (want === undefined ? cells.split(" | ").some((cell) => cell.endsWith(kind)) : want === cells));
    check(at >= 0, `the row '${name} | ${cells}' is of no entry: ${JSON.stringify(left.filter(([fqn]) => shown(fqn).endsWith(name)))}`);
    left.splice(at, 1);
  }
  await page.getByLabel("Filter").fill("kind:tensor");
  await page.locator(".filter [role=status][aria-busy=false]", { hasText: new RegExp(`^${grouped(summary.tensors)} match(es)?\\b`) }).waitFor();
  const totals = await page.locator(".filter [role=status][aria-busy=false]").textContent();
  if (summary.tensors > 0 && !entries.some((e) => e.per_rank)) check((summary.elements >= 1000 || totals.includes(` · ${summary.elements} element`)) && totals.endsWith(` · ${sizeText(summary.bytes)}`), `'${totals}' for ${JSON.stringify(summary)}`);
  await page.getByLabel("Filter").fill("");
}

/** The table of files has the names and the sizes of the files. */
async function testFiles(page, target) {
  await page.getByRole("tab", { name: "Files" }).click();
  const table = page.locator("[aria-label='File table'] tbody tr");
  await page.getByRole("region", { name: "File table" }).waitFor();
  const isFile = fs.statSync(target).isFile(), rows = await table.evaluateAll((l) => l.map((r) => [r.querySelector("button")?.textContent ?? r.cells[0].textContent, [...r.cells].slice(1).map((c) => c.textContent)]));
  for (const [name, cells] of rows) {
    const file = isFile ? target : path.join(target, name);
    if (!fs.existsSync(file)) continue; // absent, which the table of findings says
    check(cells.includes(sizeText(fs.statSync(file).size)), `${name}: ${cells} instead of ${sizeText(fs.statSync(file).size)}`);
  }
}

async function testSample(page, target) {
  const want = validated(target);
  await pick(page, target);
  await page.locator('.tabs, .trouble[role="alert"]').first().waitFor();
  if (want.refusal !== undefined) {
    const said = await page.locator(".trouble strong").textContent();
    check(shown(want.refusal).includes(said), `the page says '${said}', the command line '${want.refusal.trim()}'`);
    check(/Code: \S/.test(await page.locator(".trouble").textContent()), "no code is given");
    return;
  }
  await testOverview(page, target, want);
  await testNumbers(page, target);
  await testFiles(page, target);
  const got = await findingsOf(page);
  const told = want.findings.map((f) => `${f.rule} ${shown(f.message)}`).sort();
  check(JSON.stringify(got.sort()) === JSON.stringify(told), `findings ${JSON.stringify(got)} instead of ${JSON.stringify(want.findings)}`);
}

export async function testSamples({ page, url, broken }) {
  await page.goto(url);
  for (const name of fs.readdirSync(samples).filter((n) => n.endsWith(".expect.json"))) {
    const expected = JSON.parse(fs.readFileSync(path.join(samples, name), "utf8"));
    const target = path.join(samples, expected.path ?? name.slice(0, -".expect.json".length));
    const isPart = fs.statSync(target).isFile() && (target.endsWith(".json") || path.basename(target) === ".metadata");
    await test(`${path.relative(samples, target)} in the page`, async () => {
      await page.getByRole("button", { name: "Tessera", exact: true }).click();
      await testSample(page, isPart ? path.dirname(target) : target);
    });
  }
  await test("no sample breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
