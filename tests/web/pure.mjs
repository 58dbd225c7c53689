/** Compares the shard map's gaps and overlaps with a count of every element; also tests numbers as text. */
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";
import { root, samples } from "./browser.mjs";
import { Tessera } from "../../wasm/tessera.js";
import { native, tessera } from "./files.mjs";
import { check, errorOf, test } from "../support/harness.mjs";

export async function load(file) {
  const { buildSync } = createRequire(createRequire(path.join(root, "web/package.json")).resolve("vite"))("esbuild");
  const { outputFiles: [{ text }] } = buildSync({ entryPoints: [path.join(root, "web/src", file)], bundle: true, format: "esm", write: false });
  return import(`data:text/javascript,${encodeURIComponent(text)}`);
}

function random(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state % below;
  };
}

function randomChunks(next, shape) {
  return Array.from({ length: next(6) }, () => {
    const offsets = shape.map((s) => next(s + 1));
    return { offsets, sizes: shape.map((s, d) => next(s - offsets[d] + 1)), file: null, byte_offset: 0, byte_length: 0 };
  });
}

/** For each place in the plane: the smallest and largest number of chunks that contain one of the elements behind it, and
 *  their sum. */
function counted(shape, chunks, [down, across]) {
  const all = shape.reduce((list, s) => list.flatMap((at) => Array.from({ length: s }, (_, i) => [...at, i])), [[]]);
  const plane = new Map();
  for (const at of all) {
    const held = chunks.filter((c) => at.every((x, d) => x >= c.offsets[d] && x < c.offsets[d] + c.sizes[d])).length;
    const key = `${down < 0 ? 0 : at[down]},${across < 0 ? 0 : at[across]}`;
    const cell = plane.get(key) ?? { sum: 0, n: 0 };
    plane.set(key, { sum: cell.sum + held, n: cell.n + 1 });
  }
  return plane;
}

const within = (boxes, y, x) => boxes.some((b) => x >= b.x && x < b.x + b.width && y >= b.y && y < b.y + b.height);

/** Of tensor subclasses the metadata does not say what their items hold, so these are examined when a checkpoint is opened. */
async function testMetadataAlone() {
  const { openFiles } = await load("absent.ts"), modules = ["tessera", "tessera-writers"].map((name) => fs.readFileSync(path.join(root, `build/wasm/bin/${name}.wasm`)));
  for (const name of ["torchao/dcp", "torchao/integers_dcp", "torchao_sharded/dcp"]) {
    await test(`${name}: its metadata alone has the names that the command lists, and no values`, async () => {
      const bytes = fs.readFileSync(path.join(root, "tests/golden", name, ".metadata")), alone = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-alone-")), module = await Tessera.load(modules[0]);
      try {
        await module.prepare(modules[1]);
        fs.writeFileSync(path.join(alone, ".metadata"), bytes);
        const { checkpoint, absent } = openFiles(module, [{ name: ".metadata", size: bytes.length, read: (offset, into) => into.set(bytes.subarray(offset, offset + into.length)) }], {}, name);
        const namesOf = (text) => JSON.parse(text).entries.map((e) => e.fqn).join(), [tensor] = JSON.parse(checkpoint.document("inspect")).entries.filter((e) => e.kind === "tensor");
        check(absent.length > 0 && namesOf(checkpoint.document("inspect")) === namesOf(tessera("inspect", alone, "--json")), namesOf(checkpoint.document("inspect")));
        check(/is absent/.test(errorOf(() => checkpoint.read(tensor.fqn)).message), "a value was read");
      } finally {
        fs.rmSync(alone, { recursive: true });
      }
    });
  }
}

export async function testPure() {
  await testMetadataAlone();
  const { shardMap } = await load("shardmap.ts");
  const text = await load("text.ts");
  await test("the shard map shows every gap and overlap", () => {
    const next = random(7);
    for (let round = 0; round < 400; round++) {
      const shape = Array.from({ length: next(4) }, () => 1 + next(5));
      const chunks = randomChunks(next, shape);
      const map = shardMap(shape, chunks);
      for (const [key, { sum, n }] of counted(shape, chunks, map.dims)) {
        const [y, x] = key.split(",").map(Number), where = `${JSON.stringify(shape)} ${JSON.stringify(chunks)} at ${key}`;
        check(within(map.gaps, y, x) === sum < n, `a gap is wrong: ${where}`);
        check(within(map.overlaps, y, x) === sum > n, `an overlap is wrong: ${where}`);
      }
    }
  });
  await test("sizes and names read well", () => {
    const rows = [[0, "0 B"], [1023, "1023 B"], [1024, "1.0 KiB"], [1_048_524, "1023.9 KiB"], [1_048_525, "1.0 MiB"], [12_345_678, "11.8 MiB"], [812e9, "756.2 GiB"]];
    for (const [bytes, want] of rows) check(text.bytesText(bytes) === want, `${bytes}: ${text.bytesText(bytes)}`);
    check(text.visible("a\u0000b\u202ec") === "a\\u0000b\\u202ec", text.visible("a\u0000b\u202ec"));
    const unseen = [["a\u00ad.w", "a\\u00ad.w"], ["\u2060w", "\\u2060w"], ["a\u061cw", "a\\u061cw"], ["\u{e0041}w", "\\u{e0041}w"], ["a\u00a0b\u2003", "a\\u00a0b\\u2003"], ["\u2800\u034f", "\\u2800\\u034f"], ["a  b ", "a  b "], ["\u3164", "\\u3164"], ["\ud800", "\\ud800"], ["שלום é 😀", "שלום é 😀"]];
    for (const [name, want] of unseen) check(text.visible(name) === want, `${want} is shown as ${text.visible(name)}`);
    check(text.visible("") === "(empty name)", "an empty name is not visible");
    check(text.countText(7_241_732_096) === "7.24 billion", text.countText(7_241_732_096));
    check(text.countText(999_999) === "1 million" && text.countText(999_499) === "999 thousand", text.countText(999_999));
    check(text.exactText(1_234_567) === "1,234,567" && text.fullBytesText(1023) === "1023 B" && text.fullBytesText(1234) === "1.2 KiB (1,234 bytes)", text.fullBytesText(1234));
  });
  await test("the coordinates of a chunk are those of the rank that PyTorch had save it", async () => {
    const { chunkCoordinates } = await load("mesh.ts"), found = new Set();
    const meshOf = (name) => JSON.parse(spawnSync(native, ["inspect", path.join(samples, name), "--json"], { encoding: "utf8" }).stdout).entries.filter((e) => /^dp=\d,tp=2$/.test(e.mesh));
    for (const entry of ["torch_ranks_tp_fsdp2", "torch_ranks_uneven_strided"].flatMap(meshOf)) {
      const got = chunkCoordinates(entry), isReplicated = entry.placements.endsWith("replicate");
      const want = entry.chunks.map(({ file }) => { const rank = Number(/\d+/.exec(file)[0]), dp = `dp=${Math.floor(rank / 2)}`; return isReplicated ? dp : `${dp}, tp=${rank % 2}`; }); // init_device_mesh
      check(got?.join(";") === want.join(";"), `${entry.fqn}: ${got?.join("; ")} instead of ${want.join("; ")}`);
      found.add(entry.placements);
    }
    check(found.size === 3, [...found].join(" and "));
    const [entry] = meshOf("torch_ranks_tp_fsdp2");
    check(chunkCoordinates({ ...entry, placements: undefined }) === undefined && chunkCoordinates({ ...entry, mesh: undefined }) === undefined, "a mesh without placements has coordinates");
    check(chunkCoordinates({ ...entry, chunks: entry.chunks.slice(0, 1).map((c) => ({ ...c, offsets: c.offsets.map((o) => o + 1) })) }) === undefined, "a chunk that no rank holds has coordinates");
  });
  await test("values of objects are written as by Python, with every digit", () => {
    const document = (more) => `{\n "summary": {"dtypes": {"value": {}}},\n "metadata": {"value": "{"},\n "entries": [\n  {"fqn": "a.\\"value\\": 1", "type": "x"${more}}\n ],\n "findings": [{"value": 1}]\n}`;
    const rows = [[', "value": 18446744073709551615', "18446744073709551615"], [', "value": 1.0', "1.0"], [', "value": 1e-05', "1e-05"], [', "value": null', "None"], [', "value": "it\'s \\"so\\" \\\\ \\n true"', "'it\\'s \"so\" \\\\ \\n true'"], [', "value": {"value": [true, {}, []]}', "{'value': [True, {}, []]}"], [', "repr": "(1, False)"', "(1, False)"], ["", undefined]];
    for (const [more, want] of rows) check(text.objectText(document(more)) === want, `${more} is shown as ${text.objectText(document(more))}`);
    check(text.pythonText('{"a": [1, null], "b": {}}', true) === "{\n  'a': [\n    1,\n    None\n  ],\n  'b': {}\n}", text.pythonText('{"a": [1, null], "b": {}}', true));
  });
  await test("chunks are said to cover a tensor only if they do", async () => {
    const { coverageText, shardMap } = await load("shardmap.ts"), chunk = (offsets, sizes, file = "f") => ({ offsets, sizes, file });
    const of = (shape, chunks, isSound) => coverageText({ shape, chunks }, shardMap(shape, chunks), ({ file }) => file === null, isSound);
    const halves = [chunk([0, 0], [2, 3]), chunk([2, 0], [2, 3])], quarters = [[0, 0], [0, 2], [2, 0]].map((at) => chunk([...at, 0], [2, 2, 2])), half = (at) => chunk([2, 2, at], [2, 2, 1]);
    const rows = [[[4, 3], halves, false, "the chunks cover every element once"], [[4, 4, 2], [...quarters, half(0), half(0)], false, "Problems lists holes and overlaps"], [[4, 4, 2], [...quarters, half(0), half(1)], true, "the chunks cover every element once"],
      [[4, 3], [halves[0], { ...halves[1], file: null }], true, "the chunks would cover every element once; 6 of 12 elements are missing"], [[4, 3], [halves[0]], true, "some elements are not in any chunk (red)"], [[0, 3], [], true, "the tensor has no elements"]];
    for (const [shape, chunks, isSound, want] of rows) check(of(shape, chunks, isSound) === want, `${JSON.stringify(chunks)}: ${of(shape, chunks, isSound)}`);
  });
  await test("the slice that is shown first is in what can be read", async () => {
    const { firstSlice, readableOf } = await load("slice.ts"), of = (shape, ...chunks) => { const detail = { shape, chunks: chunks.map((c) => ({ file: "x", ...c })) }; return `${firstSlice(detail)} ${readableOf(detail)?.isAll}`; };
    const at = (offsets, sizes) => ({ offsets, sizes }), top = at([0, 0], [2, 3]), bottom = at([2, 0], [2, 3]);
    const rows = [[[[4, 3], top, bottom], ":,: true"], [[[4, 3], bottom], "2:4,: false"], [[[4, 3], at([1, 0], [2, 3]), top], ":,: undefined"], [[[4, 3], at([1, 0], [1, 3]), top, at([3, 0], [1, 3])], "3:4,: false"],
      [[[4, 3], at([0, 0], [0, 3]), { ...top, file: null }, at([2, 0], [1, 3])], "2:3,: false"], [[[2, 200, 70], at([1, 100, 0], [1, 100, 70])], "1,100:164,0:64 false"], [[[]], " undefined"], [[[], at([], [])], " true"]];
    for (const [[shape, ...chunks], want] of rows) check(of(shape, ...chunks) === want, `${JSON.stringify([shape, ...chunks])}: ${of(shape, ...chunks)} instead of ${want}`);
  });
  await test("a name that is proposed differs from the checkpoint's own, and has no word twice", async () => {
    const { convertedName, fileName } = await load("convert_form.ts");
    const rows = [["model.safetensors", "safetensors", true, "model-converted.safetensors"], ["model.safetensors", "torch", true, "model.pt"], ["runs/step_7", "safetensors", true, "step_7.safetensors"], ["step_7", "dcp", false, "step_7-dcp"], ["model.pt", "safetensors", false, "model-safetensors"], ["rank_0.pt", "torch", true, "rank_0-converted.pt"], ["", "torch", true, "checkpoint.pt"]];
    for (const [title, to, isOne, want] of rows) {
      const name = convertedName(title, to, isOne), got = isOne ? fileName(name, to) : name;
      check(got === want, `${title} to ${to}: ${got} instead of ${want}`);
    }
  });
  await test("what is dropped together is one checkpoint, or all of those that it holds, and what is no part of any is named", async () => {
    const { checkpointsOf } = await load("collect.ts"), names = (n) => [...Array(n).keys()].map((i) => `w${i}`);
    const file = (path, tensors) => { const header = Buffer.from(JSON.stringify(Object.fromEntries((tensors ?? ["w"]).map((name) => [name, {}])))), size = Buffer.alloc(8); size.writeBigUInt64LE(BigInt(header.length)); return { path, file: new File(/safetensors$/.test(path) ? [size, header] : ["x"], path.split("/").pop()) }; };
    const dcp = (directory) => [".metadata", "__0_0.distcp"].map((name) => file(`${directory}/${name}`)), found = async (...list) => {
      const { title, files, options, areCompared = false, others = [] } = await checkpointsOf(list.flat());
      return options ? [options.map((o) => `${o.title}: ${o.files.map((f) => f.name)}`).sort().join("; "), areCompared ? "compared" : "", others.join()].join("|") : `${title}: ${files.map((f) => f.name)}`;
    };
    const rows = [
      [[dcp("a"), dcp("b")], "a: .metadata,__0_0.distcp; b: .metadata,__0_0.distcp|compared|"],
      [[dcp("a"), dcp("b"), file("notes.txt")], "a: .metadata,__0_0.distcp; b: .metadata,__0_0.distcp||notes.txt"],
      [[dcp("a"), dcp("b"), file("m.safetensors")], "a: .metadata,__0_0.distcp; b: .metadata,__0_0.distcp; m.safetensors: m.safetensors||"],
      [[dcp("a"), file("logs/x.txt"), file("m.safetensors")], "a: .metadata,__0_0.distcp; m.safetensors: m.safetensors||logs"],
      [[dcp("a"), file("m-1-of-2.safetensors", ["x"]), file("m-2-of-2.safetensors", ["y"])], "2 files: m-1-of-2.safetensors,m-2-of-2.safetensors; a: .metadata,__0_0.distcp|compared|"],
      [[file("one.safetensors"), file("two.safetensors"), dcp("a")], "a: .metadata,__0_0.distcp; one.safetensors: one.safetensors; two.safetensors: two.safetensors||"],
      [[dcp("run/out/step-2"), file("notes.txt")], "run/out/step-2: .metadata,__0_0.distcp"], // it is not left out for being far down
      [[dcp("pytorch_model_fsdp_0"), file("scheduler.bin"), file("random_states_0.pkl")], "4 files: pytorch_model_fsdp_0/.metadata,pytorch_model_fsdp_0/__0_0.distcp,scheduler.bin,random_states_0.pkl"], // as accelerate saves it
      [[file("iter_1/mp_rank_00/model_optim_rng.pt"), file("latest_checkpointed_iteration.txt")], "iter_1/mp_rank_00: model_optim_rng.pt"],
      [[file("zero/w/fp32.pt"), file("mp_rank_00_model_states.pt"), file("latest_universal")], "3 files: zero/w/fp32.pt,mp_rank_00_model_states.pt,latest_universal"], // as DeepSpeed saves it, three levels
      [[file("m.safetensors", names(3))], "m.safetensors: m.safetensors"],
    ];
    for (const [list, want] of rows) check(await found(...list) === want, `${await found(...list)} instead of ${want}`);
  });
  await test("slices cover every element once, and none is larger than asked", async () => {
    const { slicesOf } = await load("tensor_equality.ts"), { elementsOfSlice } = await load("slice.ts"), next = random(11);
    for (let round = 0; round < 200; round++) {
      const shape = Array.from({ length: 1 + next(4) }, () => next(6)), most = 1 + next(9), seen = new Set();
      for (const slice of slicesOf(shape, most)) {
        const count = elementsOfSlice(slice, shape), ranges = shape.map((size, d) => (slice.split(",")[d] ?? `0:${size}`).split(":").map(Number));
        check(count <= most, `${slice} of ${shape} has ${count} elements`);
        const cells = ranges.reduce((list, [from, to]) => list.flatMap((at) => Array.from({ length: to - from }, (_, i) => [...at, from + i])), [[]]);
        for (const cell of cells) check(!seen.has(`${cell}`) && seen.add(`${cell}`), `${cell} is in two slices of ${shape}`);
      }
      check(seen.size === shape.reduce((x, y) => x * y, 1), `slices of ${shape} lack elements`);
    }
  });
  await test("16-bit floats are the numbers that they stand for", async () => {
    const { numbersOf } = await load("elements.ts");
    const of = (dtype, bits) => [...numbersOf({ dtype, shape: [bits.length], buffer: new Uint16Array(bits).buffer })];
    check(`${of("float16", [0x3c00, 0xc500, 0x0001, 0x7bff, 0x7c00, 0x7e00])}` === `1,-5,${2 ** -24},65504,Infinity,NaN`, `${of("float16", [0x3c00, 0xc500, 0x0001, 0x7bff, 0x7c00, 0x7e00])}`);
    check(`${of("bfloat16", [0x3f80, 0xc0a0, 0x7f7f, 0xff80])}` === `1,-5,${Math.fround(3.3895313892515355e38)},-Infinity`, `${of("bfloat16", [0x3f80, 0xc0a0, 0x7f7f, 0xff80])}`);
  });
  await test("the statistics of a slice are Python's sample statistics of its finite numbers", async () => {
    const { statisticsOf } = await load("elements.ts"), numbers = [0.25, -3, 7.5, 0, 11];
    const [mean, std] = JSON.parse(spawnSync("python3", ["-c", "import json, statistics, sys; n = json.loads(sys.argv[1]); print(json.dumps([statistics.mean(n), statistics.stdev(n)]))", JSON.stringify(numbers)], { encoding: "utf8" }).stdout);
    const got = statisticsOf(Float64Array.from([...numbers, NaN, -Infinity]));
    check(Math.abs(got.mean - mean) < 1e-12 && Math.abs(got.std - std) < 1e-12 && got.min === -3 && got.max === 11 && got.zeros === 1 && got.nan === 1 && got.inf === 1, JSON.stringify([got, mean, std]));
    check(statisticsOf(Float64Array.from([5, NaN])).std === 0, "one finite number has a spread");
  });
  await test("numbers in tables have four digits, and large ones an exponent", async () => {
    const { shortText } = await load("elements.ts");
    const rows = [["10.4285717", "10.43"], ["-0.00122070312", "-0.001221"], ["0.5", "0.5"], ["123456789", "123456789"], ["4503599627370496.5", "4.504e+15"], ["53287412.5+13911234560.25j", "5.329e+7+1.391e+10j"], ["nan", "nan"], ["-inf", "-inf"], ["3+4j", "3+4j"]];
    for (const [exact, want] of rows) check(shortText(exact) === want, `${exact}: ${shortText(exact)} instead of ${want}`);
  });
  await test("texts of the core name a form's fields, and leave options without one as they are", async () => {
    const { convertFields, inFields, OPTIMIZER_FIELDS, RESHARD_FIELDS } = await load("field_names.ts");
    const convert = (to, more = {}) => convertFields({ dtype: "", quantized: "", ...more }, to);
    const rows = [
      [convert("safetensors"), "'w' is an object, which safetensors cannot store (pass --objects drop or --objects sidecar)", "'w' is an object, which safetensors cannot store (use “Non-tensor objects: leave out” or “Non-tensor objects: write as JSON next to it”)"],
      [convert("dcp"), "which are not written; use ds_to_universal, or write --to dcp, torch or safetensors", "which are not written; use ds_to_universal, or write “Form: dcp, torch or safetensors”"],
      [convert("dcp"), "nothing is selected: --exclude leaves out every name that --include matches", "nothing is selected: “But not” leaves out every name that “Only names that match” matches"],
      [convert("dcp"), "pass --max-shard-size SIZE", "pass --max-shard-size SIZE"],
      [convert("safetensors"), "pass --max-shard-size SIZE", "use “Shards of at most”"],
      [convert("dcp", { quantized: "fp8-block" }), "pass --dequantize too, or leave it as it is with --no-quantize", "use “Weights become: dequantized” too, or leave it as it is with “But keep these as they are”"],
      [convert("dcp", { dtype: "float16" }), "would not apply; pass --raw-cast to cast the stored numbers as they are", "would not apply; use “Cast scaled numbers without their scales” to cast the stored numbers as they are"],
      [convert("dcp"), "leave them out, or pass --allow-expansion; --for-torch", "leave them out, or use “Accept tensors that repeat stored elements very often”; “For this version of PyTorch”"],
      [RESHARD_FIELDS, "validate --deep shows where, and --ignore-crc accepts the bytes as they are", "validate --deep shows where, and “Accept bytes that do not match their checksums” accepts the bytes as they are"],
      [RESHARD_FIELDS, "pass --shards MAP to join them (a tessera.shards/1 file, or vllm), or leave them out with --exclude (convert, reshard, plan, layout, manifest)", "use “Ranks are joined by” to join them (a tessera.shards/1 file, or vllm), or leave them out with “But not”"],
      [OPTIMIZER_FIELDS, "leave it out with --exclude (convert, reshard, plan, layout, manifest)", "leave it out with “But not” in Convert"],
      [OPTIMIZER_FIELDS, "open the stored weights with --part module, or load", "open the stored weights with “Only the part: module”, or load"],
      [OPTIMIZER_FIELDS, "there are 2 optimizers; choose one with --at NAME", "there are 2 optimizers; choose one with “The optimizer's key”"],
      [OPTIMIZER_FIELDS, "optim to-fqn needs --modules MODULES.json; see tessera help optim", "optim to-fqn needs “Choose the module tree”; see tessera help optim"],
    ];
    for (const [fields, text, want] of rows) check(inFields(text, fields) === want, inFields(text, fields));
  });
  await test("every option of convert in the table has a field, but for those that need another checkpoint", async () => {
    const { convertFields } = await load("field_names.ts"), { OPTIONS } = await import(path.join(root, "wasm/commands.js"));
    const fields = ["safetensors", "ranks"].flatMap((to) => convertFields({ dtype: "float16", quantized: "fp8-block", canonical: true }, to));
    const lacking = Object.keys(OPTIONS.convert).filter((name) => !fields.includes(`--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`));
    check(lacking.sort().join() === "against,lora,onProgress,signal", lacking.join());
  });
  await test("the weights of a model are told from what is next to them", async () => {
    const { optionsOf, HUGGING_FACE, CONVERT_START } = await load("convert_form.ts"), held = (prefix, others = [], objects = 0) => ({ objects, weights: { prefix, others }, isBeyondSafetensors: false });
    const rows = [
      [HUGGING_FACE, held("model.", [], 3), { to: "safetensors", maxShardSize: "5GB", objects: "drop", prefix: "model." }],
      [HUGGING_FACE, held("", ["optim.**"]), { to: "safetensors", exclude: ["optim.**"], maxShardSize: "5GB" }],
      [{ ...CONVERT_START, what: "weights" }, held("model."), { to: "safetensors", include: ["model.**"] }],
      [{ ...CONVERT_START, names: "stripped" }, held("model.", [], 1), { to: "safetensors", rename: ["model.="], objects: "sidecar" }],
      [{ ...CONVERT_START, include: "a.** b" }, held(""), { to: "safetensors" }], // it is not the answer
      [{ ...CONVERT_START, what: "choose", include: "a.** b", to: "torch" }, held("", [], 1), { to: "torch", include: ["a.**", "b"] }],
      [CONVERT_START, { ...held("", [], 1), isBeyondSafetensors: true }, { to: "torch" }],
    ];
    for (const [form, source, want] of rows) check(JSON.stringify(optionsOf(form, source)) === JSON.stringify(want), `${JSON.stringify(optionsOf(form, source))} instead of ${JSON.stringify(want)}`);
  });
  await test("layers, prefixes and casts of a comparison", async () => {
    const { layerOf } = await load("layers.ts"), { castsOf, mapOfFit, prefixOf } = await load("fit.ts");
    check(["model.layers.10.mlp.up.weight", "embed.weight", "norm", "h.0", "a.1.b.2.c"].map(layerOf).join() === "model.layers.10,embed,norm,h.0,a.1", "other layers");
    const names = ["layers.0.w", "norm", "head"], put = (p, list) => list.map((name) => p + name);
    check(JSON.stringify(prefixOf({ removed: put("model.", names), added: names })) === '{"side":"a","text":"model.","matches":3}', "not in A");
    check(JSON.stringify(prefixOf({ removed: names, added: [...put("a.b.", names), "step"] })) === '{"side":"b","text":"a.b.","matches":3}', "not in B");
    check(prefixOf({ removed: ["x.w", "y", "z"], added: ["w", "u", "v"] }) === undefined, "one of three names is offered");
    const changed = [{ fqn: "w", what: ["dtype"], a: { dtype: "float32" }, b: { dtype: "bfloat16" } }, { fqn: "i", what: ["dtype"], a: { dtype: "int64" }, b: { dtype: "int32" } }, { fqn: "s", what: ["dtype", "shape"], a: { dtype: "float32" }, b: { dtype: "bfloat16" } }];
    check(JSON.stringify(castsOf({ changed })) === '[{"fqn":"w","dtype":"bfloat16"}]', JSON.stringify(castsOf({ changed })));
    check(mapOfFit({ casts: [] }).map === undefined, "a map of nothing");
  });
  await test("items that cannot be read are judged again with the second file of the module, whatever is said of them", async () => {
    const { openFiles } = await load("absent.ts");
    const opened = (isPrepared, rule) => {
      const document = (kind) => JSON.stringify(kind === "findings" ? { findings: [{ rule, level: "error", message: "in other words" }], summary: {} } : {});
      let isOpen = true;
      try {
        openFiles({ isPrepared, open: () => ({ check: () => undefined, document, close: () => { isOpen = false; } }) }, [], {}, "");
        return isOpen;
      } catch {
        return isOpen;
      }
    };
    check(!opened(false, "dcp/item") && opened(true, "dcp/item") && opened(false, "layout/hole"), "they are not, or others are");
  });
  await test("the term of a file matches that file only, and ranks come from names", async () => {
    const { fileTerm, faultOf } = await load("filter.ts"), { rankOf } = await load("ranks.ts");
    check(fileTerm("__1_0.distcp") === "file:__1_0.distc?" && fileTerm("a b[1].pt") === "file:a?b?1?.pt", `${fileTerm("__1_0.distcp")} ${fileTerm("a b[1].pt")}`);
    check(rankOf("__12_3.distcp") === 12 && rankOf("x/rank_7.pt") === 7 && rankOf("model-00001-of-00002.safetensors") === undefined, "ranks");
    check(faultOf(">1.5GiB dtype:float -kind:object **.weight", ["float32"]) === undefined && /not a size/.test(faultOf("<2XB", [])), "filters");
    for (const shape of ["x", "4x", "x4", "4xx4", "8×8", "-1", "4096,4096", "[x]", "4x4x"]) check(/is not a shape/.test(faultOf(`shape:${shape}`, []) ?? ""), `shape:${shape} could match, it is said`);
    for (const shape of ["4096", "4096x*", "*x4096", "**", "[1-4]?x[!0]8", "0", "2x3x4x5"]) check(faultOf(`-shape:${shape}`, []) === undefined, `shape:${shape}: ${faultOf(`shape:${shape}`, [])}`);
  });
}
