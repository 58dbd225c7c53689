/** convert and reshard: the sink gets the same names and bytes as the files that the native command writes; also the order
 *  of calls, errors, aborts and sinkOf. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { filesOf, sinkOf } from "../../wasm/node.js";
import { check, errorOf, test } from "../support/harness.mjs";

/** Keeps everything that it receives, and how it was called. If `late`, it acts only in a later task, with a copy of the
 *  bytes. */
export class MemorySink {
  files = new Map();
  calls = [];
  constructor(late = false) { this.late = late; }
  #soon(act) { return this.late ? new Promise((resolve) => setTimeout(() => resolve(act()))) : act(); }
  create(name, size) {
    this.calls.push(`create ${name}`);
    return this.#soon(() => void this.files.set(name, Buffer.alloc(size)));
  }
  write(name, offset, bytes) {
    const copy = Buffer.from(bytes);
    this.calls.push(`write ${name}`);
    return this.#soon(() => {
      let file = this.files.get(name);
      if (file.length < offset + copy.length) this.files.set(name, (file = Buffer.concat([file, Buffer.alloc(offset + copy.length - file.length)])));
      copy.copy(file, offset);
    });
  }
  finish(name) { this.calls.push(`finish ${name}`); }
  done() { this.calls.push("done"); }
  abort() { this.calls.push("abort"); }
}

/** Returns the files of a destination by name. "" is the destination itself; ".objects.json" is next to it. */
export function filesAt(destination) {
  if (fs.statSync(destination).isDirectory()) {
    const names = fs.readdirSync(destination, { recursive: true }).filter((name) => fs.statSync(path.join(destination, name)).isFile());
    return new Map(names.map((name) => [name, fs.readFileSync(path.join(destination, name))]));
  }
  const files = new Map([["", fs.readFileSync(destination)]]);
  if (fs.existsSync(`${destination}.objects.json`)) files.set(".objects.json", fs.readFileSync(`${destination}.objects.json`));
  return files;
}

export function sameFiles(native, ours, what) {
  check([...native.keys()].sort().join() === [...ours.keys()].sort().join(), `${what}: native wrote ${[...native.keys()]}, wasm ${[...ours.keys()]}`);
  for (const [name, bytes] of native) check(bytes.equals(ours.get(name)), `${what}: '${name}' differs, at byte ${bytes.findIndex((b, i) => b !== ours.get(name)[i])} of ${bytes.length} (${ours.get(name).length})`);
}

const CASES = [
  ["convert", { to: "torch" }, ["--to", "torch"]],
  ["convert", { to: "dcp" }, ["--to", "dcp"]],
  ["convert", { to: "safetensors", objects: "drop" }, ["--to", "safetensors", "--objects", "drop"]],
  ["convert", { to: "safetensors", objects: "sidecar", maxShardSize: 2000, rename: ["model.=m."] }, ["--to", "safetensors", "--objects", "sidecar", "--max-shard-size", "2000", "--rename", "model.=m."]],
  ["convert", { to: "safetensors", objects: "sidecar", include: ["**"], exclude: ["**.bias"] }, ["--to", "safetensors", "--objects", "sidecar", "--include", "**", "--exclude", "**.bias"]],
  ["convert", { to: "dcp", dtype: "bfloat16" }, ["--to", "dcp", "--dtype", "bfloat16"]],
  ["convert", { to: "dcp", forTorch: "2.3" }, ["--to", "dcp", "--for-torch", "2.3"]],
  ["convert", { to: "dcp", forTorch: "2.15" }, ["--to", "dcp", "--for-torch", "2.15"]],
  ["convert", { to: "safetensors", objects: "drop", forTorch: "2.5" }, ["--to", "safetensors", "--objects", "drop", "--for-torch", "2.5"]],
  ["reshard", { to: "dcp", mesh: "dp=3", placements: "shard(0)" }, ["--to", "dcp", "--mesh", "dp=3", "--placements", "shard(0)"]],
  ["reshard", { to: "torch", mesh: "a=2,b=2", placements: "shard(0),replicate" }, ["--to", "torch", "--mesh", "a=2,b=2", "--placements", "shard(0),replicate"]],
  ["reshard", { to: "torch", mesh: "dp=2", placements: "shard(0)", forTorch: "2.13" }, ["--to", "torch", "--mesh", "dp=2", "--placements", "shard(0)", "--for-torch", "2.13"]],
  ["reshard", { to: "safetensors", objects: "drop", mesh: "dp=2", placements: "shard(0)" }, ["--to", "safetensors", "--objects", "drop", "--mesh", "dp=2", "--placements", "shard(0)"]],
];

/** Removes the members that only the command line has. */
export function resultOf(document) {
  const { source: _s, destination: _d, dry_run: _y, published: _p, work: _w, ...rest } = document;
  return JSON.stringify({ ...rest, summary: { ...rest.summary, seconds: 0 } });
}

export async function testConversions({ tessera, native, root, targets, sourceOf }) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-conversions-"));
  const at = (name) => path.join(directory, name), sample = (name) => path.join(root, "samples/checkpoints", name);
  const run = (...args) => spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 });

  async function withSource(target, body) {
    const source = sourceOf(target);
    const opened = tessera.open(source.files, source.options);
    try {
      return await body(opened);
    } finally {
      opened.close();
      source.close();
    }
  }

  async function compare(target, [command, options, args], sink) {
    const destination = at("native");
    for (const name of fs.readdirSync(directory)) fs.rmSync(at(name), { recursive: true });
    const p = run(command, target, destination, "--json", ...args);
    let result, refusal;
    try {
      result = await withSource(target, (opened) => opened[command](options, sink));
    } catch (e) {
      if (p.status === 0 || !e.status) throw e;
      refusal = e.message;
    }
    if (p.status) {
      check(refusal !== undefined && p.stderr.includes(refusal), `native refuses: ${p.stderr.trim()}; wasm: ${refusal ?? "nothing"}`);
      check(sink.calls.length === 0 || sink.calls.at(-1) === "abort", `after a refusal: ${sink.calls.slice(0, 5)}`);
      return;
    }
    sameFiles(filesAt(destination), sink.files, `${command} ${args.join(" ")}`);
    check(resultOf(JSON.parse(p.stdout)) === resultOf(result), `results differ: ${resultOf(JSON.parse(p.stdout)).slice(0, 600)} and ${resultOf(result).slice(0, 600)}`);
    const isMarker = / (\.metadata|model\.safetensors\.index\.json|metadata\.json|latest_universal)$/, begin = sink.calls.findIndex((call) => call.startsWith("create ") && isMarker.test(call));
    if (begin >= 0) check(sink.calls.slice(begin).every((call) => call === "done" || isMarker.test(call)), "something was done after the marker was created");
  }

  for (const target of targets)
    for (const each of CASES)
      await test(`${path.relative(root, target)} ${each[0]} ${each[2].join(" ")}`, () => compare(target, each, new MemorySink()));
  await test("a sink that answers later gets the same", () => compare(sample("dcp_fsdp2"), CASES[0], new MemorySink(true)));
  await test("a sink that answers later gets the same directory", () => compare(sample("torch_train_state"), CASES[1], new MemorySink(true)));

  for (const [name, to] of [["lightning_dist", "megatron-dist"], ["deepspeed_zero3", "deepspeed-universal"]])
    await test(`a sink that answers later gets the same ${to}`, () => compare(sample(name), ["convert", { to }, ["--to", to]], new MemorySink(true)));

  await test("what optim makes is written as the command writes it", async () => {
    fs.rmSync(at("native"), { recursive: true, force: true });
    const sink = new MemorySink(), target = sample("dcp_fsdp2");
    check(run("optim", "flatten", target, at("native")).status === 0, "native");
    const result = await withSource(target, (opened) => opened.optimizer("flatten").convert({ to: "torch" }, sink));
    sameFiles(filesAt(at("native")), sink.files, "flatten");
    check(result.files.length === 1 && result.files[0].bytes === sink.files.get("").length && result.entries.length > 0, JSON.stringify(result.files));
  });

  await test("a file per rank is written as the command writes it, though the ranks' tensors differ", async () => {
    const target = sample("dcp_fsdp2"), fqns = JSON.parse(run("inspect", target, "--json").stdout).entries.filter((e) => /^optim\.state\..*\.exp_avg$/.test(e.fqn));
    const params = fqns.map(({ fqn, shape }) => ({ fqn: fqn.slice("optim.state.".length, -".exp_avg".length), shape }));
    const flatParams = { schema: "tessera.flat-params/1", world_size: 3, use_orig_params: false, files: [0, 1, 2].map((rank) => `rank${rank}.pt`), param_groups: [["_flat_param"]],
      units: [{ fsdp_module: "", raw_name: "_flat_param", params, numels_with_padding: params.map(({ shape }) => shape.reduce((a, b) => a * b, 1)), is_padding_mask: params.map(() => false) }] };
    fs.writeFileSync(at("flat.json"), JSON.stringify(flatParams));
    for (const worldSize of [1, 3, 5]) {
      const sink = new MemorySink(), written = at(`ranks${worldSize}`), p = run("optim", "shard", target, written, "--flat-params", at("flat.json"), "--world-size", `${worldSize}`);
      check(p.status === 0, p.stderr);
      const result = await withSource(target, (opened) => opened.optimizer("shard", { flatParams, worldSize }).convert({ to: "torch" }, sink));
      sameFiles(filesAt(written), sink.files, `${worldSize} ranks`);
      check(result.files.length === worldSize && result.files.every(({ name, bytes }) => sink.files.get(name).length === bytes), JSON.stringify(result.files));
    }
  });

  await test("refusals call nothing and are the command's", async () => {
    const target = sample("torch_train_state");
    for (const [command, options, args] of [["convert", { to: "safetensors" }, ["--to", "safetensors"]], ["convert", { to: "torch", maxShardSize: "1MB" }, ["--to", "torch", "--max-shard-size", "1MB"]], ["convert", { to: "safetensors", maxShardSize: "big" }, ["--to", "safetensors", "--max-shard-size", "big"]],
      ["convert", { to: "zip" }, ["--to", "zip"]], ["convert", { to: "torch", rename: ["a"] }, ["--to", "torch", "--rename", "a"]], ["convert", { to: "torch", dtype: "no" }, ["--to", "torch", "--dtype", "no"]], ["reshard", { mesh: "dp=2" }, ["--mesh", "dp=2"]]]) {
      const sink = new MemorySink();
      await compare(target, [command, options, args], sink);
      check(sink.calls.length === 0, `${command} ${args}: ${sink.calls}`);
    }
  });

  await test("wrong options and sinks are TypeErrors", async () => {
    await withSource(sample("dcp_fsdp2"), async (opened) => {
      for (const [call, name] of [[() => opened.convert({ to: "dcp", shard: 1 }, new MemorySink()), "shard"], [() => opened.convert({ to: "dcp", signal: {} }, new MemorySink()), "signal"], [() => opened.convert({ to: "dcp" }, {}), "create"], [() => opened.reshard({ onProgress: 1 }, new MemorySink()), "onProgress"]]) {
        const e = await call().then(() => undefined, (error) => error);
        check(e instanceof TypeError && e.message.includes(name), `${call}: ${e}`);
      }
    });
  });

  /** A safetensors file of `count` tensors of 8 MiB, whose bytes are computed on reading. */
  function largeFile(count) {
    const each = 8 << 20, header = Buffer.from(JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, i) => [`layers.${i}.w`, { dtype: "U8", shape: [each], data_offsets: [i * each, (i + 1) * each] }]))));
    const head = Buffer.alloc(8);
    head.writeBigUInt64LE(BigInt(header.length));
    const begin = Buffer.concat([head, header]);
    return { name: "m.safetensors", size: begin.length + count * each, read(offset, into) {
      for (let i = 0; i < into.length; i++) into[i] = offset + i < begin.length ? begin[offset + i] : ((offset + i - begin.length) >> 20) + 1;
    } };
  }

  await test("an abort calls abort alone, progress rises, and steps are bounded", async () => {
    const file = largeFile(12), opened = tessera.open([file], { primary: file.name }), control = new AbortController(), seen = [];
    const sink = new MemorySink();
    const e = await opened.convert({ to: "dcp", signal: control.signal, onProgress: (p) => { seen.push(p.done); if (p.done > 30 << 20) control.abort(new Error("enough")); } }, sink).then(() => undefined, (error) => error);
    check(e?.message === "enough" && sink.calls.at(-1) === "abort" && !sink.calls.some((c) => c.startsWith("finish")), `${e} ${sink.calls.slice(-3)}`);
    check(seen.length > 2 && seen.every((done, i) => !i || done >= seen[i - 1] && done - seen[i - 1] <= 32 << 20), `${seen}`);
    const before = tessera.memoryBytes, totals = [];
    await opened.convert({ to: "torch", onProgress: (p) => totals.push(p) }, new MemorySink());
    check(totals.at(-1).done === totals.at(-1).total && totals.at(-1).total === 12 * (8 << 20), JSON.stringify(totals.at(-1)));
    check(tessera.memoryBytes - before < 64 << 20, `memory grew by ${tessera.memoryBytes - before}`);
    opened.close();
    check(tessera.openCount === 0, "handles are open");
  });

  await test("an error of the sink is thrown as it is, and no file is finished", async () => {
    for (const step of ["create", "write", "finish"]) {
      const sink = new MemorySink(), mine = new Error(`no room to ${step}`);
      sink[step] = () => { throw mine; };
      const e = await withSource(sample("dcp_fsdp2"), (opened) => opened.convert({ to: "dcp" }, sink)).then(() => undefined, (error) => error);
      check(e === mine && sink.calls.at(-1) === "abort" && !sink.calls.includes("create .metadata"), `${step}: ${e} ${sink.calls.slice(-3)}`);
    }
  });

  await test("sinkOf writes what the command writes, and leaves what is not the checkpoint's", async () => {
    const out = at("out"), single = at("one.pt"), target = sample("dcp_fsdp2");
    for (const name of fs.readdirSync(directory)) fs.rmSync(at(name), { recursive: true });
    const convert = (options, to, how) => withSource(target, (opened) => opened.convert(options, sinkOf(to, how)));
    await convert({ to: "dcp" }, out);
    await convert({ to: "torch" }, single);
    check(run("diff", target, out, "--values").status === 0 && run("diff", target, single, "--values").status === 0, "the values differ");
    check(run("convert", target, out, "--to", "dcp").stderr.includes(`: ${errorOf(() => sinkOf(out)).message}\n`), `an existing destination: ${errorOf(() => sinkOf(out)).message}`);
    check(errorOf(() => sinkOf(out, [])) instanceof TypeError, "an array was taken for the options");
    fs.writeFileSync(path.join(out, "notes.txt"), "mine");
    fs.writeFileSync(path.join(out, "extra.safetensors"), "mine too");
    await convert({ to: "safetensors", objects: "sidecar", maxShardSize: 1000 }, out, { overwrite: true });
    await convert({ to: "torch" }, single, { overwrite: true });
    const names = fs.readdirSync(out);
    check(names.includes("notes.txt") && names.includes("extra.safetensors") && names.includes("objects.json") && !names.includes(".metadata"), `${names}`);
    check(fs.readdirSync(directory).sort().join() === "one.pt,out", `${fs.readdirSync(directory)}`);
    const failing = sinkOf(at("gone"));
    failing.finish = () => { throw new Error("stop"); };
    await withSource(target, (opened) => opened.convert({ to: "dcp" }, failing)).catch(() => {});
    check(fs.readdirSync(directory).sort().join() === "one.pt,out", `after a failure: ${fs.readdirSync(directory)}`);
    const back = filesOf(out);
    back.close();
  });

  fs.rmSync(directory, { recursive: true });
}
