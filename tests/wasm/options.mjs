/** Tests options that no other file compares. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { refusalOf } from "./calls.mjs";
import { comparer } from "./compare.mjs";
import { check, errorOf, same, test } from "../support/harness.mjs";
import { expandedFile } from "./torch_files.mjs";

const GOLDEN = "tests/golden";
const QUANTIZED = [[{}, []], [{ noQuantize: ["**.up*", "tall.*"] }, ["--no-quantize", "**.up*", "--no-quantize", "tall.*"]], [{ dtype: "bfloat16" }, ["--dtype", "bfloat16"]],
  [{ include: ["tall.**"] }, ["--include", "tall.**"]], [{ rawCast: true }, ["--raw-cast"]], [{ exclude: ["**.weight"] }, ["--exclude", "**.weight"]], [{ exclude: ["**_scale_inv"] }, ["--exclude", "**_scale_inv"]]];

/** Tests --quantize, --no-quantize and --lora, and the options of diff, read and optimizer. */
export async function testOptions(environment) {
  const { tessera, root, withOpened, sourceOf } = environment, scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-options-"));
  const { files, run } = comparer(environment, scratch);
  const golden = (...names) => path.join(root, GOLDEN, ...names), weights = golden("quantized", "weights.safetensors");

  for (const [options, args] of QUANTIZED) {
    await test(`quantize ${args.join(" ")}`, () => files(weights, {}, ["convert", { to: "safetensors", quantize: "fp8-block", ...options }], ["--to", "safetensors", "--quantize", "fp8-block", ...args]));
    await test(`quantize and reshard ${args.join(" ")}`, () => files(weights, {}, ["reshard", { to: "dcp", mesh: "dp=3", placements: "shard(0)", quantize: "fp8-block", ...options }], ["--to", "dcp", "--mesh", "dp=3", "--placements", "shard(0)", "--quantize", "fp8-block", ...args]));
  }
  await test("what is quantized is what transformers writes", async () => {
    const at = path.join(scratch, "fp8.safetensors"), source = sourceOf(weights), opened = tessera.open(source.files, source.options), parts = [];
    await opened.convert({ to: "safetensors", quantize: "fp8-block" }, { create() {}, finish() {}, write: (_, offset, bytes) => void parts.push([offset, Buffer.from(bytes)]) });
    const bytes = Buffer.alloc(Math.max(...parts.map(([offset, part]) => offset + part.length)));
    for (const [offset, part] of parts) part.copy(bytes, offset);
    fs.writeFileSync(at, bytes);
    check(JSON.parse(run(["diff", at, golden("quantized", "fp8-block.safetensors"), "--json", "--values"]).stdout).same, "the values differ");
    opened.close();
    source.close();
  });
  for (const [options, args] of [[{ quantize: "fp4" }, ["--quantize", "fp4"]], [{ noQuantize: ["a"] }, ["--no-quantize", "a"]]])
    await test(`refused: ${args.join(" ")}`, () => files(weights, {}, ["convert", { to: "torch", ...options }], ["--to", "torch", ...args]));

  for (const name of fs.readdirSync(golden("merging", "lora")).filter((n) => fs.existsSync(golden("merging", "lora", n, "base.safetensors")))) {
    const base = golden("merging", "lora", name, "base.safetensors"), directory = golden("merging", "lora", name, "adapter"), source = sourceOf(directory);
    const lora = tessera.open(source.files, source.options);
    for (const [options, args] of [[{}, []], [{ dtype: "bfloat16", include: ["**.weight"] }, ["--dtype", "bfloat16", "--include", "**.weight"]], [{ quantize: "fp8-block" }, ["--quantize", "fp8-block"]]])
      await test(`lora ${name} ${args.join(" ")}`, () => files(base, {}, ["convert", { to: "safetensors", lora, ...options }], ["--to", "safetensors", "--lora", directory, ...args]));
    lora.close();
    source.close();
  }
  const adapters = golden("adapters");
  for (const [name, { base }] of Object.entries(JSON.parse(fs.readFileSync(path.join(adapters, "cases.json"), "utf8"))))
    await test(`adapter ${name}`, async () => {
      const directory = path.join(adapters, "adapter", name), source = sourceOf(directory), lora = tessera.open(source.files, source.options);
      const without = (text) => text.replace(/adapter \S+: /, "adapter: ");
      await files(path.join(adapters, "base", base), {}, ["convert", { to: "safetensors", objects: "drop", lora }], ["--to", "safetensors", "--objects", "drop", "--lora", directory], without);
      lora.close();
      source.close();
    });
  await test("adapters that are refused, and what is not an adapter", async () => {
    const base = golden("merging", "lora", "plain", "base.safetensors");
    for (const directory of [golden("merging", "lora", "square", "adapter"), golden("merging", "lora", "rslora", "adapter"), path.join(root, "samples/checkpoints/dcp_fsdp2")]) {
      const source = sourceOf(directory), lora = tessera.open(source.files, source.options);
      await files(base, {}, ["convert", { to: "safetensors", lora }], ["--to", "safetensors", "--lora", directory], (text) => text.replace(/adapter \S+: /, "adapter: "));
      lora.close();
      source.close();
    }
    for (const lora of [3, "adapter", {}]) {
      const source = sourceOf(base), opened = tessera.open(source.files, source.options);
      const e = await opened.convert({ to: "torch", lora }, { create() {}, write() {}, finish() {} }).then(() => undefined, (error) => error);
      check(e instanceof TypeError && e.message.includes("'lora'"), `${e}`);
      opened.close();
      source.close();
    }
  });

  const state = path.join(root, "samples/checkpoints/torch_train_state"), model = { include: ["model.**"], rename: ["model.="] }, asked = ["--include", "model.**", "--rename", "model.="];
  const fitting = path.join(scratch, "fitting.safetensors"), list = path.join(scratch, "names");
  run(["convert", state, fitting, ...asked]);
  const layout = run(["layout", fitting]).stdout, names = JSON.parse(layout).entries.map((e) => e.fqn);
  fs.writeFileSync(path.join(scratch, "layout.json"), layout);
  fs.writeFileSync(list, [...names, "head.bias"].join("\n"));
  for (const [options, args] of [[model, asked], [{ ...model, dtype: "float16" }, [...asked, "--dtype", "float16"]], [{ include: ["model.bn.**"] }, ["--include", "model.bn.**"]]]) {
    const convert = (against, at) => files(state, {}, ["convert", { to: "safetensors", ...options, against }], ["--to", "safetensors", ...args, "--against", at]);
    await test(`against a layout ${args.join(" ")}`, () => convert(layout, path.join(scratch, "layout.json")));
    await test(`against names ${args.join(" ")}`, () => convert([...names, "head.bias"], list));
    await test(`against a checkpoint ${args.join(" ")}`, async () => {
      const source = sourceOf(fitting), other = tessera.open(source.files, source.options);
      await convert(other, fitting);
      other.close();
      source.close();
    });
  }

  const [a, b] = ["dcp_fsdp2", "dcp_hsdp"].map((name) => path.join(root, "samples/checkpoints", name));
  const diffOf = (options) => withOpened(a, (left) => withOpened(b, (right) => {
    const diff = left.diff(right, options);
    const before = diff.result();
    while (diff.step());
    const result = diff.result();
    diff.close();
    return { before, result };
  }));
  const sides = (document) => JSON.stringify({ ...document, a: 0, b: 0 });
  const whole = run(["diff", a, b, "--json", "--values"]).stdout, baseline = path.join(scratch, "known.json");
  const some = { ...JSON.parse(whole) };
  some.added = some.added.slice(1);
  some.removed = some.removed.slice(1);
  some.changed = some.changed.slice(1);
  fs.writeFileSync(baseline, JSON.stringify(some));
  for (const [options, args] of [[{}, []], [{ rule: ["diff/value=off", "diff/added=note"] }, ["--rule", "diff/value=off", "--rule", "diff/added=note"]], [{ rule: ["diff/*=off"] }, ["--rule", "diff/*=off"]],
    [{ baseline: fs.readFileSync(baseline, "utf8") }, ["--baseline", baseline]], [{ baseline: some, rule: ["diff/dtype=off"] }, ["--baseline", baseline, "--rule", "diff/dtype=off"]], [{ allowExpansion: true }, ["--allow-expansion"]]])
    test(`diff ${args.join(" ")}`, () => {
      const { before, result } = diffOf(options);
      same(sides(JSON.parse(run(["diff", a, b, "--json", ...args]).stdout)), sides(before), "without values");
      same(sides(JSON.parse(run(["diff", a, b, "--json", "--values", ...args]).stdout)), sides(result), "with values");
    });
  test("diff refuses rules and baselines as the command does", () => {
    for (const [options, args] of [[{ rule: ["diff/nosuch=off"] }, ["--rule", "diff/nosuch=off"]], [{ rule: ["layout/hole=off"] }, ["--rule", "layout/hole=off"]], [{ rule: ["diff/value"] }, ["--rule", "diff/value"]]]) {
      const p = run(["diff", a, b, ...args]), e = errorOf(() => diffOf(options));
      check(p.status === 2 && refusalOf(p.stderr, a).includes(e.message), `native: ${p.stderr}, wasm: ${e.message}`);
    }
    for (const text of ["{", ""]) check(errorOf(() => diffOf({ baseline: text })).status, `'${text}' was taken as a baseline`);
    check(tessera.openCount === 0, `${tessera.openCount} handles are open`);
  });

  const wide = path.join(scratch, "wide.pt");
  fs.writeFileSync(wide, expandedFile(2 ** 29));
  test("tensors that repeat their elements are read and compared only on request", () => {
    check(run(["diff", wide, wide, "--values"]).status === 2, "native compares it");
    const limited = run(["diff", wide, wide, "--values"]).stderr, got = run(["get", wide, "x[0:3]"]);
    check(got.status === 0, got.stderr);
    withOpened(wide, (left) => withOpened(wide, (right) => {
      const diff = left.diff(right), e = errorOf(() => diff.step());
      check(limited.includes(e.message), `native: ${limited}; wasm: ${e.message}`);
      diff.close();
      const allowed = left.diff(right, { allowExpansion: true });
      check(allowed.result().same, "the names differ");
      allowed.close();
      check(run(["get", wide, "x", "-o", path.join(scratch, "x.npy")]).stderr.includes(errorOf(() => left.read("x")).message), "read");
      check(left.read("x", "0:3", { allowExpansion: true }).data.join() === "1.5,1.5,1.5", `${left.read("x", "0:3").data}`);
    }));
    check(tessera.openCount === 0, `${tessera.openCount} handles are open`);
  });
  test("that request changes nothing for other tensors, also where some tensors differ between ranks", () => {
    const ranks = path.join(root, GOLDEN, "directories/accelerate_fsdp_local"), whole = "model._flat_param", apart = "model.0.weight", options = { allowExpansion: true };
    check(run(["get", ranks, whole, "--allow-expansion"]).status === 0, "native does not read it");
    withOpened(ranks, (c) => {
      same(c.read(whole).data.join(), c.read(whole, undefined, options).data.join(), whole);
      check(run(["get", ranks, apart, "--allow-expansion"]).stderr.includes(errorOf(() => c.read(apart, undefined, options)).message), `${apart}: ${errorOf(() => c.read(apart, undefined, options)).message}`);
    });
  });
  const full = path.join(root, "samples/checkpoints/dcp_fsdp2");
  test("optimizer takes a limit of memory", () => {
    withOpened(full, (c) => check(c.optimizer("flatten", { maxMem: "1MiB", allowExpansion: true }).inspect().entries.length > 0, "nothing was made"));
    for (const maxMem of ["big", "-1"]) check(/--max-mem takes a size/.test(errorOf(() => withOpened(full, (c) => c.optimizer("flatten", { maxMem }))).message), maxMem);
  });
  fs.rmSync(scratch, { recursive: true });
}
