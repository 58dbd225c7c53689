/** What sinkOf with overwrite replaces in a directory is what the command line replaces there: the same directories are
 *  refused, and the same files stay. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { filesOf, sinkOf } from "../../wasm/node.js";
import { check, same, test } from "../support/harness.mjs";

const MESH = { mesh: "dp=2", placements: "shard(0)" };
const flagsOf = (options) => Object.entries(options).flatMap(([key, value]) => [`--${key.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`)}`, value]);

/** Each form that can be written, with the sample that it is made of. */
const formsOf = (samples) => {
  const model = path.join(samples, "safetensors_model/model.safetensors"), states = path.join(samples, "dcp_fsdp2");
  return {
    dcp: ["convert", model, { to: "dcp" }], megatron: ["convert", model, { to: "megatron-dist" }], universal: ["convert", states, { to: "deepspeed-universal" }],
    index: ["convert", states, { to: "safetensors", objects: "drop", maxShardSize: "300" }],
    ranks: ["reshard", model, { to: "torch", ...MESH }], shards: ["reshard", model, { to: "safetensors", ...MESH }],
  };
};

/** Directories to replace: the forms whose files are copied there, then files by name. */
const directoriesOf = (made, samples) => {
  const weights = fs.readFileSync(path.join(samples, "safetensors_model/model.safetensors")), rank0 = fs.readFileSync(path.join(made, "ranks/rank0.pt"));
  const marker = fs.readFileSync(path.join(made, "megatron/metadata.json"));
  return [
    ...["dcp", "megatron", "universal", "index", "ranks", "shards"].map((form) => [[form], { "notes.txt": "mine" }]),
    [["index", "dcp"], {}], [["dcp"], { "metadata.json": "{}" }], [["dcp"], { "metadata.json": "torch_dist" }], [["dcp"], { "common.pt": "mine" }], [["dcp"], { "0_0.distcp": "mine", "_0_0.distcp": "mine" }], [["dcp"], { "metadata.json": marker }],
    [["megatron"], { "common.pt": "mine", "__9_0.distcp": "mine" }], [[], { "metadata.json": marker, "common.pt": "mine" }],
    [["dcp"], { ".metadata": "mine" }], [["index"], { "model.safetensors.index.json": "{" }], [["index"], { "other.safetensors": weights }],
    [[], { "rank0.pt": "mine" }], [[], { "rank0.pt": rank0 }], [["ranks"], { "rank7.pt": "mine" }], [["ranks"], { "rank0.optim.pt": "mine" }], [["ranks"], { "other.pt": rank0 }],
    [[], { "shard-00001-model-00001-of-00001.safetensors": "mine" }], [[], { "shard-00001-model-00001-of-00001.safetensors": weights }], [["shards"], { "shard-00009-model-00001-of-00001.safetensors": "mine" }],
    [[], { "model.safetensors": weights }], [[], { "model.safetensors.index.json": JSON.stringify({ weight_map: { w: "gone.safetensors" } }), "other.safetensors": weights }],
  ];
};

/** Returns the files of a directory that were there before: a moved or kept file has its inode, a new one does not. */
const namesOf = (directory) => fs.readdirSync(directory).map((name) => ({ name, ino: fs.statSync(path.join(directory, name)).ino }));
const stayed = (before, directory) => namesOf(directory).filter(({ name, ino }) => before.some((b) => b.name === name && b.ino === ino)).map(({ name }) => name).sort().join(" ");

export async function testReplacing({ tessera, native, root }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-replacing-")), samples = path.join(root, "samples/checkpoints");
  const made = path.join(scratch, "made"), forms = formsOf(samples);
  const command = ([what, from, options], to, ...more) => spawnSync(native, [what, from, to, ...flagsOf(options), ...more], { encoding: "utf8" });
  fs.mkdirSync(made);
  for (const [name, form] of Object.entries(forms)) check(command(form, path.join(made, name)).status === 0, name);

  const fill = (at, [copied, files]) => {
    fs.mkdirSync(at, { recursive: true });
    for (const form of copied) fs.cpSync(path.join(made, form), at, { recursive: true });
    for (const [name, content] of Object.entries(files)) fs.writeFileSync(path.join(at, name), content);
    return namesOf(at);
  };
  const write = async ([what, from, options], to) => {
    const source = filesOf(from), opened = tessera.open(source.files, source.options);
    const error = await opened[what](options, sinkOf(to, { overwrite: true })).then(() => undefined, (e) => e);
    opened.close();
    source.close();
    return error;
  };

  const replace = async (directory, name) => {
    const [ours, theirs] = ["ours", "theirs"].map((who) => path.join(scratch, who, "target")), [a, b] = [ours, theirs].map((at) => fill(at, directory));
    const p = command(forms[name], theirs, "--overwrite"), error = await write(forms[name], ours), what = `replaced by ${name}`;
    const isKept = directory[0].includes("universal") && p.status !== 0 && !error; // the command line cannot keep a directory inside
    check(isKept || (p.status === 0) === (error === undefined), `${what}: ${p.stderr}${error ?? "replaced"}`);
    if (!isKept) same(stayed(b, theirs), stayed(a, ours), what);
    same("target", fs.readdirSync(path.join(scratch, "ours")).join(), what);
  };
  for (const directory of directoriesOf(made, samples)) {
    await test(`sinkOf replaces what the command line replaces: ${[...directory[0], ...Object.keys(directory[1])].join(", ")}`, async () => {
      for (const name of Object.keys(forms)) {
        for (const who of ["ours", "theirs"]) fs.rmSync(path.join(scratch, who), { recursive: true, force: true });
        await replace(directory, name);
      }
    });
  }
  fs.rmSync(scratch, { recursive: true });
}
