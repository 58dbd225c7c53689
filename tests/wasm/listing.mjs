/** Compares the files that the Node entry lists for a directory or a file with those that the command line opens; also the
 *  reads that throw. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { filesOf } from "../../wasm/node.js";
import { refusalOf } from "./calls.mjs";
import { comparer } from "./compare.mjs";
import { opener } from "./opening.mjs";
import { check, errorOf, same, test } from "../support/harness.mjs";

export function testListing(environment) {
  const { tessera, root } = environment, directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-listing-"));
  const withOpened = opener(tessera, filesOf);
  const { documents, run } = comparer({ ...environment, withOpened }, directory);
  const at = (...names) => path.join(directory, ...names), golden = (...names) => path.join(root, "tests/golden", ...names), samples = path.join(root, "samples/checkpoints");
  const inspect = (target, options = {}, args = []) => documents(target, options, (c) => c.inspect({ hash: "sha256" }), ["inspect", target, "--json", "--hash", "sha256", ...args]);

  test("links to files and, from the directory itself, to directories are followed", () => {
    fs.mkdirSync(at("snapshot"), { recursive: true });
    fs.cpSync(path.join(samples, "safetensors_index"), at("blobs"), { recursive: true });
    for (const name of fs.readdirSync(at("blobs"))) fs.symlinkSync(path.join("../blobs", name), at("snapshot", name));
    fs.symlinkSync("nowhere", at("snapshot", "dangling.safetensors"));
    fs.symlinkSync("..", at("snapshot", "round"));
    fs.symlinkSync("snapshot", at("linked"));
    for (const name of ["snapshot", "linked"]) inspect(at(name));
    check(withOpened(at("snapshot"), (c) => c.inspect().entries.length) > 3, "nothing is there");
    inspect(directory, { step: "snapshot" }, ["--step", "snapshot"]);
  });

  test("a file that stands for a set is opened with the files next to it", () => {
    const files = [["safetensors_index", "model.safetensors.index.json"], ["torch_bin_index", "pytorch_model.bin.index.json"], ["dcp_fsdp2", ".metadata"]].map((names) => path.join(samples, ...names));
    for (const file of files) {
      inspect(file);
      documents(file, {}, (c) => c.validate({ deep: true }), ["validate", file, "--json", "--deep"]);
    }
  });

  test("what a checkpoint further down has in directories of its own is listed", () => {
    fs.cpSync(golden("deepspeed/universal_zero1_bf16"), at("runs/first/step5"), { recursive: true });
    inspect(at("runs"), { step: "5" }, ["--step", "5"]);
    fs.mkdirSync(at("deep/a/b/c/d"), { recursive: true });
    fs.writeFileSync(at("deep/notes.json"), "{}");
    fs.cpSync(path.join(samples, "safetensors_model"), at("deep/a/b/c/d/e"), { recursive: true });
    inspect(at("deep"));
  });

  test("files of an output that is being written are not a checkpoint's", () => {
    const written = at("written");
    for (const name of ["a.pt", ".a.pt.tessera-77", "step/b.pt", "step/.tessera-w0-0", ".out.tessera-w0/c.pt"]) {
      fs.mkdirSync(path.dirname(path.join(written, name)), { recursive: true });
      fs.writeFileSync(path.join(written, name), "x");
    }
    same("a.pt step/b.pt", filesOf(written).files.map((f) => f.name).sort().join(" "), "the files");
  });

  test("one of several directories with a single file each is found by step", () => {
    for (const rank of ["mp_rank_00", "mp_rank_01"]) fs.cpSync(path.join(samples, "torch_plain/model.pt"), at("megatron/run/iter_0000005", rank, "model_optim_rng.pt"));
    for (const step of ["mp_rank_00", "mp_rank_01"]) inspect(at("megatron"), { step }, ["--step", step]);
  });

  test("a file that changes is refused when it is read", () => {
    const file = at("changing.safetensors"), text = fs.readFileSync(path.join(samples, "safetensors_model", fs.readdirSync(path.join(samples, "safetensors_model"))[0]));
    for (const change of [() => fs.appendFileSync(file, "x"), () => { fs.writeFileSync(file, text); fs.utimesSync(file, 5, 5); }, () => { fs.rmSync(file); fs.writeFileSync(file, text); }]) {
      fs.writeFileSync(file, text);
      const source = filesOf(file);
      change();
      const e = errorOf(() => tessera.open(source.files, source.options));
      check(e.status === "input/output" && /changed after it was listed/.test(e.message), `${e.status} ${e.message}`);
      source.close();
    }
  });

  test("a directory of many files needs few descriptors", () => {
    const many = at("many"), size = Buffer.alloc(8);
    fs.mkdirSync(many);
    for (let i = 0; i < 300; i++) {
      const named = Buffer.from(JSON.stringify({ [`w${i}`]: { dtype: "U8", shape: [1], data_offsets: [0, 1] } }));
      size.writeBigUInt64LE(BigInt(named.length));
      fs.writeFileSync(path.join(many, `model-${i}.safetensors`), Buffer.concat([size, named, Buffer.from([i & 255])]));
    }
    const descriptors = () => fs.readdirSync("/proc/self/fd").length, before = descriptors();
    withOpened(many, (c) => {
      const open = descriptors() - before;
      check(open <= 256, `${open} descriptors`);
      for (const i of [0, 299, 7]) check(c.read(`w${i}`).data[0] === (i & 255), `w${i}`);
    });
  });

  test("read refuses what get refuses, in the same words", () => {
    const out = at("x.bin"), cases = [[path.join(samples, "broken_dcp_hole"), "weight"], [path.join(samples, "broken_dcp_no_metadata"), "w"], [path.join(samples, "broken_index_missing_file/model.safetensors.index.json"), "emb.weight"],
      [golden("deepspeed/zero0_bf16_twins"), "model.norm1.bias"], [golden("meta/llama3-2"), undefined]];
    for (const [target, name] of cases) {
      const fqn = name ?? JSON.parse(run(["inspect", target, "--json"]).stdout).entries.find((e) => e.per_rank).fqn;
      for (const slice of [undefined, "0:1"]) {
        if (slice && /hole/.test(target)) continue;
        const p = run(["get", target, slice ? `${fqn}[${slice}]` : fqn, "-o", out]), e = errorOf(() => withOpened(target, (c) => c.read(fqn, slice)));
        check(p.status === 2, `native reads ${target} ${fqn}`);
        same(refusalOf(p.stderr, target), e.message, `${target} ${fqn} ${slice}`);
      }
    }
    withOpened(golden("meta/llama3-2"), (c) => check(c.read(c.inspect().entries.find((e) => e.kind === "tensor" && !e.per_rank).fqn).data.length > 0, "a tensor that is equal on all ranks is not read"));
  });

  fs.rmSync(directory, { recursive: true });
}
