/** Checkpoints made of parts, directories that contain several, recent ones, and where two tensors differ. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { ENTRIES, pick, root, rowsOf, samples } from "./browser.mjs";
import { tessera } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { goTo, open, openSample } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

/** The files that the transformers Trainer writes with these libraries, at two steps; and two tensors that differ. */
const MAKE = `import json, os, sys, torch
from safetensors.torch import save_file
from torch import nn
at = sys.argv[1]
model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
for step in (9, 10):
    model(torch.arange(10.0).reshape(2, 5) + step).sum().backward()
    optimizer.step(); scheduler.step()
    to = f"{at}/run/checkpoint-{step}"
    os.makedirs(to)
    save_file(model.state_dict(), to + "/model.safetensors", metadata={"format": "pt"})
    torch.save(optimizer.state_dict(), to + "/optimizer.pt")
    torch.save(scheduler.state_dict(), to + "/scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, to + "/rng_state.pth")
    json.dump({"global_step": step, "epoch": 0.5}, open(to + "/trainer_state.json", "w"))
a = torch.arange(48.0).reshape(6, 8)
b = a.clone()
b[2, 5] += 3.5
b[4, 1] = float("nan")
save_file({"w": a, "same": torch.ones(4)}, at + "/a.safetensors")
save_file({"w": b, "same": torch.ones(4)}, at + "/b.safetensors")
`;

async function testParts(page, made) {
  await test("a directory that holds several checkpoints offers them in the order of their steps", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(made, "run"));
    const names = await page.locator(".chooser li strong").allTextContents().then(async (l) => l.length ? l : (await page.locator(".chooser li").first().waitFor(), page.locator(".chooser li strong").allTextContents()));
    check(JSON.stringify(names) === '["run/checkpoint-9","run/checkpoint-10"]', JSON.stringify(names));
    await page.locator(".chooser button", { hasText: "checkpoint-10" }).click();
    await page.locator(".window .row .text").first().waitFor();
  });
  await test("parts are marked in the tree with their form and files, as inspect lists them", async () => {
    const { summary } = JSON.parse(tessera("inspect", path.join(made, "run/checkpoint-10"), "--json"));
    check(summary.parts.length >= 4, JSON.stringify(summary.parts));
    const tags = [];
    for (const { name } of summary.parts) {
      await page.getByLabel("Filter").fill(`${name}.**`);
      await page.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor();
      const row = page.locator(".window .row", { hasText: name }).first();
      tags.push([(await row.locator(".text").textContent()).split(".")[0], await row.locator(".tag.part").textContent()]);
    }
    await page.getByLabel("Filter").fill("");
    const want = summary.parts.map((p) => [p.name, `${p.format} · ${p.files} file${p.files === 1 ? "" : "s"}`]);
    check(JSON.stringify(tags.sort()) === JSON.stringify(want.sort()), `${JSON.stringify(tags)} instead of ${JSON.stringify(want)}`);
  });
  await test("a chip shows one part, and Convert writes one", async () => {
    await page.locator(".chip-line").getByRole("button", { name: "optimizer", exact: true }).click();
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor();
    check((await rowsOf(page)).every((r) => !r.includes("scheduler")), (await rowsOf(page)).join("; "));
    await goTo(page, "Convert…");
    await page.getByRole("group", { name: "Parts to write" }).getByRole("button", { name: "model" }).click();
    check(await page.getByLabel("Only names that match").inputValue() === "model.**", "the part is not in the form");
    await page.locator("section[aria-label=Save] p[role=status]", { hasText: /^26\d B of tensors|^2[0-9.]+ KiB|of tensors/ }).waitFor();
  });
}

async function testDifferences(page, made) {
  await test("where two tensors differ: how many, by how much, and a heat map with its scale", async () => {
    await open(page, path.join(made, "a.safetensors"));
    await goTo(page, "Compare");
    await pick(page, path.join(made, "b.safetensors"));
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
    await page.locator(".window .row .text", { hasText: /^w$/ }).click();
    const facts = page.locator("section[aria-label='Comparison with B'] .facts").last();
    await facts.locator("dd", { hasText: "2 of 48" }).waitFor();
    check((await facts.textContent()).includes("largest finite |A − B|3.5") && (await facts.textContent()).includes("in the sign of zero (yellow)1"), await facts.textContent());
    await page.getByRole("img", { name: "Heat map of 6 × 8 differences A − B from -3.5 to 3.5" }).waitFor();
    const canvas = "section[aria-label='Comparison with B'] canvas";
    await page.waitForFunction((at) => document.querySelector(at).getContext("2d").getImageData(0, 0, 1, 1).data[3] > 0, canvas); // it exists before it is drawn
    const [x, y, none] = await page.locator(canvas).evaluate((c) => [[5, 2], [1, 4], [0, 0]].map(([i, j]) => [...c.getContext("2d").getImageData(i, j, 1, 1).data].join()));
    check(x === "33,102,172,255" && y === "240,200,0,255" && none === "247,247,247,255", `${x} ${y} ${none}`);
  });
  await test("a slice that is not one is refused where it was asked for", async () => {
    await page.getByLabel("Slice to compare").fill("9:12,:");
    await page.getByRole("button", { name: "Show differences" }).click();
    await page.locator("section[aria-label='Comparison with B']").locator(".trouble, dd >> text=0 of 0").first().waitFor();
  });
  await test("without a slice all of a tensor is compared and shown, also where it cannot be sliced", async () => {
    await page.getByLabel("Slice to compare").fill("");
    await page.getByRole("button", { name: "Show differences" }).click();
    await page.getByRole("img", { name: /^Heat map of 6 × 8 differences/ }).waitFor();
    await page.getByLabel("Slice", { exact: true }).fill(" ");
    await page.getByRole("button", { name: "Show values" }).click();
    await page.getByRole("button", { name: "Show values" }).waitFor({ state: "detached" });
    check(await page.locator("[aria-label='Values of A'] table.values td:not(:empty)").count() === 48, "not all of the tensor is shown");
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(samples, "safetensors_float6"));
    await page.locator(".window .row", { hasText: "f6_e2m3" }).click();
    await page.getByRole("button", { name: "Show values" }).click();
    await page.locator("section[aria-label=Values] .trouble", { hasText: "cannot be sliced; leave the slice out" }).waitFor();
    await page.getByLabel("Slice", { exact: true }).fill("");
    await page.getByRole("button", { name: "Show values" }).click();
    await page.getByText("Elements of float6_e2m3 cannot be shown one by one.").waitFor();
  });
}

/** Provides a directory of the origin's private file system with the files of a sample through the page's dialog. */
export async function lendDirectory(page, name) {
  const files = fs.readdirSync(path.join(samples, name)).map((file) => [file, fs.readFileSync(path.join(samples, name, file)).toString("base64")]);
  await page.evaluate(async ([directory, list]) => {
    const handle = await (await navigator.storage.getDirectory()).getDirectoryHandle(directory, { create: true });
    for (const [file, text] of list) {
      const stream = await (await handle.getFileHandle(file, { create: true })).createWritable();
      await stream.write(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
      await stream.close();
    }
    globalThis.showDirectoryPicker = async () => handle;
    globalThis.showOpenFilePicker = async () => [await handle.getFileHandle(list.find(([file]) => file !== ".metadata")[0])];
  }, [name, files]);
}

async function testWhole(page, scratch) {
  await test("the browser's tab names what is open", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    check(await page.title() === "Tessera", await page.title());
    await pick(page, path.join(samples, "dcp_fsdp2"));
    await page.locator(".window .row .text").first().waitFor();
    check(await page.title() === "dcp_fsdp2 – Tessera", await page.title());
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await page.locator(".samples button").first().waitFor();
    check(await page.title() === "Tessera", await page.title());
  });
  await test("of files that do not open together, those that are whole are shown, and open alone", async () => {
    const directory = path.join(scratch, "partly");
    fs.mkdirSync(directory);
    fs.copyFileSync(path.join(samples, "safetensors_index/model-00001-of-00003.safetensors"), path.join(directory, "good.safetensors"));
    fs.copyFileSync(path.join(samples, "broken_safetensors_not_json/model.safetensors"), path.join(directory, "bad.safetensors"));
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, directory);
    const whole = page.getByRole("region", { name: "What is whole" });
    await whole.locator("li", { hasText: "good.safetensors" }).getByText("opens on its own: 3 tensors, 56 B").waitFor();
    await whole.locator("li .failed", { hasText: "bad.safetensors" }).waitFor();
    await page.locator(".trouble summary", { hasText: "Details" }).click();
    await page.locator(".trouble details", { hasText: "Code: malformed. Byte " }).waitFor();
    await whole.getByRole("button", { name: /^good/ }).click();
    await page.locator(".window .row .text").first().waitFor();
    check(await page.locator(".top h1").textContent() === "good.safetensors", await page.locator(".top h1").textContent());
  });
}

async function testRecents(page, url) {
  const opened = async () => { await page.locator(".window .row .text").first().waitFor(); return page.locator(".top h1").textContent(); };
  await test("recent checkpoints survive a reload, each once, the latest first", async () => {
    for (const name of ["dcp_fsdp2", "safetensors_index", "dcp_fsdp2"]) {
      await page.goto(url);
      await page.locator(".samples button").first().waitFor();
      await lendDirectory(page, name);
      await page.getByRole("button", { name: "Choose directory…" }).click();
      check(await opened() === name, await opened());
      await page.waitForFunction(() => new Promise((resolve) => { const r = indexedDB.open("tessera"); r.onsuccess = () => { const has = r.result.objectStoreNames.contains("recent"); r.result.close(); resolve(has); }; }));
    }
    await page.goto(url);
    await page.locator("section[aria-label='Recent checkpoints'] strong").first().waitFor();
    const titles = await page.locator("section[aria-label='Recent checkpoints'] strong").allTextContents();
    check(JSON.stringify(titles) === '["dcp_fsdp2","safetensors_index"]', JSON.stringify(titles));
    const places = await page.locator(".start :is(.recents, .url, .drop, .samples)").evaluateAll((l) => l.map((e) => e.classList[0]));
    check(places.join() === "recents,url,drop,samples", places.join());
    const [card, forget] = await page.locator(".recents li").first().locator("button").evaluateAll((l) => l.map((e) => e.getBoundingClientRect().width));
    check(forget < 40 && card > 400, `the button that forgets is ${forget} px wide next to ${card}`);
  });
  await test("what could not be opened is not among the recent checkpoints", async () => {
    await page.evaluate(async () => {
      const odd = await (await navigator.storage.getDirectory()).getFileHandle("odd.txt", { create: true }), stream = await odd.createWritable();
      await stream.write("not a checkpoint");
      await stream.close();
      globalThis.showDirectoryPicker = async () => undefined;
      globalThis.showOpenFilePicker = async () => [odd];
    });
    await page.getByRole("button", { name: "Choose files…" }).click();
    await page.locator(".trouble", { hasText: "not in a recognized checkpoint format" }).waitFor();
    await page.reload();
    await page.locator("section[aria-label='Recent checkpoints'] strong").first().waitFor();
    const titles = await page.locator("section[aria-label='Recent checkpoints'] strong").allTextContents();
    check(!titles.includes("odd.txt"), titles.join());
  });
  const startWith = async (tab, name) => {
    await tab.goto(url);
    await tab.locator(".samples button").first().waitFor();
    await lendDirectory(tab, name);
    await tab.getByRole("button", { name: "Choose directory…" }).click();
    await tab.locator(ENTRIES).nth(1).click();
    await tab.locator("aside h2 .crumbs").waitFor();
    return tab.locator("aside h2").textContent();
  };
  await test("a reload opens what was open, with the entry that was chosen, and only then", async () => {
    const entry = await startWith(page, "dcp_fsdp2");
    await page.reload();
    check(await opened() === "dcp_fsdp2", await opened());
    await page.locator("aside h2", { hasText: entry }).waitFor();
    check(!/dcp_fsdp2/.test(page.url()), page.url());
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await page.reload();
    await page.locator(".samples button").first().waitFor();
    check(await page.locator(".window .row").count() === 0, "what was closed opened again");
  });
  await test("where the browser asks, a reload offers what was open with one click", async () => {
    const tab = await page.context().newPage();
    await tab.addInitScript(() => { FileSystemHandle.prototype.queryPermission = async () => "prompt"; });
    const entry = await startWith(tab, "dcp_hsdp");
    await tab.reload();
    await tab.getByRole("button", { name: "Open dcp_hsdp again" }).click();
    await tab.locator(".top h1", { hasText: "dcp_hsdp" }).waitFor();
    await tab.locator("aside h2", { hasText: entry }).waitFor();
    await tab.close();
    await page.goto(url);
    await page.getByRole("button", { name: "Forget dcp_hsdp" }).click();
    await page.getByRole("button", { name: "Forget dcp_hsdp" }).waitFor({ state: "detached" });
  });
  await test("what a reload would open does not replace what is opened while the browser is asked", async () => {
    const tab = await page.context().newPage();
    await tab.addInitScript(() => { FileSystemHandle.prototype.queryPermission = () => new Promise((resolve) => { globalThis.permit = () => resolve("granted"); }); });
    await startWith(tab, "dcp_hsdp");
    await tab.reload();
    await tab.waitForFunction(() => globalThis.permit);
    await openSample(tab, "torch_train_state");
    let workers = 0;
    tab.on("worker", () => { workers++; });
    await tab.evaluate(() => new Promise((resolve) => { globalThis.permit(); setTimeout(resolve); }));
    await tab.getByLabel("Filter").fill("model");
    await tab.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor();
    check(workers === 0 && await tab.locator(".top h1").textContent() === "torch_train_state", await tab.locator(".top h1").textContent());
    await tab.close();
  });
  await test("a recent checkpoint opens again", async () => {
    await page.locator("section[aria-label='Recent checkpoints'] li button", { hasText: "safetensors_index" }).first().click();
    check(await opened() === "safetensors_index", await opened());
  });
  await test("a recent checkpoint that is gone is refused, and can be forgotten", async () => {
    await page.goto(url);
    await page.evaluate(async () => (await navigator.storage.getDirectory()).removeEntry("dcp_fsdp2", { recursive: true }));
    await page.locator("section[aria-label='Recent checkpoints'] li button", { hasText: "dcp_fsdp2" }).first().click();
    await page.locator(".trouble", { hasText: "'dcp_fsdp2', or a file of it, was moved or removed; choose it again" }).waitFor();
    await page.goto(url);
    await page.getByRole("button", { name: "Forget dcp_fsdp2" }).click();
    await page.getByRole("button", { name: "Forget dcp_fsdp2" }).waitFor({ state: "detached" });
    await page.reload();
    await page.locator("section[aria-label='Recent checkpoints'] strong", { hasText: "safetensors_index" }).waitFor();
    check(await page.getByRole("button", { name: "Forget dcp_fsdp2" }).count() === 0, "it is back");
  });
}

export async function testOpening({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-opening-"));
  try {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    if (fs.existsSync(python)) {
      const p = spawnSync(python, ["-c", MAKE, scratch], { encoding: "utf8" });
      check(p.status === 0, p.stderr);
      await testParts(page, scratch);
      await testDifferences(page, scratch);
    } else skip("parts and differences", "there is no .local/venv");
    await testWhole(page, scratch);
    await testRecents(page, url);
    await test("no opening breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
