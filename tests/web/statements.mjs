/** What the page states about checkpoints that PyTorch and safetensors wrote, compared with the command's JSON documents and
 *  with PyTorch itself. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { ENTRIES, pick, root, rowsOf, samples } from "./browser.mjs";
import { native, takePickers } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { filter, verdict } from "./truth.mjs";
import { goTo, open, showFields } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

/** Writes checkpoints, and prints what PyTorch says of them. */
const MAKE = `import copy, json, sys, torch
import torch.distributed.checkpoint as dcp
from pathlib import Path
from safetensors.torch import save_file
from torch import nn
root, at = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(root / "samples"))
from describe_modules import modules_document
torch.manual_seed(5)
said = {}

# two checkpoints that differ as NaN, in a number, in the sign of zero and in a digit that a double does not have
a = torch.arange(12.0).reshape(3, 4)
nan, both, large = a.clone(), a.clone(), torch.tensor([2**62, 7])
nan[1, 2] = both[2, 2] = float("nan")
both[0, 1] = 7.5
equal = {"same": torch.ones(3)}
save_file({"nan": a, "both": a.clone(), "zero": torch.tensor([1.0, 0.0]), "large": large, **equal, "old.x": torch.arange(5.0), "old.y": torch.arange(6.0) + 3, "gone": torch.zeros(2)}, at / "a.safetensors", metadata={"format": "pt", "license": "mit", "gone": "x"})
save_file({"nan": nan, "both": both, "zero": torch.tensor([1.0, -0.0]), "large": large + torch.tensor([1, 0]), **equal, "new.x": torch.arange(5.0), "new.y": torch.arange(6.0) + 3, "fresh": torch.zeros(4)}, at / "b.safetensors", metadata={"format": "pt", "license": "apache", "more": "y"})

# a training run with counters, states of a random generator, and values of every plain type
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
values = {"seed": 2**64 - 1, "small": 1e-05, "one": 1.0, "yes": True, "no": False, "none": None, "text": "it's \\"so\\"\\n", "list": [1, 2.0, None, True, "x"], "tuple": (1, False)}
run = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng_state": torch.get_rng_state(), **values}
torch.save(run, at / "run.pt")
dcp.save({**run, "optim": run["optimizer"], "tuple": 1}, checkpoint_id=at / "run_dcp", no_dist=True)
said["parameters"] = sum(p.numel() for p in model.parameters())
said["values"] = {k: repr(v) for k, v in values.items() if not isinstance(v, (list, tuple))}
json.dump(modules_document(model), open(at / "modules.json", "w"))
names = ["model." + name for name in model.state_dict()]
json.dump(names, open(at / "names.json", "w"))
(at / "names.txt").write_text("".join(name + "\\n" for name in names))
json.dump(modules_document(copy.deepcopy(model).half()), open(at / "half.json", "w"))

# what loads: more in a DCP hurts nobody, and dtypes are cast; load_state_dict refuses what is unexpected
wanted = {"model": copy.deepcopy(model).half().state_dict()}
dcp.load(wanted, checkpoint_id=at / "run_dcp", no_dist=True)
said["cast"] = torch.equal(wanted["model"]["0.weight"], model[0].weight.half())
torch.save({**model.state_dict(), "extra": torch.ones(2)}, at / "extra.pt")
try:
    model.load_state_dict(torch.load(at / "extra.pt"))
    said["strict"] = "loads"
except RuntimeError as e:
    said["strict"] = str(e)
model.load_state_dict(torch.load(at / "extra.pt"), strict=False)

# tied weights, packed weights, one of three files, objects alone, ranks with tensors of their own
weight = torch.randn(4, 5)
torch.save({"embed": weight, "head": weight}, at / "tied.pt")
save_file({"proj.weight": torch.arange(64).to(torch.uint8).reshape(64, 1), "proj.weight.absmax": torch.ones(4)}, at / "packed.safetensors")
for where in (at, at / "alone"):
    where.mkdir(exist_ok=True)
    save_file({"w": torch.ones(2, 3)}, where / "model-00001-of-00003.safetensors", metadata={"format": "pt"})
torch.save({"step": 7, "loss": 0.5}, at / "objects.pt")
for rank in range(2):
    (at / "ranks").mkdir(exist_ok=True)
    torch.save({"w": torch.arange(6.0) + rank, "part": torch.ones(2 + rank, 3), "step": 5}, at / "ranks" / f"rank_{rank}.pt")

# optimizers whose parameters have different states, and one that is damaged
factored = torch.optim.Adafactor(model.parameters())
model(torch.randn(4, 8)).sum().backward()
factored.step()
torch.save({"model": model.state_dict(), "optimizer": factored.state_dict()}, at / "adafactor.pt")
print(json.dumps(said))
`;

/** Returns the document that a command prints. It may have found differences. */
function document(...args) {
  const p = spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 });
  check(p.status === 0 || p.status === 1, `tessera ${args.join(" ")}: ${p.stderr}`);
  return JSON.parse(p.stdout);
}

/** "1.9 KiB" as the command writes it. */
const sizeText = (bytes) => bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toFixed(1)} KiB`;
/** The amounts of the overview, once it has everything. */
async function amounts(page) {
  await page.locator("section[aria-label=Summary] dt", { hasText: "values" }).waitFor();
  const shown = await facts(page, "section[aria-label=Summary]");
  return Object.fromEntries(Object.entries(shown).filter(([name]) => ["parameters", "elements", "optimizer state", "other tensors"].includes(name)));
}
const facts = (page, place) => page.locator(`${place} dl.facts > div`).evaluateAll((l) => Object.fromEntries(l.map((f) => [f.children[0].textContent, f.children[1].textContent])));
const choose = async (page, name) => {
  await filter(page, name, /^\d+ match/);
  await page.locator(ENTRIES).first().click();
  await page.locator("aside[aria-label=Entry] dl.facts").first().waitFor();
};
const rowOf = async (page, name) => (await rowsOf(page)).find((row) => row.startsWith(`${name} | `))?.split(" | ") ?? [];

async function testCompare(page, made) {
  const [a, b] = ["a", "b"].map((n) => path.join(made, `${n}.safetensors`));
  await open(page, a);
  await goTo(page, "Compare");
  await pick(page, b);
  await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values not compared yet" }).waitFor();
  const counts = async () => Object.fromEntries(await page.locator(".chip-line button").evaluateAll((l) => l.map((c) => [c.textContent.replace(/ \d+$/, ""), Number(/\d+$/.exec(c.textContent)[0])])));
  const check1 = async (diff) => {
    const { changed, added, removed, renamed } = diff.summary, want = { Differences: changed + added + removed - renamed, ...(changed ? { Changed: changed } : {}), "Only in A": removed - renamed, "Only in B": added - renamed, "Perhaps renamed": renamed };
    check(JSON.stringify(await counts()) === JSON.stringify(want), `${JSON.stringify(await counts())} instead of ${JSON.stringify(want)}`);
    for (const [label, n] of Object.entries(want)) {
      const term = { Differences: "is:different", Changed: "is:changed", "Only in A": "is:only-a", "Only in B": "is:only-b", "Perhaps renamed": "is:renamed" }[label];
      await filter(page, term, `${n} match`);
    }
    await page.getByLabel("Filter").fill("");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /^$/ }).waitFor({ state: "attached" });
    const line = await page.locator(".current[aria-busy=false] .verdict-line").textContent(), { metadata: m } = diff, texts = m.added.length + m.removed.length + m.changed.length;
    for (const says of [`${removed - renamed} only in A`, `${added - renamed} only in B`, `${renamed} perhaps renamed`, `${texts} texts of __metadata__ differ`]) check(line.includes(says), `'${line}' lacks '${says}'`);
  };
  await test("a renamed tensor is one difference, in the counts, the rows and the verdict", () => check1(document("diff", a, b, "--json")));
  await test("differing texts of __metadata__ are shown as the diff has them", async () => {
    const { metadata } = document("diff", a, b, "--json"), shown = page.locator("[aria-label='Metadata that differs']");
    await shown.locator("summary").click();
    const want = { ...Object.fromEntries(metadata.changed.map((c) => [c.key, `${c.a} → ${c.b}`])), ...Object.fromEntries(metadata.removed.map((c) => [c.key, `${c.value} (only in A)`])), ...Object.fromEntries(metadata.added.map((c) => [c.key, `${c.value} (only in B)`])) };
    check(JSON.stringify(await facts(page, "[aria-label='Metadata that differs']")) === JSON.stringify(want), JSON.stringify(await facts(page, "[aria-label='Metadata that differs']")));
    await shown.locator("summary").click();
  });
  const diff = document("diff", a, b, "--values", "--json");
  await test("NaN in one checkpoint only is not a difference of 0", async () => {
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values included" }).waitFor();
    await check1(diff);
    check(diff.changed.length === 4 && diff.changed.find((c) => c.fqn === "nan").max_abs === 0, JSON.stringify(diff.changed));
    for (const { fqn, max_abs: most, differing, a: { shape } } of diff.changed) {
      const cells = await rowOf(page, fqn), want = most === 0 ? "NaN or −0" : String(most);
      check(cells[4] === want, `${fqn}: ${cells.join(" | ")} instead of ${want}`);
      const bar = await page.locator(".window .row", { has: page.locator(".text", { hasText: new RegExp(`^${fqn}$`) }) }).locator(".bar.delta").getAttribute("aria-label");
      check(bar === `${differing} of ${shape.reduce((x, y) => x * y, 1)} values differ`, `${fqn}: the bar says '${bar}'`);
    }
  });
  await test("the differences of an entry are those of the diff", async () => {
    for (const { fqn, max_abs: most, differing } of diff.changed) {
      await choose(page, fqn);
      const said = (await facts(page, "[aria-label='Comparison with B']"));
      check(said["values that differ"] === String(differing), JSON.stringify(said));
      check(most === 0 ? /^none between numbers/.test(said["largest difference"]) : said["largest difference"].startsWith(`${most}, `), JSON.stringify(said));
      await page.locator("[aria-label='Comparison with B'] dt", { hasText: "differing" }).waitFor();
      const slice = await facts(page, "[aria-label='Comparison with B']");
      check(slice.differing.startsWith(`${differing} of `), `${fqn}: ${JSON.stringify(slice)}`);
      check(slice["largest finite |A − B|"] === (most === 0 ? undefined : String(most)), `${fqn}: ${JSON.stringify(slice)}`);
    }
  });
}

async function testMapped(page, made, scratch) {
  await test("what a map computes is in no file", async () => {
    const [a, b] = ["a", "b"].map((n) => path.join(made, `${n}.safetensors`)), map = path.join(scratch, "map.json");
    fs.writeFileSync(map, JSON.stringify({ schema: "tessera.map/1", unmatched: "keep", rules: [{ from: ["old.x"], to: ["new.x"], do: [{ cast: "bfloat16" }] }] }));
    const changed = document("diff", a, b, "--map", map, "--json").changed;
    check(changed.length === 1 && changed[0].what.join() === "dtype", JSON.stringify(changed));
    await open(page, a);
    await goTo(page, "Compare");
    await pick(page, b);
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
    await page.getByRole("button", { name: "Map of A" }).click();
    await page.locator("[role=group][aria-label=Map] input[type=file]").setInputFiles(map);
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "1 changed" }).waitFor();
    await choose(page, "new.x");
    await page.getByText("1 chunk, computed by the map: it covers every element.").waitFor();
    check(await page.locator("[aria-label=\"A of the comparison\"] .legend li").textContent() === "the result of the map", await page.locator("[aria-label=\"A of the comparison\"] .legend li").textContent());
  });
}

async function testCounts(page, made, said) {
  await test("bytes of a random generator, counters and buffers are not parameters", async () => {
    for (const name of ["run.pt", "run_dcp"]) {
      const target = path.join(made, name), { summary, entries } = document("inspect", target, "--json");
      const bytes = (of) => entries.filter((e) => e.kind === "tensor" && of(e)).reduce((sum, e) => sum + e.bytes, 0);
      const optimizer = bytes((e) => /^optim/.test(e.fqn)), weights = 4 * said.parameters;
      await open(page, target);
      const want = JSON.stringify({ parameters: `${said.parameters} · ${sizeText(weights)}`, "optimizer state": sizeText(optimizer), "other tensors": sizeText(summary.bytes - optimizer - weights) });
      check(JSON.stringify(await amounts(page)) === want, `${name}: ${JSON.stringify(await amounts(page))} instead of ${want}`);
      check((await page.locator(".about").textContent()).includes(` · ${said.parameters} parameters · ${sizeText(summary.bytes)} · `), await page.locator(".about").textContent());
    }
  });
  await test("where parameters cannot be counted, elements are: tied, packed, different on each rank", async () => {
    for (const name of ["tied.pt", "packed.safetensors", "ranks"]) {
      const target = path.join(made, name), { summary } = document("inspect", target, "--json");
      await open(page, target);
      check(JSON.stringify(await amounts(page)) === JSON.stringify({ elements: `${summary.elements} · ${sizeText(summary.bytes)}` }), `${name}: ${JSON.stringify(await amounts(page))}`);
    }
  });
  await test("entries of ranks with tensors of their own are counted, placed and shown", async () => {
    const { summary, entries } = document("inspect", path.join(made, "ranks"), "--json");
    const line = await page.locator("aside .quiet").first().textContent();
    check(line.startsWith(`${summary.tensors} tensors (2 of them differ from rank to rank) in ${summary.files} files, ${summary.objects} object.`), line);
    check((await rowOf(page, "part"))[2] === "float32 per rank", (await rowOf(page, "part")).join());
    await choose(page, "part");
    const shown = await facts(page, "aside"), { shapes } = entries.find((e) => e.fqn === "part");
    shapes.forEach((shape, rank) => check(shown[`rank ${rank}`] === `float32 ${shape.join(" × ")}`, JSON.stringify(shown)));
    await goTo(page, "Files");
    await page.locator("[aria-label='File table'] tbody tr").nth(1).waitFor();
    const used = await page.locator("[aria-label='File table'] tbody tr").evaluateAll((l) => l.map((r) => [r.children[0].textContent, r.children[2].textContent, r.children[3].textContent]));
    const want = [0, 1].map((r) => [`rank_${r}.pt`, sizeText(entries.flatMap((e) => e.chunks ?? []).filter((c) => c.file === `rank_${r}.pt`).reduce((n, c) => n + c.byte_length, 0)), "2"]);
    check(JSON.stringify(used.sort()) === JSON.stringify(want), JSON.stringify(used));
  });
  await test("tied tensors are equal bytes that are stored once", async () => {
    await open(page, path.join(made, "tied.pt"));
    await goTo(page, "Files");
    await page.getByRole("button", { name: /^Look for tensors/ }).click();
    await page.locator("section[aria-label=Duplicates] [role=status]", { hasText: "1 group of tensors holds equal bytes, which are stored once." }).waitFor();
  });
  await test("optimizers whose parameters have different states are not called incomplete", async () => {
    const target = path.join(made, "adafactor.pt");
    check(document("validate", target, "--format", "json").findings.length === 0, "the command has findings");
    await open(page, target);
    await goTo(page, "Optimizer");
    await page.locator(".view [role=status]", { hasText: "6 parameters: 6 lack states that others have." }).waitFor();
    check(await page.locator(".view .bad").count() === 0, "something is marked as bad");
  });
}

async function testValues(page, made, said) {
  await test("values of objects are Python's", async () => {
    for (const name of ["run.pt", "run_dcp"]) {
      await open(page, path.join(made, name));
      for (const [fqn, text] of Object.entries(said.values)) {
        await choose(page, fqn);
        await page.locator("aside h2", { hasText: fqn }).waitFor();
        const shown = await page.locator("aside pre").textContent();
        check(shown === text, `${name}: ${fqn} is ${shown} instead of ${text}`);
      }
    }
  });
  await test("so are those of objects that only B has, in the rows of a comparison and in the entry", async () => {
    await open(page, path.join(made, "a.safetensors"));
    await goTo(page, "Compare");
    await pick(page, path.join(made, "run.pt"));
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
    for (const [fqn, text] of Object.entries(said.values)) {
      await filter(page, fqn, /^\d+ match/);
      const row = page.locator(".window .row", { has: page.locator(".text", { hasText: new RegExp(`^${fqn.replaceAll(".", "\\.")}$`) }) }).first();
      await row.locator(".side").nth(1).filter({ hasText: /[^-–]/ }).waitFor();
      const short = text.replace(/\s+/g, " "), [a, b] = await row.locator(".side").allTextContents();
      check(a === "–" && b === (short.length > 60 ? `${short.slice(0, 59)}…` : short), `${fqn}: '${a}' and '${b}' instead of '${short}'`);
      await row.click();
      await page.locator("aside h2", { hasText: fqn }).waitFor();
      const value = page.locator("[aria-label='B of the comparison'] dt", { hasText: /^value$/ }).locator("xpath=following-sibling::dd");
      check(await value.textContent() === text, `${fqn} is ${await value.textContent()} instead of ${text}`);
    }
  });
  await test("so are hyper-parameters", async () => {
    await open(page, path.join(made, "run_dcp"));
    await goTo(page, "Optimizer");
    const lr = page.locator("[aria-label='Param groups'] tr", { hasText: /^lr/ }).first();
    await lr.waitFor();
    check(await lr.textContent() === "lr1.0", await lr.textContent());
    await page.locator("[aria-label='Param groups'] tr", { hasText: /^foreachNone$/ }).first().waitFor();
    await page.locator("[aria-label='Param groups'] tr", { hasText: /^amsgradFalse$/ }).first().waitFor();
  });
  await test("the texts of __metadata__ are those of the command", async () => {
    const target = path.join(made, "a.safetensors"), { metadata } = document("inspect", target, "--json");
    await open(page, target);
    await page.locator("section[aria-label='File metadata']").waitFor();
    const shown = await facts(page, "section[aria-label='File metadata']");
    check(JSON.stringify(shown) === JSON.stringify(metadata), JSON.stringify(shown));
  });
}

async function testLoad(page, made, said) {
  const says = async (target, against, prefix) => {
    await open(page, path.join(made, target));
    await goTo(page, "Would it load?");
    await pick(page, path.join(made, against));
    if (prefix) await page.getByLabel(/^Only names with this prefix/).fill(prefix);
    return (text) => page.locator("section[aria-label='Would it load?'] .current > :not([inert]) > p[role=status]", { hasText: text }).waitFor();
  };
  const count = (target, against, rule, ...options) => document("validate", path.join(made, target), "--against", path.join(made, against), "--format", "json", ...options).findings.filter((f) => f.rule === rule).length;
  await test("further entries of a DCP do not prevent loading", async () => {
    const more = count("run_dcp", "names.txt", "layout/unexpected-entry");
    check(more > 30 && count("run_dcp", "names.txt", "layout/missing-entry") === 0, `${more} unexpected`);
    const hear = await says("run_dcp", "names.json");
    await hear(/^It would load: /);
    await hear(`${more} more entries are here; PyTorch reads only what it is asked for.`);
  });
  await test("those of a torch.save file do, unless strict is False", async () => {
    check(/Unexpected key\(s\) in state_dict: "extra"/.test(said.strict), said.strict);
    const hear = await says("extra.pt", "modules.json");
    await hear(/^It would not load as it is: 1 unexpected\. load_state_dict refuses what is unexpected, unless strict is False\.$/);
  });
  await test("another dtype is cast", async () => {
    check(said.cast === true, "PyTorch does not cast");
    const hear = await says("run_dcp", "half.json", "model.");
    await hear(/^It would load: /);
    await hear(`${count("run_dcp", "half.json", "layout/dtype", "--prefix", "model.")} tensors with another dtype would be cast.`);
  });
}

async function testFiles(page, made, scratch) {
  await test("absent chunks are drawn apart, and counted out", async () => {
    const whole = path.join(samples, "dcp_tp_fsdp2"), some = path.join(scratch, "some"), fqn = "model.block.up.weight", gone = "__1_0.distcp";
    fs.cpSync(whole, some, { recursive: true });
    fs.rmSync(path.join(some, gone));
    const { chunks, shape } = document("inspect", whole, "--include", fqn, "--json").entries[0], product = (list) => list.reduce((x, y) => x * y, 1), away = chunks.filter((c) => c.file === gone);
    await open(page, some);
    await choose(page, fqn);
    await page.getByText(`${chunks.length} chunks in ${chunks.length} files, ${away.length} of them absent: the chunks would cover every element once; ${away.reduce((n, c) => n + product(c.sizes), 0)} of ${product(shape)} elements are missing.`).waitFor();
    const fills = await page.locator(".map .chunk").evaluateAll((l) => l.map((c) => [c.querySelector("title").textContent.includes("absent"), getComputedStyle(c).fill]));
    check(fills.length === chunks.length && fills.filter(([isAway]) => isAway).length === away.length && fills.every(([isAway, fill]) => isAway === fill.includes("#away")), JSON.stringify(fills));
  });
  await test("a chunk that a file does not reach is missing, and no file is absent", async () => {
    const target = path.join(samples, "broken_dcp_beyond_end"), { chunks, shape } = document("inspect", target, "--include", "weight", "--json").entries[0], product = (list) => list.reduce((x, y) => x * y, 1), [lost] = chunks.filter((c) => c.file === null);
    await open(page, target);
    await choose(page, "weight");
    await page.getByText(`${chunks.length} chunks in ${chunks.length - 1} file, 1 of them missing: the chunks would cover every element once; ${product(lost.sizes)} of ${product(shape)} elements are missing.`).waitFor();
    await page.getByText("They cannot be read, because 1 chunk is missing.").waitFor();
    await page.getByRole("button", { name: "Close entry" }).click();
    await goTo(page, "Files");
    await page.getByText("1 chunk is missing; Problems says why.").waitFor();
    await goTo(page, /^Problems/);
    await page.getByRole("button", { name: /^Check every byte/ }).click();
    await page.getByText("Every byte that is here was checked.").waitFor();
    check(!(await page.locator("body").innerText()).includes("absent"), "a file is said to be absent");
  });
  await test("a place that JavaScript's numbers cannot hold is not rounded", async () => {
    const target = path.join(samples, "broken_dcp_huge_offset"), [{ byte_offset: at, message }] = document("validate", target, "--format", "json").findings;
    check(!Number.isSafeInteger(at) && message.includes("9223372036854775800"), message);
    await open(page, target);
    await goTo(page, /^Problems/);
    await page.locator(".places li", { hasText: message }).waitFor();
    check(!(await page.locator(".places").innerText()).includes(at.toLocaleString("en-US")), await page.locator(".places").innerText());
  });
  await test("what a file without tensors is", async () => {
    const rowText = async (name) => (await page.locator("[aria-label='File table'] tbody tr", { hasText: name }).locator("td").first().textContent());
    for (const [target, name, says] of [[path.join(samples, "dcp_tp_fsdp2"), ".metadata", "lists the entries"], [path.join(samples, "safetensors_index"), "model.safetensors.index.json", "lists the entries"], [path.join(made, "objects.pt"), "objects.pt", "has no dense tensors of this checkpoint"]]) {
      await open(page, target);
      await goTo(page, "Files");
      await page.locator("[aria-label='File table'] tbody tr").first().waitFor();
      check(await rowText(name) === `${name} ${says}`, await rowText(name));
    }
  });
  await test("the verdict about one file of three follows the findings", async () => {
    for (const [target, rule] of [["model-00001-of-00003.safetensors", "parts/one-of-several"], ["alone", "parts/incomplete-save"]]) {
      const { findings } = document("validate", path.join(made, target), "--format", "json"), problems = findings.filter((f) => f.level !== "note");
      check(problems.length === 1 && problems[0].rule === rule, JSON.stringify(findings));
      await open(page, path.join(made, target));
      check(await verdict(page) === "1 problem", await verdict(page));
      check((await page.locator(".verdict").getAttribute("class")).includes(problems[0].level), "it has another level");
      await page.locator(".top-problems", { hasText: problems[0].message }).waitFor();
    }
  });
  await test("the overview counts the findings that it does not list, and calls a checkpoint without data files that", async () => {
    const some = path.join(made, "some"), none = path.join(made, "none");
    fs.cpSync(path.join(samples, "dcp_tp_fsdp2"), some, { recursive: true });
    for (const name of ["__1_0.distcp", "__2_0.distcp", "__3_0.distcp"]) fs.rmSync(path.join(some, name));
    const { findings } = document("validate", some, "--format", "json");
    check(findings.length === 3 && new Set(findings.map((f) => f.rule)).size === 1, JSON.stringify(findings));
    await open(page, some);
    check((await page.locator(".top-problems").innerText()).endsWith(` ${findings[0].message} and 2 more like it`), await page.locator(".top-problems").innerText());
    fs.mkdirSync(none);
    fs.copyFileSync(path.join(some, ".metadata"), path.join(none, ".metadata"));
    await open(page, none);
    check((await page.locator(".top-problems").innerText()).endsWith(" Only the metadata is here: 4 of 4 data files are absent."), await page.locator(".top-problems").innerText());
  });
}

async function testConversions(page, made, scratch) {
  const convert = async (target, choices) => {
    await open(page, path.join(made, target));
    await goTo(page, "Convert…");
    await showFields(page);
    for (const [label, value] of Object.entries(choices)) await page.getByRole("combobox", { name: label, exact: true }).selectOption(value);
    await page.locator("section[aria-label=Save] table").waitFor();
    await takePickers(page);
    const file = path.join(scratch, "converted");
    const save = page.getByRole("button", { name: "Save…" });
    const [download] = await Promise.all([page.waitForEvent("download"), save.click()]);
    fs.copyFileSync(await download.path(), file);
    await page.locator(".written").waitFor();
    return { text: await page.locator(".written p").first().textContent(), file };
  };
  await test("objects that are written as JSON are not left out, and their file is counted", async () => {
    const { text, file } = await convert("run.pt", { Form: "safetensors", "Non-tensor objects": "sidecar" });
    const listed = JSON.parse(spawnSync(python, ["-c", "import json, sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\nprint(json.dumps({i.filename: [i.file_size, len(json.loads(z.read(i))['objects']) if i.filename.endswith('.json') else 0] for i in z.infolist()}))", file], { encoding: "utf8" }).stdout);
    const sizes = Object.values(listed), [[sidecar, [, objects]]] = Object.entries(listed).filter(([name]) => name.endsWith(".json"));
    const { summary } = document("convert", path.join(made, "run.pt"), path.join(scratch, "run.safetensors"), "--objects", "sidecar", "--json");
    check(sizes.length === 2 && objects === summary.left_out, JSON.stringify(listed));
    check(text === `Wrote ${summary.tensors} tensors to a download: ${sizeText(sizes.reduce((n, [size]) => n + size, 0))} in 2 files; ${objects} objects as JSON in ${path.basename(sidecar)}.`, text);
  });
  await test("scalars of the optimizer that a cast leaves alone are counted", async () => {
    const { text } = await convert("run.pt", { Form: "torch", "Floating-point tensors become": "bfloat16" });
    const { summary } = document("convert", path.join(made, "run.pt"), path.join(scratch, "run.pt"), "--dtype", "bfloat16", "--json");
    check(summary.kept === 6 && text.includes(`${summary.cast} tensors cast, ${summary.kept} scalars of optimizer state not cast`), text);
  });
  await test("which texts of __metadata__ go along is said before, and is true", async () => {
    await open(page, path.join(made, "a.safetensors"));
    await goTo(page, "Convert…");
    const to = path.join(scratch, "carried.safetensors");
    document("convert", path.join(made, "a.safetensors"), to, "--json");
    const carried = Object.keys(document("inspect", to, "--json").metadata), dropped = carried.filter((key) => key !== "format").join(", ");
    check(carried.length === 3, carried.join());
    await page.getByText(`The texts of __metadata__ are carried over: ${carried.join(", ")}.`).waitFor();
    await page.getByRole("combobox", { name: "Form", exact: true }).selectOption("torch");
    await page.getByText(`The texts of __metadata__ have no place in this form and are dropped: ${dropped}.`).waitFor();
    const { warnings } = document("convert", path.join(made, "a.safetensors"), path.join(scratch, "carried.pt"), "--to", "torch", "--json");
    check(warnings.some((w) => w.endsWith(`dropped: ${dropped}`)), warnings.join());
  });
}

export async function testStatements({ page, url, broken }) {
  if (!fs.existsSync(python)) return skip("statements about checkpoints of PyTorch", "there is no .local/venv");
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-statements-")), made = path.join(scratch, "made");
  try {
    fs.mkdirSync(made);
    const p = spawnSync(python, ["-c", MAKE, root, made], { encoding: "utf8" });
    check(p.status === 0, p.stderr);
    const said = JSON.parse(p.stdout);
    await page.goto(url);
    await testCompare(page, made);
    await testMapped(page, made, scratch);
    await testCounts(page, made, said);
    await testValues(page, made, said);
    await testLoad(page, made, said);
    await testFiles(page, made, scratch);
    await testConversions(page, made, scratch);
    await test("none of these statements breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
  return undefined;
}
