/** Compare: two checkpoints dropped together, names and dtypes that are made to fit, a tolerance, NaN, both sides of an entry, and a
 *  series of steps. What the page states is compared with the command and with PyTorch. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { ENTRIES, pick, root, rowsIn, samples } from "./browser.mjs";
import { diffOf } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { count, made } from "./product.mjs";
import { goTo, showExports } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

/** A model, the same one under another prefix and in bfloat16, and steps of a training, with what PyTorch says of each. */
const MAKE = `
import json, sys, torch
from safetensors.torch import save_file
at = sys.argv[1]
torch.manual_seed(3)
model = {"embed.weight": torch.randn(12, 4)}
for i in range(3): model |= {f"layers.{i}.q.weight": torch.randn(4, 4), f"layers.{i}.up.weight": torch.randn(6, 4)}
save_file(model, at + "/plain.safetensors")
save_file({"model." + k: v for k, v in model.items()}, at + "/wrapped.safetensors")
save_file({k: v.bfloat16() for k, v in model.items()}, at + "/half.safetensors")
said = []
for step in (1, 2, 3):
    now = {k: v * (1 + step / 10) for k, v in model.items()}
    if step > 1: now["layers.1.q.weight"][0, :step] = float("nan")
    save_file(now, f"{at}/step-{step}.safetensors")
    layers = {}
    for k, v in now.items(): layers.setdefault(k.rsplit(".", 1)[0] if k.startswith("embed") else ".".join(k.split(".")[:2]), []).append(v.flatten())
    values = {k: torch.cat(v) for k, v in layers.items()}
    finite = {k: v[v.isfinite()].double() for k, v in values.items()}
    said.append({k: [finite[k].norm().item(), finite[k].std().item(), int((~v.isfinite()).sum())] for k, v in values.items()})
measured = {}
pair = {"near": (torch.randn(300, 5), torch.float32), "far": (torch.randn(70, 20), torch.bfloat16), "turned": (torch.randn(64), torch.float16), "counts": (torch.arange(40), torch.int32), "broken": (torch.randn(9, 9), torch.float32), "equal": (torch.ones(3), torch.float32)}
a = {n: t.to(d) for n, (t, d) in pair.items()}
b = {"near": (a["near"] * 1.001).float(), "far": (a["far"].float() * 0.4 + 0.1).bfloat16(), "turned": -a["turned"], "counts": a["counts"] + 1, "broken": a["broken"].clone(), "equal": a["equal"]}
b["broken"][2, 3], b["broken"][5, 5] = float("nan"), 9.0
a["broken"][0, 1] = float("inf")
for side, tensors in (("a", a), ("b", b)): save_file(tensors, f"{at}/measured_{side}.safetensors")
for n in a:
    finite = a[n].isfinite() & b[n].isfinite()
    x, y = a[n][finite].double(), b[n][finite].double()
    measured[n] = [((x - y).norm() / y.norm()).item(), torch.nn.functional.cosine_similarity(x, y, dim=0).item()]
x, y = (model["layers.0.up.weight"] * 1.1).double(), (model["layers.0.up.weight"] * 1.2).double()
print(json.dumps({"measured": measured, "steps": said, "relative": ((x - y).norm() / y.norm()).item(), "cosine": torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), dim=0).item()}))
`;

const verdict = (page, text) => page.locator(".current[aria-busy=false] .verdict-line", { hasText: text }).waitFor();
const button = (page, name) => page.getByRole("button", { name, exact: typeof name === "string" });

async function compare(page, a, b) {
  await button(page, "Tessera").click();
  await pick(page, a);
  await page.locator(".window .row .text").first().waitFor();
  await goTo(page, "Compare");
  await pick(page, b);
  await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
}

async function exported(page) {
  await showExports(page);
  const [download] = await Promise.all([page.waitForEvent("download"), button(page, "Export JSON").click()]);
  return JSON.parse(fs.readFileSync(await download.path(), "utf8"));
}

async function testTogether(page, context, url, at) {
  const session = await context.newCDPSession(page);
  const drop = async (...files) => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 400, y: 300, data: { items: [], files, dragOperationsMask: 1 } });
  };
  const pairs = [[path.join(samples, "dcp_fsdp2"), path.join(samples, "dcp_hsdp")], [path.join(at, "step-1.safetensors"), path.join(at, "step-2.safetensors")], [path.join(samples, "dcp_fsdp2"), path.join(at, "plain.safetensors")]];
  for (const pair of pairs) {
    await test(`${pair.map((p) => path.basename(p)).join(" and ")}, dropped together, are compared`, async () => {
      await drop(...pair);
      await verdict(page, "values not compared yet");
      check((await page.locator(".pair").textContent()).replace(/\s+/g, " ").trim() === `A ${path.basename(pair[0])} B ${path.basename(pair[1])}`, await page.locator(".pair").textContent());
    });
  }
  await test("of several checkpoints dropped together, all are offered: files, directories and both", async () => {
    const steps = [1, 2, 3].map((n) => path.join(at, `step-${n}.safetensors`)), directories = ["dcp_fsdp2", "dcp_hsdp"].map((name) => path.join(samples, name));
    for (const [dropped, button] of [[steps, "Compare all 3"], [[...directories, steps[0]], "Compare all 3"], [[...directories, ...steps], "Compare all 5"]]) {
      await drop(...dropped);
      await page.getByRole("button", { name: button }).waitFor();
      const names = await page.locator(".choices strong").allTextContents();
      check(names.sort().join() === dropped.map((p) => path.basename(p)).sort().join(), names.join());
    }
    await page.getByRole("button", { name: "Compare all 5" }).click();
    await verdict(page, "values not compared yet");
    await page.locator("ul[aria-label=Columns] li").nth(4).waitFor();
  });
  await test("a checkpoint that is too far down to be searched for is not said to be missing", async () => {
    const low = path.join(at, "far/1/2/3/4/5/6"), top = path.join(at, "far");
    fs.mkdirSync(path.dirname(low), { recursive: true });
    fs.cpSync(path.join(samples, "dcp_fsdp2"), low, { recursive: true });
    await drop(top);
    await page.locator(".trouble", { hasText: "no checkpoint was found, and 'far/1/2/3/4/5' is too far down to be searched" }).waitFor();
    await drop(path.join(top, "1/2"));
    await page.locator(".window .row .text").first().waitFor();
  });
  await test("two shards, and files of two ranks, are one checkpoint", async () => {
    for (const [directory, names] of [["safetensors_index", ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]], ["torch_ranks_replicated", fs.readdirSync(path.join(samples, "torch_ranks_replicated")).filter((n) => n.endsWith(".pt")).slice(0, 2)]]) {
      await drop(...names.map((n) => path.join(samples, directory, n)));
      await page.locator(".window .row .text, .page > .trouble").first().waitFor();
      check(await page.locator(".verdict-line").count() === 0, `${names} are compared`);
    }
  });
  await test("a drop asks the browser for no handle unless dropped checkpoints are to be remembered", async () => {
    await page.goto(url);
    const asked = () => page.evaluate(() => globalThis.asked ?? 0), box = page.getByRole("checkbox", { name: /^Also remember what is dropped/ });
    await page.addInitScript(() => { DataTransferItem.prototype.getAsFileSystemHandle = function () { globalThis.asked = (globalThis.asked ?? 0) + 1; return Promise.resolve(null); }; });
    await drop(path.join(samples, "dcp_fsdp2"));
    await page.locator(".window .row .text").first().waitFor();
    check(await asked() === 0, "it asked");
    await page.goto(url);
    await box.check();
    await drop(path.join(samples, "dcp_fsdp2"));
    await page.locator(".window .row .text").first().waitFor();
    check(await asked() === 1, `it asked ${await asked()} times`);
    await page.goto(url);
    await box.uncheck();
  });
  await session.detach();
}

/** The relative error and the cosine of whole tensors, in their rows. */
async function testMeasures(page, at, { measured }) {
  const rows = async () => (await rowsIn(page)).evaluateAll((list) => list.filter((r) => r.style.transform).map((r) => ({ y: Number(/translateY\((.*)px/.exec(r.style.transform)[1]), cells: [...r.children].map((c) => c.textContent.trim()) })).sort((p, q) => p.y - q.y).map(({ cells }) => [cells[0], ...cells.slice(-2)]));
  const order = async (name) => {
    await page.getByRole("columnheader", { name }).getByRole("button").click();
    await page.locator(`[role=columnheader][aria-sort]:not([aria-sort=none])`, { hasText: name }).waitFor();
    return (await rows()).map(([fqn]) => fqn).filter((fqn) => fqn !== "equal").join(" ");
  };
  await test("rows of changed tensors have the relative error and the cosine that PyTorch computes, NaN first", async () => {
    await compare(page, path.join(at, "measured_a.safetensors"), path.join(at, "measured_b.safetensors"));
    await button(page, /^Values/).click();
    await verdict(page, /^5 changed/);
    await page.getByRole("columnheader", { name: "Cosine" }).waitFor();
    await page.locator(".window .row .measure", { hasText: /\d/ }).first().waitFor();
    const shown = (await rows()).filter(([fqn]) => fqn !== "equal"), number = (text) => Number(text.replace("NaN", ""));
    check(shown.length === 5, JSON.stringify(shown));
    for (const [fqn, relative, cosine] of shown) {
      const [r, c] = measured[fqn];
      check(Math.abs(number(relative) / r - 1) < 5e-4 && Math.abs(number(cosine) - c) < 1e-5 && relative.startsWith("NaN") === (fqn === "broken"), `${fqn}: ${relative} ${cosine} instead of ${r} ${c}`);
    }
    const names = Object.keys(measured).filter((n) => !["broken", "equal"].includes(n));
    const byRelative = ["broken", ...names.sort((p, q) => measured[q][0] - measured[p][0])].join(" ");
    check(await order("‖A − B‖") === byRelative, `${await rows()} instead of ${byRelative}`);
    const byCosine = ["broken", ...names.sort((p, q) => measured[p][1] - measured[q][1])].join(" ");
    check(await order("Cosine") === byCosine, `${await rows()} instead of ${byCosine}`);
    await page.locator("section[aria-label='NaN and infinity'] li", { hasText: "broken A: 1 infinite; B: 1 NaN" }).waitFor();
  });
  await test("names have room next to the measures, also with an entry open", async () => {
    const size = page.viewportSize();
    await page.locator(ENTRIES).first().click();
    await page.locator("aside[aria-label=Entry]").waitFor();
    for (const width of [1440, 1024]) {
      await page.setViewportSize({ width, height: 800 });
      const [name, change] = await page.locator(".head.row > :is(.name, .change)").evaluateAll((l) => l.map((e) => e.getBoundingClientRect().width));
      check(name >= 150 && change >= 80, `${width} px: names have ${name} px, changes ${change}`);
    }
    await page.setViewportSize(size);
    await page.getByRole("button", { name: "Close entry" }).click();
  });
}

async function testFits(page, at) {
  const file = (name) => path.join(at, `${name}.safetensors`);
  for (const [side, a, b] of [["A", "wrapped", "plain"], ["B", "plain", "wrapped"]]) {
    await test(`a prefix that only ${side} has is offered to be stripped, and then every name matches`, async () => {
      await compare(page, file(a), file(b));
      await page.locator(".offer", { hasText: `7 names would match without “model.” in ${side}.` }).waitFor();
      await button(page, "Strip model.").click();
      await verdict(page, /^7 entries with equal names/);
      await button(page, /^Values/).click();
      await verdict(page, /^7 entries equal, values included/);
      check(await page.locator(".sums").textContent() === "A has 7 entries, B has 7; 7 of them are in both.", await page.locator(".sums").textContent());
      await button(page, "Keep it").click();
      await verdict(page, "7 perhaps renamed");
    });
  }
  await test("tensors of different floating-point dtypes are compared in B's dtype", async () => {
    await compare(page, file("wrapped"), file("half"));
    await button(page, "Strip model.").click();
    await verdict(page, /^7 changed/);
    await button(page, "Compare across dtypes").click();
    await verdict(page, /^7 entries with equal names/);
    await button(page, /^Values/).click();
    await verdict(page, /^7 entries equal, values included/);
  });
}

async function testTolerance(page, at, said) {
  const [a, b] = [1, 2].map((n) => path.join(at, `step-${n}.safetensors`));
  await test("a tolerance is that of the command", async () => {
    await compare(page, a, b);
    for (const [label, value, options] of [["rtol", "0.09", ["--rtol", "0.09"]], ["atol", "10", ["--atol", "10", "--rtol", "0.09"]]]) {
      await page.getByLabel(label, { exact: true }).fill(value);
      await page.getByLabel(label, { exact: true }).press("Enter");
      await verdict(page, `${label} ${value}`);
      const want = diffOf(a, b, ...options), got = await exported(page);
      check(JSON.stringify(got.changed) === JSON.stringify(want.changed), `${JSON.stringify(got.changed)} instead of ${JSON.stringify(want.changed)}`);
    }
    check((await exported(page)).changed.length === 1, "NaN is within the tolerance");
  });
  await test("NaN comes first, in red, with its number on each side", async () => {
    const first = page.getByRole("region", { name: "NaN and infinity" });
    await first.locator("li", { hasText: "layers.1.q.weight" }).waitFor();
    check((await first.locator("li").allTextContents()).join() === "layers.1.q.weight A: none; B: 2 NaN", (await first.locator("li").allTextContents()).join());
    await first.getByRole("button", { name: "layers.1.q.weight" }).click();
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /\b1 match\b/ }).waitFor();
  });
  await test("an entry has relative error and cosine as PyTorch computes them, and values of both sides", async () => {
    await page.getByLabel("Filter").fill("layers.0.up.weight");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /\b1 match\b/ }).waitFor();
    await page.locator(ENTRIES).click();
    const fact = async (name) => Number(await page.locator(`[aria-label='Comparison with B'] dt:text-is('${name}') + dd`).textContent());
    const [relative, cosine] = [await fact("relative error ‖A − B‖ / ‖B‖"), await fact("cosine of A and B")];
    check(Math.abs(relative - said.relative) < 1e-5 && Math.abs(cosine - said.cosine) < 1e-5, `${relative} ${cosine} instead of ${JSON.stringify(said)}`);
    for (const side of ["A", "B"]) {
      const cells = page.getByRole("region", { name: `Slice of ${side}` }).locator("tbody td");
      await cells.first().waitFor();
      check(await cells.count() === 24, `values of ${side}`);
    }
    check(await button(page, "Show differences").count() === 0, "they were not read without asking");
    const sections = await page.locator("aside section").evaluateAll((l) => l.map((e) => e.closest("section section") ? `${e.parentElement.closest("section").ariaLabel}: ${e.ariaLabel}` : e.ariaLabel));
    check(new Set(sections).size === sections.length, `two sections have one name: ${sections.join(", ")}`);
  });
}

/** Two files whose tensors have other shapes, or are only in one of them. */
async function testShapes(page, at) {
  const a = made(at, "shapes_a.safetensors", { grown: ["float32", [2, 3], count(6)], long: ["float32", [9], count(9)], own: ["float32", [2], [7, 8]] });
  const b = made(at, "shapes_b.safetensors", { grown: ["float32", [3, 2], count(6, (i) => i + 50)], long: ["float32", [8], count(8, (i) => i + 70)], new: ["float32", [2, 2], count(4, (i) => i + 90)] });
  await test("values of both sides are side by side where the shapes differ, and those of what only B has are shown", async () => {
    await compare(page, a, b);
    const values = (name) => page.getByRole("region", { name, exact: true }).locator("tbody td").allTextContents();
    for (const [name, ofA, ofB] of [["grown", "0,1,2,3,4,5", "50,51,52,53,54,55"], ["new", "", "90,91,92,93"]]) {
      await page.locator(".window .row .text", { hasText: new RegExp(`^${name}$`) }).click();
      await page.locator("aside h2", { hasText: name }).waitFor();
      await page.getByRole("region", { name: "Slice of B" }).locator("td").first().waitFor();
      check((await values("Slice of A")).join() === ofA && (await values("Slice of B")).join() === ofB, `${name}: ${await values("Slice of A")} and ${await values("Slice of B")}`);
    }
    await page.locator(".window .row .text", { hasText: /^long$/ }).click();
    await page.locator("aside h2", { hasText: "long" }).waitFor();
    const cut = (name) => page.getByRole("region", { name, exact: true }).locator("p.quiet").textContent();
    check(await cut("Slice of A") === "The first 6 of 9 values." && await cut("Slice of B") === "The first 6 of 8 values.", `${await cut("Slice of A")} and ${await cut("Slice of B")}`);
    check(await page.locator("aside .differs").count() === 0 && await page.getByLabel("Slice to compare").count() === 0, "shapes that differ are compared element by element");
  });
}

async function testSides(page) {
  await test("a comparison of shardings shows the chunks of A and of B", async () => {
    await compare(page, path.join(samples, "dcp_fsdp2"), path.join(samples, "dcp_hsdp"));
    await button(page, "Sharding").click();
    await verdict(page, "6 changed");
    await page.getByLabel("Filter").fill("model.block.up.weight");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /\b1 match\b/ }).waitFor();
    await page.locator(ENTRIES).click();
    for (const [side, chunks] of [["A", 4], ["B", 2]]) {
      const shown = page.getByRole("region", { name: `${side} of the comparison` });
      await shown.locator(".map .chunk").first().waitFor();
      check(await shown.locator(".map .chunk").count() === chunks, `${await shown.locator(".map .chunk").count()} chunks of ${side}`);
    }
  });
}

async function testSeries(page, at, steps) {
  await test("a series of steps has a column each, with the numbers that PyTorch computes per layer", async () => {
    await compare(page, ...[1, 2].map((n) => path.join(at, `step-${n}.safetensors`)));
    await button(page, "Layer by layer").click();
    await button(page, "Add a checkpoint").click();
    await pick(page, path.join(at, "step-3.safetensors"));
    await page.locator(".columns li", { hasText: "step-3" }).waitFor();
    await button(page, /^Read norms/).click();
    await button(page, /^Read norms/).waitFor({ state: "detached" });
    for (const [i, name] of ["Norm", "Standard deviation", "NaN and infinity"].entries()) {
      await button(page, new RegExp(`^${name}`)).click();
      const rows = await page.locator("table.series tbody tr").evaluateAll((list) => list.map((r) => [...r.children].map((c) => c.textContent)));
      check(rows.length === 4, JSON.stringify(rows));
      for (const [layer, ...values] of rows) values.forEach((v, step) => check(Math.abs(Number(v) - steps[step][layer][i]) <= 1e-5 * Math.abs(steps[step][layer][i]), `${name} of ${layer} in step ${step + 1}: ${v} instead of ${steps[step][layer][i]}`));
    }
    check(await page.locator("table.series td.nan").count() === 2, "two cells have NaN");
  });
  await test("a checkpoint whose files are absent is said to have no numbers, and none are offered of it", async () => {
    const names = path.join(at, "names");
    fs.mkdirSync(names);
    fs.copyFileSync(path.join(samples, "dcp_fsdp2/.metadata"), path.join(names, ".metadata"));
    await compare(page, names, path.join(at, "step-1.safetensors"));
    await button(page, "Layer by layer").click();
    const column = (title) => page.locator(".columns li", { hasText: title }).textContent();
    check(await column("names") === "names – 4 data files are absent" && await column("step-1") === "step-1.safetensors", await page.locator(".columns").textContent());
    check((await button(page, /^Read norms/).textContent()).includes(`reads ${(fs.statSync(path.join(at, "step-1.safetensors")).size / 1024).toFixed(1)} KiB`), await button(page, /^Read norms/).textContent());
    await button(page, /^Read norms/).click();
    await page.locator("table.series td").first().waitFor();
    check((await page.locator("table.series thead th").allTextContents()).join() === "Layer,step-1.safetensors" && await page.locator(".series-view .trouble").count() === 0, await page.locator(".series-view").textContent());
    await button(page, "Add a checkpoint").click();
    await pick(page, names);
    await page.locator(".columns li").nth(2).waitFor();
    check(await button(page, /^Read norms/).count() === 0, "what cannot be read is offered");
  });
}

export async function testComparing({ page, url, context, broken }) {
  if (!fs.existsSync(python)) return skip("comparisons of what PyTorch writes", "there is no .local/venv");
  const at = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-comparing-"));
  try {
    const p = spawnSync(python, ["-c", MAKE, at], { encoding: "utf8" });
    check(p.status === 0, p.stderr);
    const said = JSON.parse(p.stdout);
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await testFits(page, at);
    await testMeasures(page, at, said);
    await testTolerance(page, at, said);
    await testShapes(page, at);
    await testSides(page);
    await testSeries(page, at, said.steps);
    await testTogether(page, context, url, at);
    await test("no comparison breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(at, { recursive: true });
  }
  return undefined;
}
