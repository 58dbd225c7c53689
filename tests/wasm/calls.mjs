/** Compares the calls that accept options with the native command: parsed documents, and errors with the same messages. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { TesseraError } from "../../wasm/tessera.js";
import { check, errorOf, same, test } from "../support/harness.mjs";

const TARGET = { schema: "tessera.target/1", mesh: { shape: [2, 2], dim_names: ["a", "b"] }, rules: [{ match: "**.bias", placements: ["replicate", "replicate"] }], default: ["shard(0)", "replicate"] };

/** Documents of every sample: the call, and the arguments of the command. */
const CALLS = [
  ["inspect hashed", (c) => c.inspect({ hash: "sha256", stats: true }), (t) => ["inspect", t, "--json", "--hash", "sha256", "--stats"]],
  ["inspect chosen", (c) => c.inspect({ include: ["**.weight", "state.**"], exclude: ["**.0.*"], hash: "xxh3" }), (t) => ["inspect", t, "--json", "--include", "**.weight", "--include", "state.**", "--exclude", "**.0.*", "--hash", "xxh3"]],
  ["layout", (c) => c.layout(), (t) => ["layout", t]],
  ["layout without chunks", (c) => c.layout({ chunks: false, hash: "sha256", exclude: ["*.b*"] }), (t) => ["layout", t, "--no-chunks", "--hash", "sha256", "--exclude", "*.b*"]],
  ["layout of nothing", (c) => c.layout({ include: ["wieght", "*.nosuch"] }), (t) => ["layout", t, "--include", "wieght", "--include", "*.nosuch"]],
  ["manifest", (c) => c.manifest(), (t) => ["manifest", t]],
  ["validate", (c) => c.validate({ deep: true, rule: ["layout/*=warning", "zip/crc=note"] }), (t) => ["validate", t, "--json", "--deep", "--rule", "layout/*=warning", "--rule", "zip/crc=note"]],
  ["plan", (c) => c.plan({ mesh: "dp=3", placements: "shard(0)", items: true }), (t) => ["plan", t, "--json", "--mesh", "dp=3", "--placements", "shard(0)", "--items"]],
  ["plan of nothing", (c) => c.plan({ mesh: "dp=3", placements: "shard(0)", exclude: ["**"] }), (t) => ["plan", t, "--json", "--mesh", "dp=3", "--placements", "shard(0)", "--exclude", "**"]],
];

/** Removes PATH, which the call does not have. */
export const pathless = (value, target) => JSON.stringify(value, (key, item) =>
  key === "path" || (key === "source" && typeof item === "string") ? undefined : item).replaceAll(target, "");

/** The message on stderr without "tessera: " and PATH. */
export const refusalOf = (stderr, target) => stderr.split("\n").filter((line) => !/^tessera: (warning|note): /.test(line)).join("\n").replace(/^tessera: /, "").replace(`${target}: `, "").trim();

export function testCalls({ tessera, native, root, targets, withOpened }) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-calls-"));
  const put = (name, document) => (fs.writeFileSync(path.join(directory, name), typeof document === "string" ? document : JSON.stringify(document)), path.join(directory, name));
  const run = (...args) => spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 });
  const sample = (name) => path.join(root, "samples/checkpoints", name);

  /** Compares a call with a command. */
  function compare(target, call, args) {
    const p = run(...args);
    let ours, refusal;
    try {
      ours = withOpened(target, call);
    } catch (e) {
      if (!(e instanceof TesseraError)) throw e;
      refusal = e.message;
    }
    if (p.status === 2) return check(refusal !== undefined && refusalOf(p.stderr, target).includes(refusal), `native refuses: ${p.stderr.trim()}; wasm: ${refusal ?? "nothing"}`);
    check(refusal === undefined, `wasm refuses: ${refusal}`);
    same(pathless(JSON.parse(p.stdout), target), pathless(ours, target), args.join(" "));
  }

  for (const target of targets)
    for (const [name, call, argsOf] of CALLS)
      test(`${path.relative(root, target)} ${name}`, () => compare(target, call, argsOf(target)));

  test("validate checks against layouts, names, documents and checkpoints as the command line does", () => {
    const a = sample("dcp_fsdp2"), b = sample("dcp_hsdp"), layout = JSON.parse(run("layout", b, "--hash", "xxh3").stdout);
    const file = put("layout.json", layout), names = ["model.few.weight", "nosuch", "# odd"], list = put("names.txt", names.slice(0, 2).join("\n"));
    const index = { weight_map: { "emb.weight": "x", "gone": "y" } };
    const known = put("known.json", run("validate", a, "--json", "--layout", file).stdout);
    compare(a, (c) => c.validate({ layout, deep: true }), ["validate", a, "--json", "--layout", file, "--deep"]);
    compare(a, (c) => c.validate({ layout: fs.readFileSync(file, "utf8"), allow: "missing,chunks" }), ["validate", a, "--json", "--layout", file, "--allow", "missing,chunks"]);
    compare(a, (c) => c.validate({ layout, baseline: fs.readFileSync(known, "utf8") }), ["validate", a, "--json", "--layout", file, "--baseline", known]);
    compare(a, (c) => c.validate({ against: names.slice(0, 2) }), ["validate", a, "--json", "--against", list]);
    compare(a, (c) => c.validate({ against: index, prefix: "model." }), ["validate", a, "--json", "--against", put("index.json", index), "--prefix", "model."]);
    compare(a, (c) => withOpened(sample("safetensors_model"), (other) => c.validate({ against: other, allow: "extra" })), ["validate", a, "--json", "--against", sample("safetensors_model"), "--allow", "extra"]);
    withOpened(a, (c) => check(c.validate({ against: names }).findings.some((f) => f.message.includes("# odd") || f.fqn === "# odd"), "a name that looks like a comment is passed over"));
    for (const [options, args] of [[{ allow: "missing" }, ["--allow", "missing"]], [{ prefix: "model." }, ["--prefix", "model."]], [{ layout, allow: "mising" }, ["--layout", file, "--allow", "mising"]], [{ rule: ["layout/hole"] }, ["--rule", "layout/hole"]], [{ rule: ["nosuch=off"] }, ["--rule", "nosuch=off"]], [{ layout: "{" }, ["--layout", put("broken.json", "{")]]])
      compare(a, (c) => c.validate(options), ["validate", a, "--json", ...args]);
  });

  test("validate may be called again, and finds the same", () => {
    withOpened(sample("broken_dcp_hole"), (c) => same(JSON.stringify(c.validate({ deep: true })), JSON.stringify(c.validate({ deep: true })), "twice"));
  });

  test("verify checks values against a manifest", () => {
    const a = sample("dcp_fsdp2"), manifest = JSON.parse(run("manifest", a).stdout);
    const altered = { ...manifest, entries: manifest.entries.map((e, i) => (i === 3 && e.hash ? { ...e, hash: { ...e.hash, digest: e.hash.digest.replace(/./g, "0") } } : e)) };
    for (const document of [manifest, altered]) compare(a, (c) => c.verify(document), ["verify", a, put("manifest.json", document), "--json"]);
    compare(sample("dcp_hsdp"), (c) => c.verify(manifest, { allow: "missing,extra" }), ["verify", sample("dcp_hsdp"), put("manifest.json", manifest), "--json", "--allow", "missing,extra"]);
    withOpened(a, (c) => check(/has no hashes/.test(errorOf(() => c.verify(c.layout())).message), "a layout was taken for a manifest"));
  });

  test("plans for targets, casts and selections, and their refusals", () => {
    const a = sample("dcp_tp_fsdp2"), file = put("target.json", TARGET);
    compare(a, (c) => JSON.parse(c.document("plan", { target: TARGET, items: true, path: a })), ["plan", a, "--json", "--target", file, "--items"]);
    compare(a, (c) => c.plan({ target: TARGET, to: "torch", objects: "drop", dtype: "bfloat16", exclude: ["**.bias"] }), ["plan", a, "--json", "--target", file, "--to", "torch", "--objects", "drop", "--dtype", "bfloat16", "--exclude", "**.bias"]);
    for (const [options, args] of [[{}, []], [{ mesh: "dp=2" }, ["--mesh", "dp=2"]], [{ mesh: "dp=2", placements: "shard" }, ["--mesh", "dp=2", "--placements", "shard"]], [{ target: TARGET, to: "zip" }, ["--target", file, "--to", "zip"]],
      [{ target: TARGET, dtype: "float31" }, ["--target", file, "--dtype", "float31"]], [{ target: TARGET, rawCast: true }, ["--target", file, "--raw-cast"]],
      [{ mesh: "dp=100000000", placements: "shard(0)" }, ["--mesh", "dp=100000000", "--placements", "shard(0)"]]])
      compare(a, (c) => c.plan(options), ["plan", a, "--json", ...args]);
    const storage = { schema: "tessera.storage/1", servers: [{ name: "a" }, { bandwidth: 5e8 }, {}], bandwidth: 1e9, latency: 0.001, stripe_size: 512, files: [{ file: "__1_0.distcp", servers: [2, 0] }, { file: "__0_0.distcp", first: 1, stripe_count: 3 }] };
    for (const [k, document] of [storage, { ...storage, servers: 2 }, { ...storage, bandwidth: -1 }].entries())
      compare(a, (c) => c.plan({ target: TARGET, storage: document, items: true }), ["plan", a, "--json", "--items", "--target", file, "--storage", put(`storage-${k}.json`, document)]);
  });

  test("unknown options and wrong types of the calls are TypeErrors that name them", () => {
    withOpened(sample("dcp_fsdp2"), (c) => {
      const calls = [[() => c.inspect({ stat: true }), "stat"], [() => c.inspect({ include: "a" }), "include"], [() => c.inspect({ hash: true }), "hash"], [() => c.layout({ chunks: 0 }), "chunks"], [() => c.manifest({ chunks: true }), "chunks"],
        [() => c.validate({ against: 3 }), "against"], [() => c.validate({ against: [1] }), "against"], [() => c.validate({ rule: "a=off" }), "rule"], [() => c.verify(3), "manifest"], [() => c.plan({ mesh: 3 }), "mesh"], [() => c.plan({ rank: 1 }), "rank"]];
      for (const [call, name] of calls) {
        const e = errorOf(call);
        check(e instanceof TypeError && e.message.includes(name), `${call}: ${e.name} ${e.message}`);
      }
    });
    const closed = withOpened(sample("dcp_fsdp2"), (c) => c);
    for (const call of [() => closed.inspect(), () => closed.validate(), () => closed.plan({ mesh: "a=1", placements: "replicate" })]) same("no checkpoint is open", errorOf(call).message, `${call}`);
  });

  fs.rmSync(directory, { recursive: true });
}
