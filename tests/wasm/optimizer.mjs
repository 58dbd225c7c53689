/** Compares `optimizer`, `canonicalize` and `diff` with options to the native command: for the samples, for chains of
 *  conversions, with hostile input, and after closing. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { Tessera, TesseraError } from "../../wasm/tessera.js";
import { filesOf } from "../../wasm/node.js";
import { check, errorOf, same, test } from "../support/harness.mjs";

const FLAT = (files, shapes, more = {}) => ({
  schema: "tessera.flat-params/1", world_size: files.length, use_orig_params: false, files,
  units: [{
    fsdp_module: "", raw_name: "_flat_param", params: Object.entries(shapes).map(([fqn, shape]) => ({ fqn, shape })),
    numels_with_padding: Object.values(shapes).map((s) => s.reduce((a, b) => a * b, 1)), is_padding_mask: Object.keys(shapes).map(() => false), ...more.unit,
  }],
  param_groups: [["_flat_param"]], ...more.document,
});

const TREE = {
  schema: "tessera.modules/1",
  root: {
    class: "DistributedDataParallel", wrapper: "ddp", parameters: {}, buffers: {}, extra_state: false,
    children: { module: { class: "Net", wrapper: "none", parameters: { w: { shape: [2], dtype: "float32", requires_grad: true } },
      buffers: { seen: { shape: [], dtype: "int64", persistent: true } }, extra_state: true,
      children: { body: { class: "OptimizedModule", wrapper: "compiled", parameters: {}, buffers: {}, extra_state: false,
        children: { _orig_mod: { class: "Linear", wrapper: "none", parameters: { weight: { shape: [2, 3], dtype: "float32", requires_grad: true } }, buffers: {}, extra_state: false, children: {} } } } } } },
  },
};

/** Removes the positions of bytes from a document, because they are those of a destination. */
function placeless(document) {
  const chunks = (list) => list?.map(({ offsets, sizes }) => ({ offsets, sizes }));
  const entries = document.entries.map((e) => ({ ...e, chunks: chunks(e.chunks), replicas: chunks(e.replicas) }));
  return JSON.stringify({ ...document, path: "", entries, findings: document.findings?.map(({ file, path: _, ...f }) => f) });
}

export function testOptimizers({ tessera, native, root, targets, withOpened }) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-optimizer-"));
  const at = (name) => path.join(directory, name);
  const run = (...args) => spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 });
  const json = (...args) => JSON.parse(run(...args).stdout);
  const put = (name, document) => (fs.writeFileSync(at(name), typeof document === "string" ? document : JSON.stringify(document)), at(name));

  /** Compares the module's conversion with the files that the command writes: documents, and every value. */
  function compare(opened, destination, what, options) {
    const derived = opened.optimizer(what, options);
    for (const kind of ["inspect", "findings"]) {
      const args = kind === "inspect" ? ["inspect", destination, "--json"] : ["validate", destination, "--json"];
      const [ours, theirs] = [JSON.parse(derived.document(kind)), json(...args)];
      if (kind === "inspect") same(placeless(theirs), placeless(ours), `${what}: inspect`);
      else same(JSON.stringify(theirs.findings.map((f) => [f.rule, f.message])), JSON.stringify(ours.findings.map((f) => [f.rule, f.message])), `${what}: findings`);
    }
    withOpened(destination, (written) => {
      // the content differs per rank, which is tested below
      if (JSON.parse(derived.document("inspect")).format === "shards") return;
      same(written.document("layout"), derived.document("layout"), `${what}: layouts`);
      const diff = derived.diff(written);
      while (diff.step());
      check(diff.result().same, `${what}: ${diff.document()}`);
    });
    return derived;
  }

  test("a conversion reads the part and the step that were chosen", () => {
    const trainer = path.join(root, "tests/golden/directories/trainer"), runs = at("runs"), destination = at("of-part");
    for (const step of ["checkpoint-3", "checkpoint-40"]) fs.cpSync(trainer, path.join(runs, step), { recursive: true });
    fs.copyFileSync(path.join(trainer, "scheduler.pt"), path.join(runs, "checkpoint-3/optimizer.pt"));
    for (const [target, options] of [[trainer, { part: "optimizer" }], [runs, { part: "optimizer", step: "40" }]]) {
      fs.rmSync(destination, { recursive: true, force: true });
      const p = run("optim", "flatten", target, destination, ...Object.entries(options).flatMap(([name, value]) => [`--${name}`, value]));
      check(p.status === 0, p.stderr);
      withOpened(target, (opened) => { compare(opened, destination, "flatten", {}); }, options);
    }
    withOpened(trainer, (opened) => {
      const { message } = errorOf(() => opened.optimizer("unshard", { flatParams: "{}" }));
      check(message.includes("--part cannot be used with optim unshard"), message);
    }, { part: "optimizer" });
  });

  /** Does the same for a PATH, including errors. */
  function compareCommand(target, what, options, args) {
    const destination = at("made");
    fs.rmSync(destination, { recursive: true, force: true });
    const p = run("optim", what, target, destination, ...args);
    let refusal;
    try {
      withOpened(target, (opened) => { compare(opened, destination, what, options); });
    } catch (e) {
      if (p.status === 0 || !(e instanceof TesseraError)) throw e;
      refusal = e.message;
    }
    if (p.status === 0) return true;
    check(refusal !== undefined && p.stderr.includes(refusal.replace(/\.$/, "")), `${what}: native ${p.stderr.trim()}, wasm ${refusal}`);
    return false;
  }

  test("optimizer conversions of every sample are those of the command line", () => {
    let made = 0, refused = 0;
    for (const target of targets) {
      if (/zstd/.test(target)) continue; // this build has no zstd
      for (const what of ["flatten", "unflatten", "to-id"]) {
        try {
          compareCommand(target, what, {}, []) ? made++ : refused++;
        } catch (e) {
          throw new Error(`${path.relative(root, target)}: ${e.message}`);
        }
      }
    }
    check(made > 10 && refused > 10, `${made} were made, ${refused} refused`);
  });

  const sample = path.join(root, "samples/checkpoints/dcp_fsdp2");
  const shapes = Object.fromEntries(json("inspect", sample, "--json").entries.filter((e) => /^optim\.state\..*\.exp_avg$/.test(e.fqn))
    .map((e) => [e.fqn.slice("optim.state.".length, -".exp_avg".length), e.shape]));
  const files = (n) => Array.from({ length: n }, (_, i) => `rank${i}.pt`);

  test("ranks' states are written and joined as the command line does, the whole way in memory", () => {
    const cases = [
      FLAT(files(3), shapes),
      FLAT(files(2), shapes, { document: { use_orig_params: true, param_groups: [Object.keys(shapes)] }, unit: { raw_name: null } }),
      FLAT(files(4), shapes, { unit: { sharding_strategy: "HYBRID_SHARD" }, document: { shard_groups: [[0, 1], [2, 3]] } }),
      FLAT(files(11), shapes), // more than nine files, which are not in the order of their names
    ];
    cases.forEach((flatParams, i) => {
      const flat = ["--flat-params", put("flat.json", flatParams)], dest = (name) => at(`${name}${i}`);
      for (const args of [["shard", sample, dest("ranks")], ["unshard", dest("ranks"), dest("full.pt")], ["unshard", dest("ranks"), dest("rows"), "--sharded"], ["shard", dest("full.pt"), dest("five"), "--world-size", "6"]]) {
        const p = run("optim", ...args, ...flat);
        check(p.status === 0, p.stderr);
      }
      withOpened(sample, (opened) => {
        const ranks = compare(opened, dest("ranks"), "shard", { flatParams });
        const full = compare(ranks, dest("full.pt"), "unshard", { flatParams: JSON.stringify(flatParams) });
        compare(ranks, dest("rows"), "unshard", { flatParams, sharded: true });
        compare(full, dest("five"), "shard", { flatParams, worldSize: 6 });
        const again = full.optimizer("flatten").optimizer("unflatten").optimizer("shard", { flatParams }).optimizer("unshard", { flatParams });
        const diff = again.diff(full);
        while (diff.step());
        check(diff.result().same, `after a chain: ${diff.document()}`);
      });
      withOpened(dest("ranks"), (opened) => { compare(opened, dest("full.pt"), "unshard", { flatParams }); });
    });
  });

  test("what a rank's file holds reads as in the file that is written", () => {
    const flatParams = FLAT(files(3), shapes);
    withOpened(sample, (opened) => {
      const ranks = opened.optimizer("shard", { flatParams });
      for (const entry of JSON.parse(ranks.document("inspect")).entries.filter((e) => e.per_rank)) {
        const theirs = json("inspect", at("ranks0"), "--json").entries.find((e) => e.fqn === entry.fqn);
        same(JSON.stringify(theirs.chunks.map((c) => c.byte_length)), JSON.stringify(entry.chunks.map((c) => c.byte_length)), entry.fqn);
        errorOf(() => ranks.tally(ranks.find(entry.fqn)).step(1)); // it is not a single tensor
      }
    });
  });

  test("names in a document name parameters, and what is carried over is told", () => {
    const names = Object.keys(shapes), modules = { schema: "tessera.modules/1", root: { class: "Net", wrapper: "none", parameters: {}, buffers: {}, extra_state: false, children: {} }, groups: [names] };
    const args = ["--modules", put("modules.json", modules)];
    check(run("optim", "to-id", sample, at("ids.pt")).status === 0, "to-id");
    check(compareCommand(at("ids.pt"), "to-fqn", { modules }, args), "to-fqn was refused");
    check(compareCommand(sample, "flatten", { at: "optim" }, ["--at", "optim"]), "flatten of a member was refused");
    for (const [what, options, more] of [["to-fqn", {}, []], ["flatten", { at: "nosuch" }, ["--at", "nosuch"]], ["shard", {}, []], ["flaten", {}, []], ["nonsense-what", {}, []], ["flatten", { sharded: true }, ["--sharded"]],
      ["flatten", { rank: 0 }, ["--rank", "0"]], ["flatten", { worldSize: 0 }, ["--world-size", "0"]], ["to-fqn", { modules: "{" }, ["--modules", put("broken.json", "{")]], ["to-fqn", { modules: { schema: 1 } }, ["--modules", put("no.json", { schema: 1 })]]])
      check(!compareCommand(sample, what, options, more), `${what} was not refused`);
  });

  test("a directory of ranks' states opens whatever its files are called", () => {
    const flatParams = FLAT(files(2), shapes), odd = FLAT(["left.pt", "right.pt"], shapes);
    const flat = ["--flat-params", put("odd.json", odd)];
    check(run("optim", "shard", sample, at("odd"), ...flat).status === 0, "shard");
    put("odd/notes.json", {});
    check(run("optim", "unshard", at("odd"), at("odd.pt"), ...flat).status === 0, "unshard");
    withOpened(at("odd"), (opened) => {
      const p = run("inspect", at("odd"));
      for (const call of [() => opened.document("inspect"), () => opened.check(), () => opened.outline(), () => opened.canonicalize(), () => opened.twins(), () => opened.diff(opened)])
        check(p.status === 2 && p.stderr.includes(errorOf(call).message), `${call}: ${errorOf(call).message}`);
      compare(opened, at("odd.pt"), "unshard", { flatParams: odd });
      const e = errorOf(() => opened.optimizer("unshard", { flatParams }));
      check(e instanceof TesseraError && /there is no file 'rank0\.pt' for rank 0/.test(e.message), e.message);
      const listed = opened.optimizer("unshard", { flatParams: odd }).optimizer("shard", { flatParams: odd });
      check(/several torch\.save files/.test(errorOf(() => listed.document("inspect")).message), "oddly named ranks were listed");
    });
    errorOf(() => tessera.open(["a.txt", "b.txt"].map((name) => ({ name, size: 3, read: (_, into) => { into.fill(1); } }))));
  });

  test("closing in any order leaves nothing open", () => {
    const flatParams = FLAT(files(3), shapes);
    const before = tessera.openCount;
    for (const order of [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]]) {
      const source = filesOf(sample), first = tessera.open(source.files, source.options);
      const chain = [first, first.optimizer("shard", { flatParams })];
      chain.push(chain[1].optimizer("unshard", { flatParams }));
      const outline = chain[2].outline(), tally = chain[2].tally(0), diff = chain[2].diff(first);
      order.forEach((i) => chain[i].close());
      for (const call of [() => chain[2].document("inspect"), () => chain[2].optimizer("flatten"), () => chain[0].canonicalize(), () => chain[1].check(), () => first.diff(first), () => chain[1].optimizer("unshard", { flatParams })])
        check(/no checkpoint is open/.test(errorOf(call).message) && errorOf(call) instanceof TesseraError, `${call}: ${errorOf(call).message}`);
      check(outline.count === 0 && /no tally is open/.test(errorOf(() => tally.step(1)).message) && /no diff is open/.test(errorOf(() => diff.step()).message), "what was made of a closed one works");
      check(tessera.openCount === before, `${tessera.openCount - before} handles are open after ${order}`);
      chain.forEach((c) => c.close());
      source.close();
    }
  });

  test("a derived checkpoint reads nothing of its tensors before they are asked for, and says what cannot be read", () => {
    const big = 1 << 22, shape = { w: [big] };
    const header = Buffer.from(JSON.stringify({ "state.w.exp_avg": { dtype: "F32", shape: [big], data_offsets: [0, 4 * big] }, "param_groups.w.lr": { dtype: "F32", shape: [], data_offsets: [4 * big, 4 * big + 4] } })), size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(header.length));
    const head = Buffer.concat([size, header]);
    let broken = false;
    const file = { name: "model.safetensors", size: head.length + 4 * big + 4, read(offset, into) {
      if (broken && offset >= head.length) throw new Error("the disk is gone");
      for (let i = 0; i < into.length; i++) into[i] = offset + i < head.length ? head[offset + i] : (offset + i) * 7;
    } };
    const opened = tessera.open([file], { primary: file.name }), before = tessera.bytesRead;
    const flatParams = FLAT(files(3), shape);
    const ranks = opened.optimizer("shard", { flatParams });
    const full = opened.optimizer("unflatten").optimizer("flatten");
    check(tessera.bytesRead - before < 1 << 20, `${tessera.bytesRead - before} bytes were read to convert`);
    const diff = full.diff(opened);
    while (diff.step());
    check(diff.result().same, diff.document());
    broken = true;
    const e = errorOf(() => { const tally = full.tally(full.find("state.w.exp_avg")); while (tally.step(1 << 20)); });
    check(e instanceof TesseraError && e.status === "input/output" && /the disk is gone/.test(e.message), `${e.status} ${e.message}`);
    check(JSON.parse(full.document("inspect")).entries.length === 2 && ranks.find("state.0.exp_avg") !== undefined, "it goes on");
    opened.close();
  });

  test("wrong types and unknown options are TypeErrors that name them", () => {
    withOpened(sample, (opened) => {
      const derived = opened.optimizer("flatten");
      const cases = [
        [() => opened.optimizer("flatten", { flat_params: {} }), "flat_params"], [() => opened.optimizer("flatten", { modules: 3 }), "modules"], [() => opened.optimizer("shard", { flatParams: [] }), "flatParams"],
        [() => opened.optimizer("shard", { worldSize: "2" }), "worldSize"], [() => opened.optimizer("shard", { worldSize: 1.5 }), "worldSize"], [() => opened.optimizer("shard", { rank: -1 }), "rank"],
        [() => opened.optimizer("flatten", { at: 1 }), "at"], [() => opened.optimizer("unshard", { sharded: 1 }), "sharded"], [() => opened.optimizer(7), "what"], [() => opened.optimizer("flatten", null), "options"],
        [() => opened.canonicalize({ prefx: "" }), "prefx"], [() => opened.canonicalize({ prefix: 1 }), "prefix"], [() => tessera.canonicalize(1), "modules"], [() => tessera.canonicalize(TREE, "w"), "names"], [() => tessera.canonicalize(TREE, [1]), "names"],
        [() => opened.diff(derived, { map: 1 }), "map"], [() => opened.diff(derived, { canonical: 1 }), "canonical"], [() => opened.diff(derived, { atol: "1" }), "atol"], [() => opened.diff(derived, { rtol: -1 }), "rtol"], [() => opened.diff({}), "other"],
        [() => tessera.open([], { primry: "x" }), "primry"], [() => tessera.open([{ name: "a.pt", size: 10, read: async () => {} }]), "promise"],
        [() => tessera.open([{ name: "a.pt", size: 10, modified: 1700000000, read: () => {} }]), "modified"],
      ];
      for (const [call, name] of cases) {
        const e = errorOf(call);
        check(e instanceof TypeError && e.message.includes(name), `${call}: ${e.name} ${e.message}`);
      }
      check(opened.optimizer("flatten", { at: undefined, rank: undefined }).find("state.emb.weight.step") !== undefined, "an option that is undefined counts");
    });
  });

  test("names of a module tree are those of the command line", () => {
    const tree = put("tree.json", TREE);
    for (const names of [[], ["module.body._orig_mod.weight"], ["module.w", "module.w", "module._extra_state"], ["nodots"]])
      same(run("fqn", tree, "--json", "--", ...names).stdout, JSON.stringify(tessera.canonicalize(TREE, names)), `names of ${names}`, JSON.parse);
    same(JSON.stringify(tessera.canonicalize(JSON.stringify(TREE))), JSON.stringify(tessera.canonicalize(TREE)), "text and object");
    for (const [document, names] of [[TREE, ["module.nosuch.weight"]], [TREE, ["module.", "\u0000.x"]], [{ ...TREE, root: {} }, []], [{ ...TREE, root: { ...TREE.root, children: {} } }, []]]) {
      const p = run("fqn", put("t.json", document), "--", ...names.filter((n) => !n.includes("\u0000"))), e = errorOf(() => tessera.canonicalize(document, names));
      check(e instanceof TesseraError && (p.stderr.includes(e.message) || names[1]), `native ${p.stderr}, wasm ${e.message}`);
    }
    const e = errorOf(() => tessera.canonicalize("{\"schema\": \"tessera.modules/1\", "));
    check(e instanceof TesseraError && e.position > 0, `${e.message} ${e.position}`);
  });

  test("names of every sample by text are those of the command line", () => {
    for (const target of targets) {
      for (const prefix of [undefined, "model."]) {
        const p = run("fqn", "--checkpoint", target, "--json", ...(prefix ? ["--prefix", prefix] : []));
        let ours;
        try {
          ours = withOpened(target, (opened) => opened.canonicalize(prefix ? { prefix } : {}));
        } catch (e) {
          check(p.status === 2 && p.stderr.includes(e.message), `${target}: native ${p.status} ${p.stderr}, wasm ${e.message}`);
          continue;
        }
        if (!/zstd/.test(target)) same(p.stdout, JSON.stringify(ours), `names of ${target}`, JSON.parse);
      }
    }
  });

  test("a diff by canonical names, and with a tolerance, is that of the command line", () => {
    const st = (name, tensors) => {
      let offset = 0;
      const header = Buffer.from(JSON.stringify(Object.fromEntries(Object.entries(tensors).map(([n, v]) => [n, { dtype: "F32", shape: [v.length], data_offsets: [offset, (offset += 4 * v.length)] }])))), size = Buffer.alloc(8);
      size.writeBigUInt64LE(BigInt(header.length));
      fs.writeFileSync(at(name), Buffer.concat([size, header, Buffer.from(Float32Array.from(Object.values(tensors).flat()).buffer)]));
      return at(name);
    };
    const a = st("a.safetensors", { "module._orig_mod.fc.weight": [1, 2], "module._orig_mod.fc.bias": [3], "module._orig_mod.gone": [0] });
    const b = st("b.safetensors", { "fc.weight": [1, 2.5], "fc._checkpoint_wrapped_module.bias": [3], "added": [4] });
    const cases = [[{}, []], [{ canonical: true }, ["--canonical"]], [{ layout: true, canonical: true }, ["--layout", "--canonical"]], [{ canonical: true, atol: 0.5 }, ["--canonical", "--atol", "0.5"]], [{ canonical: true, rtol: 0.1, atol: 0 }, ["--canonical", "--rtol", "0.1", "--atol", "0"]]];
    withOpened(a, (A) => withOpened(b, (B) => {
      for (const [options, args] of cases) {
        const tolerant = args.includes("--atol") || args.includes("--rtol"), diff = A.diff(B, options);
        const plain = { ...json("diff", a, b, "--json", ...args.filter((x) => x.startsWith("--") && !/tol/.test(x))), a: "a", b: "b" };
        same(JSON.stringify(plain), JSON.stringify(diff.result()), `before the first step: ${args}`);
        while (diff.step());
        const p = run("diff", a, b, "--json", ...(tolerant ? [] : ["--values"]), ...args);
        same(p.stdout, diff.document(a, b), `after all steps: ${args}`);
      }
      check(/both become/.test(errorOf(() => withOpened(st("c.safetensors", { "_fsdp_wrapped_module.w": [1], w: [1] }), (C) => C.diff(A, { canonical: true }))).message), "a collision");
      for (const [wrapped, plain] of [["module._orig_mod.w", "module.w"], ["_orig_mod.module.w", "module.w"]])
        withOpened(st("d.safetensors", { [plain]: [1], [wrapped]: [2] }), (D) => {
          for (const refused of [() => D.diff(A, { canonical: true }), () => A.diff(D, { canonical: true })]) check(errorOf(refused)?.message === `'${wrapped}' and '${plain}' would both be named '${plain}'`, wrapped);
        });
    }));
  });

  fs.rmSync(directory, { recursive: true });
}

/** Tests a module for which `prepare` was not called. */
export async function testUnprepared({ module, writers, root, samples }) {
  const bare = await Tessera.load(module), source = filesOf(path.join(samples, "dcp_fsdp2")), opened = bare.open(source.files, source.options);
  test("without the second file what needs it says what to do, and all else works", () => {
    const e = errorOf(() => opened.optimizer("flatten"));
    check(e instanceof TesseraError && /prepare\(\)/.test(e.message), e.message);
    check(/prepare\(\)/.test(errorOf(() => bare.canonicalize(TREE)).message), "names of a tree");
    for (const call of [() => opened.inspect(), () => opened.twins(), () => opened.canonicalize(), () => opened.document("findings", { format: "junit" }), () => opened.document("sarif")]) check(/prepare\(\)/.test(errorOf(call).message), `${call}`);
    check(opened.find("model.few.weight") !== undefined && opened.read("model.few.weight").data.length === 12, "all else");
    check(!bare.isPrepared, "it says that the second file is loaded");
  });

  /* Common formats need only the first file. Whatever needs the second one throws an error that names it, and leaves nothing
   * open. */
  const golden = path.join(root, "tests/golden");
  const common = ["dcp_fsdp2", "dcp_hsdp", "dcp_fsdp1_sharded", "safetensors_model", "safetensors_index", "torch_plain", "torch_nested", "torch_legacy", "torch_bin_index", "torch_train_state"];
  const rare = [...["deepspeed/zero3_bf16", "deepspeed/universal_zero1_bf16", "megatron/layers", "directories/trainer", "directories/torch_checkpointing"].map((name) => path.join(golden, name)), ...["dcp_hf_sharded", "dcp_objects", "torch_classes"].map((name) => path.join(samples, name))];
  const openedAs = (tessera, target) => {
    const { files, options, close } = filesOf(target);
    try {
      const checkpoint = tessera.open(files, options), text = ["inspect", "findings", "overview"].map((kind) => checkpoint.document(kind)).join("");
      checkpoint.close();
      return text;
    } finally {
      close();
    }
  };
  const texts = new Map();
  for (const name of common) test(`${name} needs the first file only`, () => texts.set(path.join(samples, name), openedAs(bare, path.join(samples, name))));
  for (const target of rare) test(`${path.relative(root, target)} asks for the second file`, () => {
    const handles = bare.openCount, before = bare.memoryBytes;
    for (let i = 0; i < 50; i++) {
      const e = errorOf(() => openedAs(bare, target));
      check(e instanceof TesseraError && /await prepare\(\) first/.test(e.message), `${e}`);
    }
    check(bare.openCount === handles && bare.memoryBytes - before <= 1 << 20, `${bare.openCount} handles, ${bare.memoryBytes - before} bytes more`);
  });
  await bare.prepare(writers);
  await bare.prepare(writers);
  for (const [target, text] of texts) test(`${path.basename(target)} is the same with both files`, () => same(text, openedAs(bare, target), "documents"));
  for (const target of rare) test(`${path.relative(root, target)} opens with both files`, () => check(openedAs(bare, target).length > 100, "nothing"));
  test("once it is prepared, what was opened before can be converted", () => {
    check(opened.optimizer("flatten").find("state.emb.weight.step") !== undefined, "flatten");
  });
  opened.close();
  source.close();
}
