/** The WebAssembly module and the native program produce the same output for every sample. The exports are the listed ones,
 *  the outline agrees with the names, stale handles are rejected, and nothing leaks. Usage: run.mjs [--tessera PROGRAM]
 *  [--only SAMPLE] --only: use only the samples whose names contain SAMPLE */
import crypto from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import zlib from "node:zlib";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { OPTIONS } from "../../wasm/commands.js";
import { Tessera } from "../../wasm/tessera.js";
import { filesOf } from "../../wasm/node.js";
import { testNewOptions } from "./options.mjs";
import { testOutlines } from "./outline.mjs";
import { testCalls } from "./calls.mjs";
import { testChecksums } from "./checksums.mjs";
import { testConversions } from "./conversions.mjs";
import { testFailures } from "./failures.mjs";
import { testListing } from "./listing.mjs";
import { testReplacing } from "./replacing.mjs";
import { testSinks } from "./sinks.mjs";
import { testMaps, testNames, testRemoteFiles, testSources } from "./sources.mjs";
import { testOptimizers, testUnprepared } from "./optimizer.mjs";
import { testReals } from "./reals.mjs";
import { check, errorOf, opener, report, same, test } from "./harness.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const at = process.argv.indexOf("--tessera");
const native = at > 0 ? path.resolve(process.argv[at + 1]) : path.join(root, "build/release/bin/tessera");
const only = process.argv.indexOf("--only");
const samples = path.join(root, "samples/checkpoints");
const bytes = fs.readFileSync(path.join(root, "build/wasm/bin/tessera.wasm"));
const module = await WebAssembly.compile(bytes);
const writers = fs.readFileSync(path.join(root, "build/wasm/bin/tessera-writers.wasm"));
const tessera = await Tessera.load(module);
await tessera.prepare(writers);

/** The directory or file that each golden next to the samples describes. */
const targets = fs.readdirSync(samples).filter((n) => n.endsWith(".expect.json")).map((n) => {
  const expected = JSON.parse(fs.readFileSync(path.join(samples, n), "utf8"));
  return path.join(samples, expected.path ?? n.slice(0, -".expect.json".length));
}).filter((target) => only < 0 || path.basename(target).includes(process.argv[only + 1]));

/** A file that represents a set (an index, .metadata) is opened with its directory, as the command line does. */
function sourceOf(target) {
  const standsForSet = fs.statSync(target).isFile() && (target.endsWith(".json") || path.basename(target) === ".metadata");
  if (!standsForSet) return filesOf(target);
  const source = filesOf(path.dirname(target));
  return { ...source, files: source.files.filter((f) => !f.name.includes("/")), options: { primary: path.basename(target) } };
}

const withOpened = opener(tessera, sourceOf);

const messageOf = (body) => errorOf(body).message;

const documents = [
  ["inspect", (t) => ["inspect", t, "--json"]],
  ["findings", (t) => ["validate", t, "--format", "json"]],
  ["findings-deep", (t) => ["validate", "--deep", t, "--format", "json"]],
];
for (const target of targets) {
  for (const [kind, args] of documents) {
    test(`${path.relative(root, target)} ${kind}`, () => {
      const p = spawnSync(native, args(target), { encoding: "utf8", maxBuffer: 1 << 28 });
      check(p.error === undefined, `${native} does not run: ${p.error}`);
      let ours, refusal;
      try {
        ours = withOpened(target, (opened) => opened.document(kind, { path: target }));
      } catch (e) {
        refusal = e.message;
      }
      if (p.status === 2) {
        check(refusal !== undefined, `native refuses (${p.stderr.trim()}), wasm does not`);
        check(p.stderr.includes(refusal), `the refusals differ: native ${p.stderr.trim()}, wasm ${refusal}`);
      } else {
        check(refusal === undefined, `wasm refuses: ${refusal}`);
        same(p.stdout, ours, "documents");
      }
    });
  }
}

test("an interrupted save is opened and judged, and listed nowhere", () => {
  const target = path.join(root, "samples/checkpoints/broken_dcp_no_metadata");
  const refused = spawnSync(native, ["inspect", target], { encoding: "utf8" });
  check(refused.status === 2, refused.stderr);
  withOpened(target, (opened) => {
    check(JSON.parse(opened.document("findings")).findings.some((f) => f.rule === "parts/incomplete-save"), "no finding says so");
    for (const body of [() => opened.document("inspect"), () => opened.document("overview"), () => opened.document("layout"), () => opened.outline(), () => opened.document("optimizer")])
      check(refused.stderr.includes(messageOf(body)), `${body} says ${messageOf(body)}`);
    check(opened.find("w") === undefined, "a name is found");
  });
});

test("the first file exports what the lists say, the second imports from the first, and seven functions are asked of the host", () => {
  const second = new WebAssembly.Module(writers), listed = ["exports.txt", "exports_writers.txt"].flatMap((list) =>
    fs.readFileSync(path.join(root, "wasm", list), "utf8").split("\n").filter((l) => /^[a-z]/.test(l))).sort();
  const exported = WebAssembly.Module.exports(module).map((e) => e.name).filter((n) => n.startsWith("tessera_")).sort();
  same(listed.join(" "), exported.join(" "), "exports");
  const imports = [module, second].flatMap((m) => WebAssembly.Module.imports(m)).filter((i) => !["primary", "placeholder"].includes(i.module));
  same("emscripten_notify_memory_growth tsr_create tsr_parse_real tsr_prefetch tsr_print_real tsr_read tsr_wait tsr_write", [...new Set(imports.map((i) => i.name))].sort().join(" "), "imports");
});

test("the modules are small enough to load", () => {
  const sizes = [bytes, writers].map((b) => zlib.gzipSync(b, { level: 9 }).length);
  check(sizes[0] <= 180_000 && sizes[0] + sizes[1] <= 480_000, `${sizes} bytes with gzip`);
});

test("files of an output that is being written are not a checkpoint's", () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-files-"));
  for (const name of ["a.pt", ".a.pt.tessera-77", "step/b.pt", "step/.tessera-w0-0", ".out.tessera-w0/c.pt"]) {
    fs.mkdirSync(path.dirname(path.join(folder, name)), { recursive: true });
    fs.writeFileSync(path.join(folder, name), "x");
  }
  same("a.pt step/b.pt", filesOf(folder).files.map((f) => f.name).sort().join(" "), "the files");
  fs.rmSync(folder, { recursive: true });
});

test("a closed checkpoint, and what was made from it, are refused", () => {
  const source = filesOf(path.join(samples, "safetensors_model"));
  const opened = tessera.open(source.files);
  const outline = opened.outline();
  opened.close();
  check(outline.count === 0, "the outline of a closed checkpoint has rows");
  check(/no checkpoint is open/.test(messageOf(() => opened.document("inspect"))), "a closed checkpoint was read");
  check(/no checkpoint is open/.test(messageOf(() => { outline.handle && opened.outline(); })), "a closed checkpoint was outlined");
  source.close();
});

test("every call on a closed checkpoint is refused, and arguments of open are checked", () => {
  const source = filesOf(path.join(samples, "dcp_fsdp2")), opened = tessera.open(source.files), made = opened.optimizer("flatten");
  check(opened.warnings.length === 0 && opened.find("nosuch") === undefined && made.find("nosuch") === undefined, "warnings or names of an open checkpoint");
  opened.close();
  for (const call of [() => opened.find("x"), () => made.find("x"), () => opened.warnings, () => made.warnings, () => opened.check()]) check(/^no checkpoint is open/.test(messageOf(call)), `${call}`);
  source.close();
  const file = { name: "a.pt", size: 3, read() {} };
  for (const [files, name] of [[undefined, "files"], [file, "files"], ["a.pt", "files"], [[undefined], "files[0].name"], [[file, { ...file, name: 3 }], "files[1].name"], [[{ ...file, size: -1 }], "files[0].size"], [[{ ...file, size: 1.5 }], "size"], [[{ ...file, size: 3n }], "size"], [[{ name: "a.pt", size: 3 }], "files[0].read"]]) {
    const e = errorOf(() => tessera.open(files));
    check(e instanceof TypeError && e.message.startsWith("open: ") && e.message.includes(name), `${e}`);
  }
});

test("a primary file that is not there, and different files with one name, are refused", () => {
  const source = filesOf(path.join(samples, "safetensors_model")), [file] = source.files;
  for (const [files, options, message] of [[[file], { primary: "nosuch" }, "there is no file 'nosuch'"], [[file, { name: file.name, size: file.size - 1, read() {} }], {}, `two files have the name '${file.name}'`]]) {
    const e = errorOf(() => tessera.open(files, options));
    check(e.status === "usage" && e.message === message, `${e}`);
  }
  source.close();
});

test("results of a shared check are taken from the middle of a buffer", () => {
  withOpened(path.join(samples, "dcp_fsdp2"), (opened) => {
    const found = opened.checkPart(0, 1), around = new Uint8Array(found.length + 8);
    around.set(found, 8);
    opened.checkJoin(around.subarray(8), 1);
    check(JSON.parse(opened.document("findings")).findings.length >= 0, "no findings");
  });
});

test("a handle that was closed is refused when its slot holds another thing of the same kind", () => {
  withOpened(path.join(samples, "safetensors_model"), (opened) => {
    const stale = opened.tally(0), number = stale.handle;
    stale.close();
    const next = opened.tally(0);
    stale.handle = number;
    check(/no tally is open/.test(messageOf(() => stale.step(100))), "the stale handle moved another tally");
    stale.close();
    next.step(100);
    next.close();
  });
});

/** Returns the module with another memory limit, in pages of 64 KiB, by rewriting the limits in its memory section. */
function withMostPages(pages) {
  const number = (at) => { let n = 0, shift = 0, byte; do { byte = bytes[at++]; n += (byte & 127) * 2 ** shift; shift += 7; } while (byte & 128); return [n, at]; };
  const leb = (n) => n < 128 ? [n] : [(n & 127) | 128, ...leb(n >>> 7)];
  for (let at = 8; at < bytes.length;) {
    const [size, body] = number(at + 1);
    if (bytes[at] === 5) { /* one memory: its flags, its initial and its maximum number of pages */
      const [first] = number(body + 2), limits = [1, 1, ...leb(first), ...leb(Math.max(first, pages))];
      return Buffer.concat([bytes.subarray(0, at), Buffer.from([5, ...leb(limits.length), ...limits]), bytes.subarray(body + size)]);
    }
    at = body + size;
  }
  throw new Error("the module has no memory");
}

/** Makes a safetensors file of many tensors, field by field. */
function manyTensors(count) {
  const header = Buffer.from(JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, i) => [`model.layers.${i}.weight`, { dtype: "U8", shape: [1], data_offsets: [i, i + 1] }]))));
  const all = Buffer.concat([Buffer.alloc(8), header, Buffer.alloc(count)]);
  all.writeBigUInt64LE(BigInt(header.length));
  return { name: "many.safetensors", size: all.length, read: (offset, into) => void into.set(all.subarray(offset, offset + into.length)) };
}

const starved = await Promise.all([0, 300, 400, 500, 700, 1000].map(async (pages) => Tessera.load(withMostPages(pages))));
test("memory that runs out is an error, and the module goes on", () => {
  const file = manyTensors(100_000);
  let refused = 0;
  for (const small of starved) {
    try {
      const opened = small.open([file], { primary: file.name });
      opened.outline();
      opened.document("findings", { path: "x" });
      opened.document("overview");
      opened.close();
    } catch (e) {
      check(e.status === "out of memory", `${e.constructor.name} ${e.status}: ${e.message}`);
      refused++;
    }
    const little = manyTensors(3), opened = small.open([little], { primary: little.name });
    check(JSON.parse(opened.document("inspect")).entries.length === 3, "a small checkpoint does not open after that");
    opened.close();
  }
  check(refused > 1 && refused < starved.length, `${refused} of ${starved.length} ran out of memory`);
});

test("a failed read is an i/o error with the file, the byte and the cause", () => {
  const file = { name: "model.safetensors", size: 1000, read() { throw new Error("the file changed"); } };
  const e = errorOf(() => tessera.open([file], { primary: file.name }));
  check(e.status === "input/output" && e.position === 0 && /model\.safetensors cannot be read \(the file changed\)/.test(e.message), `${e.status} ${e.position} ${e.message}`);
});

test("a read that says it gave fewer bytes is an i/o error", () => {
  const [file] = filesOf(path.join(samples, "safetensors_model")).files, all = fs.readFileSync(file.at);
  const copying = { name: file.name, size: file.size, read: (offset, into) => all.copy(into, 0, offset, offset + into.length) };
  const opened = tessera.open([copying]), { fqn } = opened.inspect().entries.find((e) => e.kind === "tensor");
  check(opened.read(fqn).data.length > 0, "a whole read is refused");
  copying.read = (offset, into) => all.copy(into, 0, offset, offset + into.length - 1);
  const e = errorOf(() => opened.read(fqn));
  check(e.status === "input/output" && /read gave \d+ of \d+ bytes/.test(e.message), `${e}`);
  opened.close();
});

test("statistics in steps are the statistics of the command line", () => {
  const target = path.join(samples, "safetensors_model");
  const p = spawnSync(native, ["inspect", target, "--stats", "--json"], { encoding: "utf8" });
  withOpened(target, (opened) => {
    let compared = 0;
    for (const entry of JSON.parse(p.stdout).entries) {
      if (!entry.stats) continue;
      const tally = opened.tally(opened.find(entry.fqn));
      while (tally.step(100));
      const ours = JSON.parse(tally.document());
      for (const key of ["min", "max", "nan", "inf", "zero"]) check(ours[key] === entry.stats[key], `${entry.fqn} ${key}: ${ours[key]} and ${entry.stats[key]}`);
      for (const key of ["mean", "std"]) check(Math.abs(ours[key] - entry.stats[key]) <= 1e-12 * Math.abs(entry.stats[key]), `${entry.fqn} ${key}`);
      check(ours.histogram.reduce((a, b) => a + b) === ours.count - ours.nan - ours.inf, `${entry.fqn}: the histogram lost values`);
      tally.close();
      compared++;
    }
    check(compared > 5, `only ${compared} tensors were compared`);
  });
});

const sha256 = (data) => crypto.createHash("sha256").update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)).digest("hex");

test("every tensor of every sample reads as the command line hashes it", () => {
  let read = 0;
  const kinds = new Set();
  for (const target of targets) {
    const p = spawnSync(native, ["inspect", target, "--hash", "sha256", "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
    if (p.status) continue;
    withOpened(target, (opened) => {
      for (const e of JSON.parse(p.stdout).entries.filter((x) => x.kind === "tensor" && !x.per_rank)) {
        let values;
        try {
          values = opened.read(e.fqn);
        } catch (error) {
          check(!e.hash, `${target} ${e.fqn}: ${error.message}`);
          continue;
        }
        check(values.dtype === e.dtype && `${values.shape}` === `${e.shape}` && e.hash && sha256(values.data) === e.hash.digest, `${target} ${e.fqn}: different values`);
        kinds.add(`${e.dtype} ${values.data.constructor.name}`);
        read++;
      }
    });
  }
  if (only >= 0) return;
  for (const kind of ["bfloat16 Uint16Array", "float16 Uint16Array", "bool Uint8Array", "complex64 Float32Array", "complex128 Float64Array", "int64 BigInt64Array", "float8_e4m3fn Uint8Array"]) check(kinds.has(kind), `no ${kind} among ${[...kinds].join(", ")}`);
  check(read > 300, `${read} tensors were read`);
});

test("slices are those of the command line, refusals too", () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-slices-")), out = path.join(folder, "x.bin");
  const target = path.join(samples, "dcp_tp_fsdp2"), get = (text) => spawnSync(native, ["get", target, text, "-o", out], { encoding: "utf8" });
  withOpened(target, (opened) => {
    const { fqn, shape } = JSON.parse(opened.document("inspect")).entries.find((e) => e.shape?.length === 2 && e.chunks.length > 1);
    const npy = (slice) => { spawnSync(native, ["get", target, `${fqn}[${slice}]`, "-o", `${out}.npy`]); return /'shape': \(([^)]*)\)/.exec(fs.readFileSync(`${out}.npy`, "latin1"))[1].split(",").map((n) => n.trim()).filter(Boolean).join(","); };
    for (const slice of ["0", "-1,:", ":,1", "1:3,0:2", "...,-2:", ":", "2:2", "1:-1,...", " 0 , 1 "]) {
      fs.rmSync(out, { force: true });
      fs.rmSync(`${out}.npy`, { force: true });
      const p = get(`${fqn}[${slice}]`), values = opened.read(fqn, slice);
      check(p.status === 0 && sha256(values.data) === sha256(fs.readFileSync(out)), `[${slice}] of ${shape}: ${p.stderr}`);
      same(npy(slice), values.shape.join(","), `shape of [${slice}]`);
    }
    for (const slice of ["", "99", "-99,0", "0,0,0", "a", "::2", "0,"]) {
      const p = get(`${fqn}[${slice}]`), e = errorOf(() => opened.read(fqn, slice));
      check(p.status === 2 && p.stderr.includes(e.message), `[${slice}]: native ${p.stderr} wasm ${e.message}`);
    }
    for (const call of [() => opened.read(1), () => opened.read(fqn, 1)]) check(errorOf(call) instanceof TypeError, `${call}`);
    check(get("nosuch").stderr.includes(errorOf(() => opened.read("nosuch")).message), "a name that is not there");
  });
  fs.rmSync(folder, { recursive: true });
});

test("a large tensor is read in pieces", () => {
  const size = 10_000_001, head = Buffer.from(JSON.stringify({ w: { dtype: "U8", shape: [size], data_offsets: [0, size] } })), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  const begin = Buffer.concat([length, head]);
  const file = { name: "m.safetensors", size: begin.length + size, read(offset, into) { for (let i = 0; i < into.length; i++) into[i] = offset + i < begin.length ? begin[offset + i] : (offset + i - begin.length) % 251; } };
  const opened = tessera.open([file], { primary: file.name }), { data } = opened.read("w");
  check(data.length === size && data.every((x, i) => x === i % 251), "other bytes");
  opened.close();
});

test("a diff across formats is the diff of the command line", () => {
  for (const [a, b] of [["dcp_fsdp2", "dcp_hsdp"], ["safetensors_model", "safetensors_consolidated"], ["torch_plain", "torch_plain"]]) {
    const [pa, pb] = [path.join(samples, a), path.join(samples, b)];
    const p = spawnSync(native, ["diff", pa, pb, "--values", "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
    withOpened(pa, (A) => withOpened(pb, (B) => {
      const diff = A.diff(B);
      while (diff.step());
      same(p.stdout, diff.document(pa, pb), `diffs of ${a} and ${b}`);
    }));
  }
});

test("a plan of the module is carried out by the command line", () => {
  const target = path.join(samples, "dcp_fsdp2"), folder = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-wasm-"));
  const text = JSON.stringify({ schema: "tessera.target/1", mesh: { shape: [3], dim_names: ["dp"] }, rules: [], default: ["shard(0)"] });
  try {
    const plan = path.join(folder, "plan.json"), out = path.join(folder, "out");
    withOpened(target, (opened) => fs.writeFileSync(plan, opened.document("plan", { target: text, path: target })));
    for (const args of [["exec", plan, out], ["diff", target, out, "--values"]]) {
      const p = spawnSync(native, args, { encoding: "utf8" });
      check(p.status === 0, `${args[0]}: ${p.stdout}${p.stderr}`);
    }
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});

const FORMATS = ["json", "sarif", "junit", "github", "gitlab"];
const printed = (...args) => spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 }).stdout;

test("reports are those of the command line", () => {
  const rule = ["values/*=error", "layout/hole=note"];
  for (const name of ["broken_dcp_hole", "broken_dcp_byte_flipped", "broken_torch_call", "broken_index_missing_key", "dcp_fsdp2", "dcp_rank_local", "safetensors_names"]) {
    const target = path.join(samples, name);
    for (const format of FORMATS) {
      withOpened(target, (opened) => {
        same(printed("validate", target, "--format", format), opened.document("findings", { path: target, format }), `${format} of ${name}`);
        same(printed("validate", target, "--deep", "--format", format), opened.document("findings-deep", { path: target, format }), `${format} of ${name}, --deep`);
        const judged = tessera.report(opened.validate({ deep: true, rule }), { path: target, format });
        if (format !== "json") same(printed("validate", target, "--deep", ...rule.flatMap((r) => ["--rule", r]), "--format", format), judged, `${format} of ${name}, --rule`);
      });
    }
    withOpened(target, (opened) => same(opened.document("findings", { path: target, format: "sarif" }), opened.document("sarif", { path: target }), `the kind sarif of ${name}`));
  }
});

test("reports of a comparison are those of the command line", () => {
  const [a, b] = ["dcp_fsdp2", "broken_dcp_hole"].map((name) => path.join(samples, name)), rule = ["diff/added=warning"];
  for (const format of FORMATS) {
    withOpened(a, (A) => withOpened(b, (B) => {
      const plain = A.diff(B), judged = A.diff(B, { rule });
      while (plain.step());
      same(printed("diff", a, b, "--values", "--format", format), plain.document(a, b, { format }), `${format} of a comparison`);
      same(printed("diff", a, b, "--rule", rule[0], "--format", format), judged.document(a, b, { format }), `${format} of a comparison with --rule`);
    }));
  }
});

test("reports of values that differ from their manifest are those of the command line", () => {
  const [target, other] = ["dcp_fsdp2", "dcp_v2_15_fsdp2"].map((name) => path.join(samples, name)), folder = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-wasm-"));
  try {
    const file = path.join(folder, "manifest.json"), manifest = printed("manifest", other);
    fs.writeFileSync(file, manifest);
    for (const format of FORMATS.slice(1)) {
      const wanted = printed("verify", target, file, "--format", format);
      check(wanted.includes("layout/missing-entry"), `${format} has no finding`);
      withOpened(target, (opened) => same(wanted, tessera.report(opened.verify(manifest), { path: target, format }), `${format} of verify`));
    }
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});

test("a wrong format, and a document without findings, are refused", () => {
  withOpened(path.join(samples, "dcp_fsdp2"), (opened) => {
    const wrong = errorOf(() => opened.document("findings", { format: "xml" }));
    check(wrong.status === "usage" && wrong.message === "format expects json, sarif, junit, github or gitlab, not 'xml'", wrong.message);
    const other = errorOf(() => opened.document("overview", { format: "sarif" }));
    check(other.status === "malformed" && other.message.includes("a report is made of a tessera.findings/1 document"), other.message);
    check(errorOf(() => opened.document("findings", { format: 1 })) instanceof TypeError, "a number is accepted as a format");
    check(errorOf(() => tessera.report(opened.validate(), { form: "sarif" })) instanceof TypeError, "an unknown option is accepted");
  });
});

test("tensors with equal bytes are found, tied ones too", () => {
  withOpened(path.join(samples, "torch_train_state"), (opened) => {
    const twins = opened.twins();
    while (twins.step());
    const [largest] = JSON.parse(twins.document()).groups;
    same("model.emb.weight model.head.weight", largest.fqns.join(" "), "names");
    check(largest.bytes === 11 * 6 * 4, `${largest.bytes} bytes`);
  });
});

testOutlines(targets, withOpened, root);
testOptimizers({ tessera, native, root, targets, withOpened });
testCalls({ tessera, native, root, targets, withOpened });
await testConversions({ tessera, native, root, targets, sourceOf });
await testSinks({ tessera, native, root });
await testReplacing({ tessera, native, root });
await testFailures({ tessera, module, writers, root });
await testSources({ tessera, native, root, withOpened, sourceOf });
testListing({ tessera, native, root });
await testRemoteFiles({ tessera, module, native, root, withOpened, sourceOf });
await testMaps({ tessera, native, root, withOpened, sourceOf });
await testNewOptions({ tessera, native, root, withOpened, sourceOf });
await testNames({ tessera, native, withOpened, sourceOf });
testReals();
testChecksums(tessera);
await testUnprepared(module, writers, { sample: path.join(samples, "dcp_fsdp2"), root });

test("the types of documents are those of the schemas", () => {
  const p = spawnSync(process.execPath, [path.join(root, "wasm/types.mjs"), "--check"], { encoding: "utf8" });
  check(p.status === 0, p.stderr);
});

test("the options of calls are those of the table of commands", () => {
  const p = spawnSync(process.execPath, [path.join(root, "wasm/commands.mjs"), native, "--check"], { encoding: "utf8" });
  check(p.status === 0, p.stderr);
});

test("every option of a call is used by the package", () => {
  const textsOf = (folder, isWanted) => fs.readdirSync(path.join(root, folder)).filter(isWanted).map((n) => fs.readFileSync(path.join(root, folder, n), "utf8")).join("\n");
  const script = textsOf("wasm", (n) => n.endsWith(".js") && n !== "commands.js"), table = textsOf("core/commands", (n) => n === "table.c");
  const code = textsOf("wasm", (n) => n.endsWith(".c")) + textsOf("core/commands", (n) => n.endsWith(".c") && n !== "table.c" && n !== "options.c");
  const fields = new Map([...table.matchAll(/OPTION\(\s*\w+, \w+, (\w+)[\w.]*, "([\w-]+)"/g)].map(([, field, long]) => [long, field]));
  check(fields.size > 60, `${fields.size} options are found in the table`);
  for (const [call, options] of Object.entries(OPTIONS))
    for (const name of Object.keys(options)) {
      const long = name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
      check(new RegExp(`[.>]${fields.get(long)}\\b`).test(code) || new RegExp(`\\b${name}\\b`).test(script), `neither core/commands nor wasm reads option ${name} of ${call}; implement it, or state in core/commands/table.c why it is not in the package`);
    }
});

test("the npm package installs, runs under Node and has the types that it says", () => {
  const p = spawnSync(path.join(root, "tests/wasm/package.sh"), { encoding: "utf8" });
  check(p.status === 0, p.stdout + p.stderr);
});

test("rules explain themselves", () => {
  check(/shard was lost/.test(tessera.ruleHelp("layout/hole")) && tessera.ruleHelp("no/rule") === "", tessera.ruleHelp("layout/hole"));
});

test("thousands of opens leak nothing", () => {
  for (const name of ["safetensors_model", "dcp_fsdp2", "torch_views"]) {
    const target = path.join(samples, name);
    const once = () => withOpened(target, (opened) => {
      opened.outline().filter("weight");
      opened.document("findings", { path: "x" });
      opened.document("overview");
      opened.diff(opened);
      opened.twins().step();
      opened.document("optimizer");
      opened.canonicalize();
      opened.diff(opened, { canonical: true });
      if (name === "dcp_fsdp2") opened.optimizer("flatten").document("inspect");
      opened.plan({ target: '{"schema":"tessera.target/1","mesh":{"shape":[2]},"rules":[],"default":["shard(0)"]}' });
      opened.validate({ deep: true, against: opened });
      opened.manifest();
    });
    once();
    const before = tessera.memoryBytes;
    for (let i = 0; i < 1000; i++) once();
    check(tessera.openCount === 0, "handles are still open");
    check(tessera.memoryBytes <= before, `memory grew from ${before} to ${tessera.memoryBytes} bytes`);
  }
});

report();
