/** Compares the options of `open` (part, step, shards, salvage) and maps with --part, --step, --shards, --salvage, --map, --inverse and
 *  --dequantize of the command: documents, errors and the bytes of conversions. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { pathless } from "./calls.mjs";
import { comparer } from "./compare.mjs";
import { check, errorOf, same, test } from "../support/harness.mjs";
import { expandedFile, namingFile } from "./torch_files.mjs";
import { Tessera } from "../../wasm/tessera.js";

/** Makes a safetensors file of F32 tensors, or of the given dtype, whose bytes all differ: { name: [shape, dtype, bytes]
 *  }. */
function safetensors(tensors) {
  const header = {}, bodies = [];
  let at = 0, seed = 1;
  const sizes = { F32: 4, BF16: 2, F8_E4M3: 1, I8: 1 };
  for (const [name, [shape, dtype = "F32"]] of Object.entries(tensors)) {
    const count = shape.reduce((a, b) => a * b, 1);
    const values = dtype === "F32" ? Buffer.from(Float32Array.from({ length: count }, () => ((seed = (seed * 48271) % 2147483647) % 2000) / 512 - 1).buffer)
      : Buffer.from(Uint8Array.from({ length: count * sizes[dtype] }, () => (seed = (seed * 48271) % 2147483647) % 120));
    header[name] = { dtype, shape, data_offsets: [at, (at += values.length)] };
    bodies.push(values);
  }
  const text = Buffer.from(JSON.stringify(header)), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([size, text, ...bodies]);
}

const withDirectory = async (body) => {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-sources-"));
  try {
    await body(scratch, (name, bytes) => {
      const at = path.join(scratch, name);
      fs.mkdirSync(path.dirname(at), { recursive: true });
      fs.writeFileSync(at, bytes);
      return at;
    });
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
};

const READS = [
  ["inspect", (c) => c.inspect({ hash: "sha256" }), (t) => ["inspect", t, "--json", "--hash", "sha256"]],
  ["validate", (c) => c.validate({ deep: true }), (t) => ["validate", t, "--json", "--deep"]],
  ["layout", (c) => c.layout(), (t) => ["layout", t]],
  ["manifest", (c) => c.manifest(), (t) => ["manifest", t]],
  ["canonicalize", (c) => c.canonicalize(), (t) => ["fqn", "--checkpoint", t, "--json"]],
  ["plan", (c) => c.plan({ mesh: "dp=2", placements: "shard(0)", items: true }), (t) => ["plan", t, "--json", "--items", "--mesh", "dp=2", "--placements", "shard(0)"]],
];
const WRITES = [
  [["convert", { to: "torch" }], ["--to", "torch"]],
  [["convert", { to: "dcp" }], ["--to", "dcp"]],
  [["convert", { to: "safetensors", objects: "drop" }], ["--to", "safetensors", "--objects", "drop"]],
  [["convert", { to: "deepspeed-universal" }], ["--to", "deepspeed-universal"]],
  [["reshard", { to: "dcp", mesh: "dp=2", placements: "shard(0)" }], ["--to", "dcp", "--mesh", "dp=2", "--placements", "shard(0)"]],
];

/** --part, --step, --shards. */
export const testSources = (environment) => withDirectory(async (scratch, put) => {
  const { root, withOpened, tessera } = environment, { documents, files, run } = comparer(environment, scratch);
  const golden = path.join(root, "tests/golden"), samples = path.join(root, "samples/checkpoints");

  async function each(target, options, args, what) {
    for (const [name, call, argsOf] of READS) test(`${what} ${args.join(" ")} ${name}`, () => documents(target, options, call, [...argsOf(target), ...args]));
    for (const [job, more] of WRITES) await test(`${what} ${args.join(" ")} ${job[0]} ${more.join(" ")}`, () => files(target, options, job, [...more, ...args]));
  }

  /* Real checkpoints of training frameworks, as a whole and part by part. */
  for (const framework of ["deepspeed", "megatron", "directories", "torchao", "frameworks"]) {
    for (const name of fs.readdirSync(path.join(golden, framework)).filter((n) => fs.statSync(path.join(golden, framework, n)).isDirectory())) {
      const target = path.join(golden, framework, name), what = `${framework}/${name}`, p = run(["inspect", target, "--json"]);
      await each(target, {}, [], what);
      if (p.status) continue;
      for (const part of JSON.parse(p.stdout).summary.parts ?? []) await each(target, { part: part.name }, ["--part", part.name], what);
      test(`${what} refuses parts that it does not have`, () => documents(target, { part: "nosuch" }, (c) => c.inspect(), ["inspect", target, "--json", "--part", "nosuch"]));
    }
  }

  /* A run with two checkpoints, first without and then with a file that names one. */
  for (const [name, sample] of [["step-90", "dcp_fsdp2"], ["step-100", "dcp_hsdp"]]) fs.cpSync(path.join(samples, sample), path.join(scratch, "run", name), { recursive: true });
  const target = path.join(scratch, "run");
  for (const step of ["latest", "90", "step-100", "nosuch", "0"]) await each(target, { step }, ["--step", step], "run");
  test("a directory of several checkpoints is refused with their list", () => documents(target, {}, (c) => c.inspect(), ["inspect", target, "--json"]));
  put("run/latest", "step-90");
  await each(target, {}, [], "run with latest");
  test("both sides of a diff have their own step", () => {
    const p = run(["diff", path.join(target, "step-90"), path.join(target, "step-100"), "--json", "--values"]);
    withOpened(target, (a) => withOpened(target, (b) => {
      const diff = a.diff(b);
      while (diff.step());
      same(pathless({ ...JSON.parse(p.stdout), a: 0, b: 0 }, target), pathless({ ...diff.result(), a: 0, b: 0 }, target), "diff");
    }, { step: "100" }), { step: "90" });
  });

  /* A pipeline of diffusers: two models and what is not one. */
  put("pipeline/model_index.json", JSON.stringify({ _class_name: "SomePipeline", unet: ["diffusers", "UNet2DModel"], text_encoder: ["transformers", "CLIPTextModel"], scheduler: ["diffusers", "DDIMScheduler"] }));
  for (const [part, sample] of [["unet", "safetensors_model/model.safetensors"], ["text_encoder", "safetensors_dtypes/dtypes.safetensors"]]) {
    put(`pipeline/${part}/config.json`, "{}");
    fs.copyFileSync(path.join(samples, sample), path.join(scratch, "pipeline", part, "model.safetensors"));
  }
  put("pipeline/scheduler/scheduler_config.json", "{}");
  check(JSON.parse(run(["inspect", path.join(scratch, "pipeline"), "--json"]).stdout).format === "diffusers", "the pipeline is recognized");
  await each(path.join(scratch, "pipeline"), {}, [], "pipeline");
  await each(path.join(scratch, "pipeline"), { part: "unet" }, ["--part", "unet"], "pipeline");

  /* Files that were cut short. */
  const torch = fs.readFileSync(path.join(samples, "torch_train_state", "train.pt")), model = fs.readFileSync(path.join(samples, "safetensors_model", "model.safetensors"));
  for (const [name, bytes] of [["cut.pt", torch.subarray(0, torch.length * 0.7)], ["cut.safetensors", model.subarray(0, model.length - 1)], ["long.safetensors", Buffer.concat([model, Buffer.alloc(9)])]])
    await each(put(name, bytes), { salvage: true }, ["--salvage"], name);
  test("what is whole of a truncated file is opened only if that is asked for", () => documents(path.join(scratch, "cut.pt"), {}, (c) => c.inspect(), ["inspect", path.join(scratch, "cut.pt"), "--json"]));

  test("files of several nodes are one checkpoint, in which files with the same name must have the same bytes", () => {
    const nodes = ["a", "b"].map((name) => path.join(scratch, "nodes", name)), note = Buffer.alloc((1 << 20) + 3, "note");
    for (const [i, node] of nodes.entries()) {
      fs.cpSync(path.join(samples, "dcp_fsdp2"), node, { recursive: true });
      for (const name of fs.readdirSync(node)) if (i ? /__[01]_|metadata/.test(name) : /__[23]_/.test(name)) fs.rmSync(path.join(node, name));
      fs.writeFileSync(path.join(node, "note.txt"), note);
    }
    const open = () => tessera.open(nodes.flatMap((node) => environment.sourceOf(node).files)), native = () => run(["inspect", nodes[0], "--also", nodes[1], "--json", "--hash", "xxh3"]);
    const checkpoint = open();
    same(pathless(JSON.parse(native().stdout), nodes[0]), pathless(checkpoint.inspect({ hash: "xxh3" }), nodes[0]), "nodes");
    checkpoint.close();
    for (const at of [note.length - 1, 0, undefined]) {
      fs.writeFileSync(path.join(nodes[1], "note.txt"), at === undefined ? note.subarray(1) : Buffer.from(note).fill("N", at, at + 1));
      check(native().status === 2 && /^two files have the name 'note.txt'/.test(errorOf(open).message), `other bytes at ${at}`);
    }
    const file = (read) => ({ name: "x", size: 3, read }), gone = () => { throw new Error("gone"); };
    check(errorOf(() => tessera.open([file(gone), file(gone)])).status === "input/output" && errorOf(() => tessera.open([file(gone), file(async () => {})])) instanceof TypeError, "failing sources");
    check(tessera.openCount === 0, "something is open");
  });

  /* Ranks with plain tensors, joined by a map, and sharded again for more ranks. */
  for (const rank of [0, 1]) put(`ranks/model-rank-${rank}-part-0.safetensors`, safetensors({ [`only.${rank}`]: [[1 + rank]], "a.weight": [[4, 6]], "b.weight": [[8, 2], "BF16"], "c.fused": [[6, 3]], norm: [[4]] }));
  const shards = { schema: "tessera.shards/1", rules: [{ match: "a.weight", concat: 1 }, { match: "b.*", concat: 0 }, { match: "c.fused", concat: 0, blocks: 3 }, { match: "norm", only_rank: 1 }, { match: "only.*", concat: 0 }] };
  const ranks = path.join(scratch, "ranks"), map = put("shards.json", JSON.stringify(shards));
  for (const given of [shards, fs.readFileSync(map, "utf8")]) await each(ranks, { shards: given }, ["--shards", map], "ranks");
  await each(ranks, {}, [], "ranks without a map");
  for (const [options, args] of [[{ to: "ranks", worldSize: 2 }, ["--world-size", "2"]], [{ to: "ranks", worldSize: 4 }, ["--world-size", "4"]], [{ to: "ranks" }, []]])
    await test(`ranks to ranks ${args.join(" ")}`, () => files(ranks, { shards }, ["convert", options], ["--to", "ranks", "--shards", map, ...args]));
  await test("a worldSize of 0", () => files(path.join(samples, "safetensors_model"), {}, ["convert", { to: "torch", worldSize: 0 }], ["--to", "torch", "--world-size", "0"]));
  await test("--to ranks without a map", () => files(path.join(samples, "safetensors_model"), {}, ["convert", { to: "ranks" }], ["--to", "ranks"]));
  await test("shards that have no effect are named in the documents of conversions, and by the checkpoint", async () => {
    const plain = path.join(samples, "safetensors_model"), warning = /^--shards is not used for this checkpoint: /;
    for (const [job, args] of WRITES.slice(0, 3)) await files(plain, { shards }, job, [...args, "--shards", map]);
    check(JSON.parse(run(["convert", plain, path.join(scratch, "plain.pt"), "--json", "--shards", map]).stdout).warnings.some((w) => warning.test(w)), "native is silent");
    withOpened(plain, (c) => check(c.warnings.length === 1 && warning.test(c.warnings[0]), `warnings: ${c.warnings}`), { shards });
    for (const rank of [0, 1]) put(`pair/model-rank-${rank}-part-0.safetensors`, safetensors({ "a.weight": [[2 + rank, 6]] }));
    withOpened(path.join(scratch, "pair"), (c) => check(c.warnings.length === 0 && c.inspect().entries[0].shape[0] === 5, `warnings of ranks: ${c.warnings}`), { shards: { schema: "tessera.shards/1", rules: [{ match: "a.weight", concat: 0 }] } });
    withOpened(plain, (c) => check(c.warnings.length === 0, `warnings without shards: ${c.warnings}`));
  });
  test("shards that are neither a document nor a built-in map are refused", () => {
    const { files: listed } = environment.sourceOf(ranks);
    for (const given of ["nosuch", '{"schema": "tessera.shards/1"}', "{", { schema: "tessera.shards/2" }]) check(errorOf(() => tessera.open(listed, { shards: given })).status, `${given} was taken`);
    for (const given of [3, true, ["a"]]) check(errorOf(() => tessera.open(listed, { shards: given })) instanceof TypeError, `${given} was taken`);
    check(/meta-llama/.test(errorOf(() => tessera.open(listed, { shards: "nosuch" })).message), "the built-in maps are not named");
    check(tessera.openCount === 0, "something is open");
  });
});

/** Whether the names in a pickle exist. */
export const testNames = (environment) => withDirectory(async (scratch, put) => {
  const { documents, run } = comparer(environment, scratch);
  for (const [module, name, exists] of [["torch", "Tensor", true], ["torch", "Tensr", false], ["torch.nn", "Linear", true], ["torch.nn", "Liner", false], ["numpy", "ndarray", true], ["numpy", "ndarry", false],
    ["builtins", "dict", true], ["builtins", "dct", false], ["collections", "Countr", false], ["uuid", "UUID", true], ["torch.made.up", "X", true]]) {
    test(`a pickle that names ${module}.${name}`, () => {
      const target = put("names.pt", namingFile(module, name)), found = run(["validate", target, "--json"]).stdout;
      check(/"pickle\/unloadable"|can do harm/.test(found) === !exists, `native: ${found}`);
      documents(target, {}, (c) => c.validate(), ["validate", target, "--json"]);
      documents(target, {}, (c) => JSON.parse(c.document("findings")), ["validate", target, "--json"]);
    });
  }
  test("names with lone surrogates are listed, found, and read in documents", () => {
    for (const [bytes, name] of [["61eda080622e77", "a\ud800b.w"], ["edbfbf", "\udfff"], ["f09f9880edb08064", "\u{1f600}\udc00d"]]) {
      const target = put("surrogates.pt", expandedFile(3, { name: Buffer.from(bytes, "hex") })), manifest = run(["manifest", target]).stdout, at = put("manifest.json", manifest), layout = put("layout.json", run(["layout", target]).stdout);
      documents(target, {}, (c) => c.inspect({ include: [name] }), ["inspect", target, "--json"]);
      for (const document of [manifest, JSON.parse(manifest)]) documents(target, {}, (c) => c.verify(document), ["verify", target, at, "--json"]);
      documents(target, {}, (c) => c.validate({ layout: c.layout() }), ["validate", target, "--json", "--layout", layout]);
      environment.withOpened(target, (c) => {
        check(c.find(name) === 0 && c.read(name).data.join() === "1.5,1.5,1.5" && c.validate({ against: [name] }).findings.length === 0, `'${name}' is not found`);
        const [row] = c.outline().rows(0, 9).slice(-1);
        same(name, row.fqn, "the outline's name");
        check(/\\xed\\xa0\\x81'/.test(errorOf(() => c.read(`${name}\ud801`)).message), "another name in the error");
      });
    }
  });
});

/** --map, --inverse, --dequantize. */
export const testMaps = (environment) => withDirectory(async (scratch, put) => {
  const { tessera, root, withOpened } = environment, { documents, files, run } = comparer(environment, scratch);
  const experts = Object.fromEntries([0, 1].flatMap((layer) => [["gate", [4, 6]], ...[0, 1, 2, 3].flatMap((e) => [["w1", [5, 6]], ["w2", [6, 5]], ["w3", [5, 6]]].map(([w, shape]) => [`experts.${e}.${w}`, shape]))]
    .map(([name, shape]) => [`model.layers.${layer}.block_sparse_moe.${name}.weight`, [shape]])));
  const mixtral = put("mixtral/model.safetensors", safetensors({ ...experts, "model.embed_tokens.weight": [[8, 6]], "lm_head.weight": [[8, 6], "BF16"] }));
  const own = { schema: "tessera.map/1", rules: [{ from: ["a"], to: ["x", "y"], do: [{ split: 0, parts: 2 }] }, { from: ["l.{i}"], to: ["all"], do: [{ transpose: [1, 0] }, { stack: 0 }] }] };
  const source = put("own/model.safetensors", safetensors({ a: [[4, 3]], "l.0": [[2, 3]], "l.1": [[2, 3]] }));
  const scaled = put("scaled/model.safetensors", safetensors({ "w": [[256, 130], "F8_E4M3"], "w_scale_inv": [[2, 2]], "q.weight": [[7, 64], "I8"], "q.weight_scale": [[7, 4]], n: [[3]] }));
  const refused = { ...own, rules: own.rules.slice(0, 1) }, odd = { ...own, rules: [{ from: ["a"], to: ["x"], do: [{ twist: 1 }] }] };
  const paths = new Map([own, refused, odd].map((map, i) => [map, put(`map${i}.json`, JSON.stringify(map))]));
  const cases = [[mixtral, "transformers-mixtral"], [source, own], [source, refused], [source, odd], [source, "transformers-mixtral"], [source, "nosuch"]];
  const argsOf = (map) => ["--map", paths.get(map) ?? map];
  for (const [target, map] of cases) {
    const what = `${path.basename(path.dirname(target))} ${typeof map === "string" ? map : JSON.stringify(map.rules.length)}`, args = argsOf(map);
    const compare = (name, call, more) => test(`map ${what} ${name}`, () => documents(target, {}, call, more));
    compare("manifest", (c) => c.manifest({ map }), ["manifest", target, ...args]);
    compare("manifest chosen", (c) => c.manifest({ map, include: ["**.layers.0.**", "x"] }), ["manifest", target, ...args, "--include", "**.layers.0.**", "--include", "x"]);
    compare("canonicalize", (c) => c.canonicalize({ map }), ["fqn", "--checkpoint", target, "--json", ...args]);
    compare("plan", (c) => c.plan({ map, mesh: "dp=2", placements: "shard(0)" }), ["plan", target, "--json", ...args, "--mesh", "dp=2", "--placements", "shard(0)"]);
    if (map === refused || map === odd || map === "nosuch" || (map === "transformers-mixtral" && target === source)) continue;
    for (const [job, more] of WRITES.filter(([, more]) => !more.includes("deepspeed-universal")))
      await test(`map ${what} ${job[0]} ${more.join(" ")}`, () => files(target, {}, [job[0], { ...job[1], map }], [...more, ...args]));

    /* In the opposite direction: the inverse of what was written is the source. */
    const mapped = path.join(scratch, "mapped"), file = path.join(mapped, "model.safetensors");
    fs.rmSync(mapped, { recursive: true, force: true });
    fs.mkdirSync(mapped);
    check(run(["convert", target, file, ...args]).status === 0, "native convert");
    await test(`map ${what} inverse`, () => files(file, {}, ["convert", { to: "safetensors", map, inverse: true }], ["--to", "safetensors", ...args, "--inverse"]));
    test(`map ${what} verify`, () => {
      const manifest = run(["manifest", file]).stdout, at = put("manifest.json", manifest);
      documents(target, {}, (c) => c.verify(manifest, { map }), ["verify", target, at, "--json", ...args]);
      documents(target, {}, (c) => c.verify(manifest), ["verify", target, at, "--json"]);
    });
    test(`map ${what} diff`, () => {
      const p = run(["diff", target, file, "--json", "--values", ...args]);
      check(p.status === 0, `native: ${p.stdout}${p.stderr}`);
      withOpened(target, (a) => withOpened(file, (b) => {
        const diff = a.diff(b, { map });
        while (diff.step());
        const [theirs, ours] = [JSON.parse(p.stdout), diff.result()].map((d) => JSON.stringify({ ...d, a: 0, b: 0 }));
        same(theirs, ours, "diff");
        check(ours.includes('"same":true'), ours.slice(0, 200));
        diff.close();
        check(!a.diff(b).result().same, "without the map");
        check(errorOf(() => a.diff(b, { inverse: true })).message === "--inverse needs --map MAP", "inverse without a map");
      }));
      check(tessera.openCount === 0, "something is open");
    });
  }

  test("a mapped checkpoint lists, reads and compares what the map makes", () => {
    const map = "transformers-mixtral", file = path.join(scratch, "mixtral-mapped.safetensors");
    check(run(["convert", mixtral, file, "--map", map]).status === 0, "native convert");
    withOpened(mixtral, (a) => withOpened(file, (b) => {
      const mapped = a.mapped({ map }), listed = b.inspect().entries.map((e) => e.fqn);
      const outline = mapped.outline();
      check(outline.filter("kind:") === listed.length && mapped.outline().count > 0, `${outline.count} rows for ${listed.length} entries`);
      for (const fqn of listed) {
        const [[ours], [theirs]] = [mapped, b].map((c) => JSON.parse(c.document("entry", { entry: c.find(fqn) })).entries);
        same(JSON.stringify([theirs.fqn, theirs.dtype, theirs.shape, theirs.bytes]), JSON.stringify([ours.fqn, ours.dtype, ours.shape, ours.bytes]), fqn);
        for (const slice of [undefined, `${theirs.shape[0] - 1}`, "1:3"]) same(JSON.stringify([...b.read(fqn, slice).data]), JSON.stringify([...mapped.read(fqn, slice).data]), `${fqn} ${slice}`);
        const [left, right] = [mapped, b].map((c) => { const tally = c.tally(c.find(fqn)); while (tally.step(64)); return tally.document(); });
        same(right, left, `statistics of ${fqn}`);
      }
      check(a.find(listed.find((fqn) => fqn.includes("experts"))) === undefined, "the checkpoint has the names of the map itself");
      same(JSON.stringify(JSON.parse(run(["fqn", "--checkpoint", mixtral, "--json", "--map", map]).stdout)), JSON.stringify(mapped.canonicalize()), "canonical names");
      for (const [options, args] of [[{}, []], [{ layout: true, canonical: true }, ["--layout", "--canonical"]]]) {
        const diff = mapped.diff(b, options), native = JSON.parse(run(["diff", mixtral, file, "--json", "--values", "--map", map, ...args]).stdout);
        while (diff.step());
        same(JSON.stringify({ ...native, a: 0, b: 0 }), JSON.stringify({ ...diff.result(), a: 0, b: 0 }), `diff ${args}`);
        check(native.summary.same + native.summary.changed === listed.length && native.same === (args.length === 0), JSON.stringify(native));
      }
      check(errorOf(() => mapped.diff(b, { map })) instanceof TypeError && errorOf(() => a.diff(mapped)) instanceof TypeError, "a map is applied to a map");
      check(errorOf(() => mapped.document("inspect")) instanceof TypeError, "a mapped checkpoint is inspected whole");
      for (const call of [() => a.mapped({ map: "nosuch" }), () => a.mapped({ map: own })]) check(errorOf(call)?.status, `${call} is accepted`);
      check(errorOf(() => a.mapped({ inverse: true })) instanceof TypeError, "there is a mapped checkpoint without a map");
      check(["convert", "reshard", "inspect", "plan", "layout", "manifest", "mapped"].every((call) => mapped[call] === undefined), "a call would open the files again");
      mapped.close();
    }));
    check(tessera.openCount === 0, "something is open");
  });

  test("copies of tensors that a map leaves out are compared once, before values are", () => {
    const titan = path.join(root, "tests/golden/titan"), copy = (from, name, to) => fs.copyFileSync(path.join(titan, from), put(`${name}/${to}`, ""));
    for (const [name, from] of [["tied", "llama3-tied.safetensors"], ["tied-hf", "llama3-tied.hf.safetensors"]]) copy(from, name, "model.safetensors"), copy("llama3-tied.json", name, "config.json");
    const [a, b] = ["tied", "tied-hf"].map((name) => path.join(scratch, name));
    for (const [target, other, options, args] of [[a, b, { map: "torchtitan-llama3" }, []], [b, a, { map: "torchtitan-llama3", inverse: true }, ["--inverse"]]])
      documents(target, {}, (c) => withOpened(other, (d) => {
        const diff = c.mapped(options).diff(d);
        while (diff.step());
        return { ...diff.result(), a: target, b: other };
      }), ["diff", target, other, "--json", "--values", "--map", "torchtitan-llama3", ...args]);
  });

  for (const [options, args] of [[{}, []], [{ dtype: "float32" }, ["--dtype", "float32"]], [{ dtype: "float16", include: ["w", "q.*"] }, ["--dtype", "float16", "--include", "w", "--include", "q.*"]]]) {
    await test(`dequantize ${args.join(" ")}`, () => files(scaled, {}, ["convert", { to: "torch", dequantize: true, ...options }], ["--to", "torch", "--dequantize", ...args]));
    await test(`scaled numbers without it ${args.join(" ")}`, () => files(scaled, {}, ["convert", { to: "torch", ...options }], ["--to", "torch", ...args]));
  }
  for (const name of ["modelopt", "compressed"]) {
    const nvfp4 = path.join(root, "tests/golden/nvfp4", `${name}.safetensors`);
    await test(`dequantize NVFP4 of ${name}`, () => files(nvfp4, {}, ["convert", { to: "torch", dequantize: true, dtype: "float32" }], ["--to", "torch", "--dequantize", "--dtype", "float32"]));
  }
  for (const target of [scaled, path.join(root, "tests/golden/nvfp4/modelopt.safetensors")]) {
    const name = path.basename(target), args = ["--dequantize"], dequantize = true;
    test(`dequantize manifest of ${name}`, () => documents(target, {}, (c) => c.manifest({ dequantize }), ["manifest", target, ...args]));
    const manifest = run(["manifest", target, ...args]).stdout, stored = run(["manifest", target]).stdout;
    check(manifest !== stored, `${name}: nothing was multiplied`);
    for (const text of [manifest, stored]) {
      const at = put("manifest.json", text);
      test(`dequantize verify of ${name}`, () => documents(target, {}, (c) => c.verify(text, { dequantize }), ["verify", target, at, "--json", ...args]));
    }
    test(`dequantize diff of ${name}`, () => documents(target, {}, (c) => {
      const diff = c.diff(c, { dequantize });
      while (diff.step());
      const result = diff.result();
      diff.close();
      return { ...result, a: target, b: target };
    }, ["diff", target, target, "--json", "--values", ...args]));
  }
  await test("dequantize and reshard", () => files(scaled, {}, ["reshard", { to: "dcp", dequantize: true, mesh: "dp=2", placements: "shard(0)" }], ["--to", "dcp", "--dequantize", "--mesh", "dp=2", "--placements", "shard(0)"]));
  await test("dequantize where nothing is scaled", () => files(source, {}, ["convert", { to: "torch", dequantize: true }], ["--to", "torch", "--dequantize"]));
  /* The result contains what an inverse guesses. A name that the map does not make is an error. */
  const kept = put("kept/model.safetensors", safetensors({ "w.b": [[2, 3]], k: [[4]] }));
  for (const [rule, says] of [[{ from: ["{r...}.0"], to: ["{r...}.b"] }, /"warnings": \[\s*"'w.b', for example, is taken to come from 'w.0'/], [{ from: ["k"], to: ["q"] }, /'k' has no way back/]]) {
    const map = { schema: "tessera.map/1", unmatched: "keep", rules: [rule] }, args = ["--to", "torch", "--map", put("keep.json", JSON.stringify(map)), "--inverse"];
    await test(`inverse of ${rule.from}`, () => files(kept, {}, ["convert", { to: "torch", map, inverse: true }], args));
    const p = run(["convert", kept, path.join(scratch, "kept.pt"), "--overwrite", "--json", ...args]);
    check(says.test(p.stdout + p.stderr), `the inverse of ${rule.from} says: ${p.stdout}${p.stderr}`);
  }
  await test("inverse without a map", () => files(source, {}, ["convert", { to: "torch", inverse: true }], ["--to", "torch", "--inverse"]));

  test("tensors that config.json ties are compared before a map leaves one out", () => {
    const titan = path.join(root, "tests/golden/titan"), bytes = fs.readFileSync(path.join(titan, "llama3-tied.safetensors"));
    const size = Number(bytes.readBigUInt64LE()), [begin] = JSON.parse(bytes.toString("utf8", 8, 8 + size))["lm_head.weight"].data_offsets;
    bytes[8 + size + begin] ^= 1;
    put("tied/config.json", fs.readFileSync(path.join(titan, "llama3-tied.json")));
    const target = path.dirname(put("tied/model.safetensors", bytes)), map = "torchtitan-llama3", args = ["--map", map];
    const manifest = run(["manifest", target]).stdout, at = put("manifest.json", manifest);
    check(/'lm_head.weight' and 'tok_embeddings.weight' differ/.test(run(["manifest", target, ...args]).stderr), "native takes it");
    documents(target, {}, (c) => c.manifest({ map }), ["manifest", target, ...args]);
    documents(target, {}, (c) => c.verify(manifest, { map }), ["verify", target, at, "--json", ...args]);
    documents(target, {}, (c) => c.plan({ map, mesh: "dp=2", placements: "shard(0)" }), ["plan", target, "--json", ...args, "--mesh", "dp=2", "--placements", "shard(0)"]);
    const compared = (isWhole) => (c) => {
      const diff = c.diff(c, { map });
      while (isWhole && diff.step());
      return { ...diff.result(), a: target, b: target };
    };
    documents(target, {}, compared(false), ["diff", target, target, "--json", ...args]);
    documents(target, {}, compared(true), ["diff", target, target, "--json", "--values", ...args]);
  });

  test("names are mapped where values could not be", () => {
    const keep = { schema: "tessera.map/1", unmatched: "keep", rules: [{ from: ["{r...}.weight"], to: ["{r...}.w"] }] }, at = put("names.json", JSON.stringify(keep));
    for (const name of ["broken_ranks_differ", "broken_index_missing_key"]) {
      const target = path.join(root, "samples/checkpoints", name), args = ["fqn", "--checkpoint", target, "--json", "--map", at];
      check(run(args).status === 0, `native refuses ${name}`);
      documents(target, {}, (c) => c.canonicalize({ map: keep }), args);
    }
  });

  test("an unknown map is named once", () => {
    const p = run(["convert", source, path.join(scratch, "unknown.pt"), "--map", "nosuch"]), e = errorOf(() => withOpened(source, (c) => c.manifest({ map: "nosuch" })));
    check(p.stderr.trim() === `tessera: ${e.message}`, `native: ${p.stderr}; wasm: ${e.message}`);
  });

  test("the built-in maps are listed and shown", () => {
    const names = run(["map", "list"]).stdout.trim().split("\n");
    same(JSON.stringify(names), JSON.stringify(tessera.mapList()), "names");
    check(names.length > 0, "there are none");
    for (const name of names) same(run(["map", "show", name]).stdout, tessera.mapShow(name), name);
    for (const name of ["nosuch", "torchtitan-lama3"]) check(run(["map", "show", name]).stderr.includes(errorOf(() => tessera.mapShow(name)).message), name);
  });
});

/** Files for which each read is a request: the header before a record of a torch.save file is checked with the record's
 *  first values. */
export const testRemoteFiles = (environment) => withDirectory(async (scratch, put) => {
  const { tessera, module } = environment, unprepared = await Tessera.load(module);
  const shapes = Object.fromEntries(Array.from({ length: 9 }, (_, i) => [`layers.${i}.w`, [[300 + i, 251]]])), train = path.join(scratch, "train.pt");
  check(comparer(environment, scratch).run(["convert", put("train.safetensors", safetensors(shapes)), train]).status === 0, "convert");
  const bytes = fs.readFileSync(train);
  const opened = (from, remote, by = tessera) => {
    const reads = [], read = (offset, into) => { reads.push(offset); into.set(from.subarray(offset, offset + into.length)); };
    const checkpoint = by.open([{ name: "train.pt", size: from.length, remote, read }], { primary: "train.pt" });
    return { checkpoint, opening: reads.length };
  };
  const local = opened(bytes, false), tensors = local.checkpoint.inspect({ hash: "sha256" }).entries.filter((e) => e.kind === "tensor");
  test("a remote torch.save file opens without a read for each record, and says and gives the same", () => {
    const remote = opened(bytes, true), late = opened(bytes, true, unprepared);
    check(local.opening >= tensors.length && remote.opening < tensors.length, `${local.opening} reads, and ${remote.opening} where they are requests`);
    check(late.opening === local.opening, `${late.opening} reads without the second file`);
    const documents = ({ checkpoint }) => JSON.stringify([checkpoint.inspect({ hash: "sha256" }), checkpoint.validate({ deep: true })]);
    check(documents(local) === documents(remote), "the documents differ");
    for (const { checkpoint } of [remote, late]) checkpoint.close();
  });
  test("a record behind a wrong header opens where reads are requests, and its values are refused as it is elsewhere", () => {
    check(tensors.length > 3, `${tensors.length} tensors`);
    for (const damaged of tensors) {
      const [{ byte_offset: at }] = damaged.chunks, wrong = Buffer.from(bytes);
      wrong[wrong.lastIndexOf("PK\x03\x04", at - 1) + 31] ^= 1; // in the name
      const reason = ({ message }) => message.slice(0, message.lastIndexOf(", in ")), want = reason(errorOf(() => opened(wrong, false)));
      const { checkpoint } = opened(wrong, true);
      check(/central directory/.test(want), `${damaged.fqn}: '${want}'`);
      for (const { fqn } of tensors) if (fqn !== damaged.fqn) check(Buffer.compare(Buffer.from(checkpoint.read(fqn).data.buffer), Buffer.from(local.checkpoint.read(fqn).data.buffer)) === 0, fqn);
      for (let round = 0; round < 2; round++) same(want, reason(errorOf(() => checkpoint.read(damaged.fqn))), damaged.fqn);
      checkpoint.close();
    }
  });
  local.checkpoint.close();
});
