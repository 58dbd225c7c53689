/** Convert and Reshard: the written files have the bytes that the command line writes, and nothing incomplete remains. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { PATIENCE, root, samples } from "./browser.mjs";
import { chosenFiles, chosenSizes, clearChosen, expectSame, filesBelow, lendPlaces, native, takePickers, tessera } from "./files.mjs";
import { check, skip, test } from "../support/harness.mjs";
import { goTo, open, showFields } from "./views.mjs";

const python = path.join(root, ".local/venv/bin/python");

const view = (page) => page.locator("section.view");
const ready = (page) => page.getByRole("button", { name: "Save…", exact: true }).and(page.locator(":enabled")).waitFor();

async function convert(page, sample, fill) {
  await open(page, path.join(samples, sample));
  await goTo(page, "Convert…");
  await fill();
  await ready(page);
}

async function saved(page) {
  await page.getByRole("button", { name: "Save…", exact: true }).click();
  await page.locator(".written").waitFor();
}

const below = (files, prefix) => new Map([...files].map(([name, bytes]) => [name.startsWith(prefix) ? name.slice(prefix.length) : `?${name}`, bytes]));

/** Form fields, the command line's options, and whether the result is a single file. */
const CONVERSIONS = [
  ["dcp_tp_fsdp2", { Form: "torch" }, ["--to", "torch"], "one.pt"],
  ["dcp_fsdp2", { Form: "safetensors", "Non-tensor objects": "drop", "Floating-point tensors become": "bfloat16" }, ["--to", "safetensors", "--objects", "drop", "--dtype", "bfloat16"], "one.safetensors"],
  ["dcp_fsdp2", { Form: "safetensors", "Non-tensor objects": "sidecar", "Only names that match": "optim.**" }, ["--to", "safetensors", "--objects", "sidecar", "--include", "optim.**"], "one.safetensors"],
  ["torch_train_state", { Form: "safetensors", "Non-tensor objects": "drop", "Shards of at most": "200", "Renames, one per line": "model.=" }, ["--to", "safetensors", "--objects", "drop", "--max-shard-size", "200", "--rename", "model.="], "one"],
  ["safetensors_index", { Form: "dcp" }, ["--to", "dcp"], "one"],
  ["torch_ranks_tp_fsdp2", { Form: "dcp" }, ["--to", "dcp"], "one"],
  ["lightning_dist", { Form: "megatron-dist" }, ["--to", "megatron-dist"], "one"],
  ["deepspeed_zero3", { Form: "deepspeed-universal" }, ["--to", "deepspeed-universal"], "one"],
];

async function fill(page, fields) {
  await showFields(page);
  for (const [label, value] of Object.entries(fields)) {
    const field = page.locator("form.questions").getByLabel(label, { exact: true });
    if (await field.evaluate((e) => e.tagName) === "SELECT") await field.selectOption(value);
    else await field.fill(value);
  }
  await page.locator("section[aria-label=Save]").getByLabel("Name").fill("one");
}

async function testConversions(page, scratch) {
  for (const [sample, fields, options, name] of CONVERSIONS) {
    await test(`${sample} is written as tessera convert ${options.join(" ")} writes it`, async () => {
      await clearChosen(page);
      await lendPlaces(page);
      await convert(page, sample, () => fill(page, fields));
      const shown = await page.locator("section[aria-label=Save] tbody tr").evaluateAll((rows) => rows.map((r) => [...r.children].map((c) => c.textContent)));
      await saved(page);
      const got = await chosenFiles(page), at = path.join(scratch, `${sample}-${CONVERSIONS.findIndex((c) => c[1] === fields)}`);
      fs.mkdirSync(at);
      tessera("convert", path.join(samples, sample), path.join(at, name), ...options);
      const want = filesBelow(at), written = [...got.keys()].some((n) => n.startsWith("one/")) && !want.has("one/.metadata") && ![...want.keys()].some((n) => n.startsWith("one/")) ? below(got, "one/") : got;
      expectSame(written, want);
      for (const [file, size] of shown) check([...want.keys()].some((n) => n.endsWith(file)), `the preview names '${file}' (${size})`);
    });
  }
}

async function testDownloads(page, scratch) {
  const download = async (sample, fields) => {
    await convert(page, sample, () => fill(page, fields));
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save…", exact: true }).click()]);
    await page.locator(".written").waitFor();
    return [file.suggestedFilename(), await file.path()];
  };
  await takePickers(page);
  await test("without pickers, one file is downloaded", async () => {
    const [name, at] = await download("dcp_tp_fsdp2", { Form: "torch" });
    check(name === "one.pt", name);
    tessera("convert", path.join(samples, "dcp_tp_fsdp2"), path.join(scratch, "download.pt"), "--to", "torch");
    check(fs.readFileSync(at).equals(fs.readFileSync(path.join(scratch, "download.pt"))), "it has other bytes");
  });
  await test("without pickers, a DCP is downloaded as an uncompressed zip that Python's zipfile reads", async () => {
    const [name, at] = await download("safetensors_index", { Form: "dcp" });
    check(name === "one.zip", name);
    const to = path.join(scratch, "unzipped");
    const p = spawnSync("python3", ["-c", "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\nassert all(i.compress_type == 0 for i in z.infolist())\nz.extractall(sys.argv[2])", at, to], { encoding: "utf8" });
    check(p.status === 0, p.stderr);
    tessera("convert", path.join(samples, "safetensors_index"), path.join(scratch, "native-dcp"), "--to", "dcp");
    expectSame(filesBelow(path.join(to, "one")), filesBelow(path.join(scratch, "native-dcp")));
  });
  await test("a download is made once, whatever is opened afterwards, and the heading is about what is shown", async () => {
    const heading = (text) => page.locator("section[aria-label=Save] h2", { hasText: text }).waitFor();
    let count = 0;
    const hear = () => { count++; };
    page.on("download", hear);
    try {
      await download("dcp_tp_fsdp2", { Form: "torch" });
      await heading("What was written");
      await goTo(page, "Contents");
      await goTo(page, "Convert…");
      await page.locator(".written").waitFor();
      await page.getByLabel("Form").selectOption("dcp");
      await ready(page);
      await heading("What will be written");
      await page.evaluate(() => { for (let i = 0; i < 2; i++) document.querySelector("section[aria-label=Save] form").requestSubmit(); });
      await page.locator(".written", { hasText: "in 2 files" }).waitFor(); // __0_0.distcp and .metadata
      await page.waitForTimeout(500);
      check(await view(page).getByText("Cancelled").count() === 0, "nothing was cancelled");
      check(count === 2, `${count} downloads of two conversions`);
    } finally {
      page.off("download", hear);
    }
  });
  await test("storage that is full, before or while it is written, and a page that gets none, are said in words", async () => {
    const session = await page.context().newCDPSession(page), origin = new URL(page.url()).origin;
    const left = () => page.evaluate(async () => {
      const saved = await (await navigator.storage.getDirectory()).getDirectoryHandle("tessera-saved"), names = [];
      for await (const name of saved.keys()) names.push(name);
      return names.length;
    });
    const before = await left(), says = (text) => page.locator("section[aria-label=Save] .trouble", { hasText: text }).waitFor();
    const submit = () => page.getByRole("button", { name: "Save…", exact: true }).click();
    try {
      await convert(page, "dcp_tp_fsdp2", () => fill(page, { Form: "torch" }));
      const { usage } = await session.send("Storage.getUsageAndQuota", { origin });
      for (const [size, text] of [[1, "there is not enough space in the browser's storage"], [usage + 3000, "there is not enough space for the file; free some"]]) {
        await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: size });
        await submit();
        await says(text);
        await ready(page);
      }
      check(await left() === before, "something was left behind");
      await page.evaluate(() => Object.defineProperty(globalThis, "isSecureContext", { configurable: true, value: false }));
      await submit();
      await says("the browser gives no storage to a page that another machine serves over plain HTTP");
    } finally {
      await session.send("Storage.overrideQuotaForOrigin", { origin });
      await page.evaluate(() => Object.defineProperty(globalThis, "isSecureContext", { configurable: true, value: true }));
      await session.detach();
    }
  });
  await test("a name that would lead out of a zip, or that is not a name, is refused", async () => {
    for (const name of ["../one", "a/b", "a\\b", "..", "."]) {
      await page.locator("section[aria-label=Save]").getByLabel("Name").fill(name);
      await page.getByRole("button", { name: "Save…", exact: true }).click();
      await page.locator("section[aria-label=Save] .trouble", { hasText: `'${name}' cannot be the name of a file or directory` }).waitFor();
    }
  });
  const left = () => page.evaluate(async () => {
    const saved = await (await navigator.storage.getDirectory()).getDirectoryHandle("tessera-saved"), names = [];
    for await (const name of saved.keys()) names.push(name);
    return names.length;
  });
  await test("what a page writes stays, although another page that is opened meanwhile removes what earlier ones left", async () => {
    const other = await page.context().newPage();
    try {
      await other.addInitScript(() => {
        const { getDirectoryHandle, keys } = FileSystemDirectoryHandle.prototype;
        FileSystemDirectoryHandle.prototype.getDirectoryHandle = async function (...of) {
          await new Promise((resolve) => { globalThis.look = resolve; });
          return getDirectoryHandle.apply(this, of);
        };
        FileSystemDirectoryHandle.prototype.keys = async function* () {
          yield* keys.call(this);
          globalThis.hasLooked = true;
        };
      });
      await other.goto(page.url());
      await other.waitForFunction(() => globalThis.look);
      await page.bringToFront();
      const before = await left();
      await download("safetensors_model", { Form: "torch" });
      await other.evaluate(() => globalThis.look());
      await other.waitForFunction(() => globalThis.hasLooked);
      check(await left() === before + 1, `${await left()} copies where ${before} were and one was made`);
    } finally {
      await other.close();
    }
  });
  await test("what an earlier page left in the origin's storage is removed, and what an open page needs stays", async () => {
    check(await left() > 0, "the copy is gone while its page is open");
    await page.reload();
    const end = Date.now() + PATIENCE;
    while (await left() > 0 && Date.now() < end) await page.waitForTimeout(100);
    check(await left() === 0, `${await left()} copies are left`);
  });
}

/** What was typed and written is shown again when the view is visited again. */
async function testVisits(page) {
  const heading = () => page.locator("section[aria-label=Save] h2").textContent();
  for (const [view, form] of [["Convert…", "dcp"], ["Reshard…", "torch"]]) {
    await test(`${view} shows what it wrote after another view, until something else would be written`, async () => {
      await clearChosen(page);
      await lendPlaces(page);
      await open(page, path.join(samples, "safetensors_index"));
      await goTo(page, view);
      await page.locator("section[aria-label=Save]").getByLabel("Name").waitFor();
      await page.getByLabel("Form").selectOption(form);
      await page.locator("section[aria-label=Save]").getByLabel("Name").fill("written-here");
      await ready(page);
      await saved(page);
      await goTo(page, "Files");
      await goTo(page, view);
      await ready(page);
      check(await heading() === "What was written", await heading());
      check(await page.locator("section[aria-label=Save]").getByLabel("Name").inputValue() === "written-here" && await page.getByLabel("Form").inputValue() === form, "another name or form");
      await page.locator("section[aria-label=Save]").getByLabel("Name").fill("elsewhere");
      check(await heading() === "What will be written", await heading());
    });
  }
  await test("an error names the form's fields, not the command's options", async () => {
    await convert(page, "dcp_fsdp2", () => fill(page, { Form: "dcp" }));
    await page.getByLabel("Only names that match", { exact: true }).fill("nix.**");
    await page.locator("section[aria-label=Save] .trouble", { hasText: "nothing is selected: “Only names that match” 'nix.**' matches no name" }).waitFor();
  });
}

async function testRefusals(page) {
  await test("a refusal has the core's message next to the form, and nothing can be saved", async () => {
    await open(page, path.join(samples, "dcp_fsdp2"));
    await goTo(page, "Convert…");
    await showFields(page);
    await page.getByLabel("Non-tensor objects").selectOption("refuse");
    await page.locator("section[aria-label=Save] .trouble", { hasText: "which safetensors cannot" }).waitFor();
    check(await page.getByRole("button", { name: "Save…", exact: true }).isDisabled(), "it can be saved");
    await page.getByLabel("Form").selectOption("dcp");
    await page.getByLabel("Renames, one per line").fill("no equals sign");
    await page.locator("section[aria-label=Save] .trouble", { hasText: "FROM=TO" }).waitFor();
  });
  await test("a directory that exists is refused, and stays as it is", async () => {
    await clearChosen(page);
    await lendPlaces(page);
    await page.evaluate(async () => {
      const one = await (await (await navigator.storage.getDirectory()).getDirectoryHandle("chosen")).getDirectoryHandle("one", { create: true });
      const stream = await (await one.getFileHandle("mine.txt", { create: true })).createWritable();
      await stream.write("mine");
      await stream.close();
    });
    await convert(page, "dcp_fsdp2", () => fill(page, { Form: "dcp" }));
    await page.getByRole("button", { name: "Save…", exact: true }).click();
    await page.locator("section[aria-label=Save] .trouble", { hasText: "'one' exists in 'chosen'; choose another name" }).waitFor();
    check(JSON.stringify([...await chosenFiles(page)].map(([n, b]) => [n, String(b)])) === '[["one/mine.txt","mine"]]', "the directory changed");
  });
  await test("metadata without data files is refused with the files' names", async () => {
    const lone = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-lone-"));
    fs.copyFileSync(path.join(samples, "dcp_fsdp2/.metadata"), path.join(lone, ".metadata"));
    await open(page, lone);
    await goTo(page, "Convert…");
    await page.locator("section[aria-label=Save] .trouble", { hasText: "absent; open the checkpoint together with its data files" }).waitFor();
    fs.rmSync(lone, { recursive: true });
  });
}

async function testFaults(page, scratch) {
  for (const name of ["broken_dcp_truncated", "broken_dcp_hole"]) {
    await test(`${name}: it is said before writing that this fails, as the command says it`, async () => {
      const target = path.join(samples, name), run = (...options) => spawnSync(native, ["convert", target, path.join(scratch, `${name}.safetensors`), "--objects", "drop", ...options], { encoding: "utf8" });
      const { status, stderr } = run("--dry-run");
      check(status === 2, "the command would write it");
      check(run("--exclude", /'([^']+)'/.exec(stderr)[1]).status === 0, "the command does not write the rest");
      await open(page, target);
      await goTo(page, "Convert…");
      await page.locator("section[aria-label=Save]").getByText(stderr.trim().split(": ").slice(2).join(": ")).waitFor();
    });
  }
}

/** Begins the script of each worker: what is written beyond 32 MiB waits until the page says so on this channel. */
const HELD = `{
  const { write } = FileSystemWritableFileStream.prototype, released = new Promise((resolve) => { new BroadcastChannel("release").onmessage = resolve; });
  let bytes = 0;
  FileSystemWritableFileStream.prototype.write = async function (part) {
    if ((bytes += part.data.byteLength) > 32 << 20) await released;
    return write.call(this, part);
  };
}`;

/** A page in which what is written waits. A conversion goes on only after `release`, so that no test depends on how fast it is. */
async function heldPage(context, url, broken) {
  const page = await context.newPage();
  page.on("pageerror", (e) => broken.push(e.message));
  await page.addInitScript((begin) => {
    globalThis.Blob = new Proxy(Blob, { construct: (target, [parts = [], options = {}]) => new target(options.type === "text/javascript" ? [begin, ...parts] : parts, options) });
  }, HELD);
  await page.goto(url);
  return { page, release: () => page.evaluate(() => new BroadcastChannel("release").postMessage("")) };
}

async function testCancel({ context, url, broken }, scratch) {
  if (!fs.existsSync(python)) return skip("a conversion that is cancelled", "there is no .local/venv");
  const large = path.join(scratch, "large.safetensors");
  const p = spawnSync(python, ["-c", `import torch; from safetensors.torch import save_file; save_file({f"w{i}": torch.full((1 << 22,), float(i)) for i in range(24)}, ${JSON.stringify(large)})`], { encoding: "utf8" });
  check(p.status === 0, p.stderr);
  const { page, release } = await heldPage(context, url, broken);
  const begin = async (form, name) => {
    await clearChosen(page);
    await lendPlaces(page);
    await open(page, large);
    await goTo(page, "Convert…");
    await fill(page, { Form: form });
    await ready(page);
    await page.getByRole("button", { name: "Save…", exact: true }).click();
    await page.locator(".job", { hasText: "Converting" }).waitFor();
    await page.locator(".job", { hasText: /MiB of 38\d\.\d MiB/ }).waitFor();
    const { sizes } = await chosenSizes(page), begun = Object.entries(sizes);
    check(begun.length > 0 && begun.every(([n, size]) => size === 0 && n.startsWith(name)), `${JSON.stringify(sizes)} while it is being written`);
  };
  const ends = async (act) => {
    await act();
    const end = Date.now() + PATIENCE, left = async () => Object.values(await chosenSizes(page)).flatMap((l) => Array.isArray(l) ? l : Object.keys(l));
    while ((await left()).length && Date.now() < end) await page.waitForTimeout(50);
    check((await left()).length === 0, `left: ${(await left()).join(" ")}`);
  };
  for (const [form, name] of [["dcp", "one/"], ["torch", "one.pt"]]) {
    await test(`a conversion to ${form} that is cancelled leaves nothing`, async () => {
      await begin(form, name);
      await ends(async () => {
        await page.locator(".job").getByRole("button", { name: "Cancel" }).click();
        await release();
      });
      await view(page).locator("text=Cancelled. Nothing was left behind.").waitFor();
    });
  }
  await test("a conversion of a checkpoint that is closed leaves nothing", async () => {
    await begin("dcp", "one/");
    await ends(() => page.getByRole("button", { name: "Tessera", exact: true }).click());
  });
  await test("the page can be used while it writes, and the marker comes last", async () => {
    await begin("dcp", "one/");
    await goTo(page, "Contents");
    await page.getByLabel("Filter").fill("w1");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "11 matches" }).waitFor();
    check(await page.locator(".job", { hasText: "Converting" }).count() === 1, "it ended while it was held");
    await goTo(page, "Convert…");
    await release();
    await page.locator(".written", { hasText: "24 tensors" }).waitFor();
    check((await chosenSizes(page)).sizes["one/.metadata"] > 0, "the marker is not there");
  });
  await clearChosen(page);
  await page.close();
  return undefined;
}

async function testReshard(page, scratch) {
  const CASES = [
    ["dcp_fsdp2", [["3", "shard(0)"]], "", ["--mesh", "dp=3", "--placements", "shard(0)"]],
    ["dcp_tp_fsdp2", [["2", "shard(0)"], ["2", "shard(1)"]], "torch", ["--mesh", "dp=2,dim1=2", "--placements", "shard(0),shard(1)", "--to", "torch"]],
  ];
  for (const [sample, dims, to, options] of CASES) {
    await test(`${sample} is written as tessera reshard ${options.join(" ")} writes it, after its plan`, async () => {
      await clearChosen(page);
      await lendPlaces(page);
      await open(page, path.join(samples, sample));
      await goTo(page, "Reshard…");
      const [[size, placement]] = dims;
      if (dims.length > 1) await page.getByRole("radio", { name: "A device mesh" }).check();
      else {
        await page.getByRole("spinbutton", { name: "Ranks" }).fill(size);
        await page.getByLabel("Each tensor is").selectOption(placement);
      }
      for (const [i, [size, placement]] of dims.length > 1 ? dims.entries() : []) {
        if (i) await page.getByRole("button", { name: "Add a mesh dim" }).click();
        await page.getByLabel(`Size of mesh dim ${i + 1}`).fill(size);
        await page.getByLabel(`Placement on mesh dim ${i + 1}`).selectOption(placement);
      }
      const ranks = dims.reduce((n, [size]) => n * Number(size), 1);
      await page.locator(`[aria-label=Ranks] tbody tr:nth-child(${ranks})`).waitFor();
      await page.locator(`[aria-label=Ranks] tbody tr:nth-child(${ranks + 1})`).waitFor({ state: "detached" });
      await page.getByLabel("Form").selectOption(to);
      await page.locator("section[aria-label=Save]").getByLabel("Name").fill("one");
      await ready(page);
      await saved(page);
      const at = path.join(scratch, `${sample}-resharded`);
      tessera("reshard", path.join(samples, sample), at, ...options);
      expectSame(below(await chosenFiles(page), "one/"), filesBelow(at));
    });
  }
}

const MAP = { schema: "tessera.map/1", rules: [{ from: ["model.layers.{layer}.block_sparse_moe.{rest...}"], to: ["net.{layer}.moe.{rest...}"] }, { from: ["model.embed_tokens.weight"], to: ["net.words"], do: [{ transpose: [1, 0] }] }, { from: ["lm_head.weight"], to: ["net.head"] }] };
const MODELS = `
import sys, torch
from safetensors.torch import save_file
at = iter(range(1 << 20))
fill = lambda *shape: (torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape) + 1000 * next(at))
moe = {f"model.layers.{l}.block_sparse_moe.experts.{e}.{w}.weight": fill(*shape) for l in range(2) for e in range(4) for w, shape in (("w1", (6, 4)), ("w2", (4, 6)), ("w3", (6, 4)))}
moe |= {f"model.layers.{l}.block_sparse_moe.gate.weight": fill(4, 4) for l in range(2)}
save_file(moe | {"model.embed_tokens.weight": fill(8, 4), "lm_head.weight": fill(8, 4)}, sys.argv[1] + "/mixtral.safetensors")
save_file({"proj.weight": (fill(256, 130) % 17).to(torch.float8_e4m3fn), "proj.weight_scale_inv": fill(2, 2) + 0.5, "norm.weight": torch.arange(3.)}, sys.argv[1] + "/scaled.safetensors")
save_file({"proj.weight": torch.sin(fill(256, 130)), "norm.weight": torch.arange(3.)}, sys.argv[1] + "/full.safetensors")
`;

async function testMaps(page, scratch) {
  if (!fs.existsSync(python)) return skip("conversions with maps", "there is no .local/venv");
  const made = spawnSync(python, ["-c", MODELS, scratch], { encoding: "utf8" }), own = path.join(scratch, "my map.json"), source = path.join(scratch, "mixtral.safetensors"), owned = path.join(scratch, "owned.safetensors");
  check(made.status === 0, made.stderr);
  fs.writeFileSync(own, JSON.stringify(MAP));
  const group = page.locator("[role=group][aria-label=Map]"), command = page.locator(".command code");
  const builtIn = (name) => group.getByLabel("Names and layouts become").selectOption(name);
  const ownMap = () => group.locator("input[type=file]").setInputFiles(own);
  const begin = async (file, tab, act) => {
    await clearChosen(page);
    await lendPlaces(page);
    await open(page, file);
    await goTo(page, tab);
    await act();
    await page.locator("section[aria-label=Save]").getByLabel("Name").fill("one");
  };
  const CASES = [
    ["a built-in map", source, () => builtIn("transformers-mixtral"), ["--map", "transformers-mixtral"]],
    ["a map in a file", source, ownMap, ["--map", own], owned],
    ["a map backwards", owned, async () => { await ownMap(); await group.getByLabel("Apply the map backwards").check(); }, ["--map", own, "--inverse"]],
    ["scales that are applied", path.join(scratch, "scaled.safetensors"), () => fill(page, { "Weights become": "dequantize" }), ["--dequantize"]],
    ["weights that are quantized", path.join(scratch, "full.safetensors"), () => fill(page, { "Weights become": "fp8-block" }), ["--quantize", "fp8-block"]],
  ];
  for (const [what, file, act, options, keep] of CASES) {
    await test(`${what}: it is written as tessera convert ${options[0]} writes it`, async () => {
      const native = keep ?? path.join(scratch, `${what}.safetensors`);
      tessera("convert", file, native, ...options);
      check(!fs.readFileSync(native).equals(fs.readFileSync(file)), "nothing changes");
      await begin(file, "Convert…", act);
      await ready(page);
      const wanted = options.map((o) => o === own ? "'my map.json'" : o).join(" ");
      check((await command.textContent()).endsWith(` ${wanted}`), await command.textContent());
      await saved(page);
      expectSame(await chosenFiles(page), new Map([["one.safetensors", fs.readFileSync(native)]]));
    });
  }
  await test("a map of another model is refused, and the refusal goes with the map", async () => {
    await begin(source, "Convert…", () => builtIn("torchtitan-llama3"));
    await page.locator("section[aria-label=Save] .trouble").waitFor();
    check(await page.getByRole("button", { name: "Save…", exact: true }).isDisabled(), "it can be saved");
    await builtIn("");
    await ready(page);
  });
  await test("a reshard with a map is planned and written as tessera reshard --map writes it", async () => {
    await begin(source, "Reshard…", async () => {
      await page.getByRole("spinbutton", { name: "Ranks" }).fill("2");
      await builtIn("transformers-mixtral");
      await page.locator(".facts", { hasText: "tensors" }).waitFor();
    });
    await ready(page);
    const tensors = (await page.locator("section[aria-label=Reshard] .facts").textContent()).match(/tensors(\d+)/)?.[1], at = path.join(scratch, "mapped");
    check(tensors === "8", `${tensors} tensors`);
    await saved(page);
    tessera("reshard", source, at, "--mesh", "dp=2", "--placements", "shard(0)", "--map", "transformers-mixtral");
    expectSame(below(await chosenFiles(page), "one/"), filesBelow(at));
  });
  return undefined;
}

export async function testWriting({ page, url, context, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-writing-"));
  try {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await testConversions(page, scratch);
    await testReshard(page, scratch);
    await testMaps(page, scratch);
    await testRefusals(page);
    await testVisits(page);
    await testFaults(page, scratch);
    await testCancel({ context, url, broken }, scratch);
    await testDownloads(page, scratch);
    await test("no writing breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
