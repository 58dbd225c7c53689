/** Values and statistics of tensors are those of the command line. */
import crypto from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { check, errorOf, same, test } from "../support/harness.mjs";

const sha256 = (data) => crypto.createHash("sha256").update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)).digest("hex");

export function testValues({ tessera, native, samples, targets, hasAllSamples, withOpened }) {
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
    if (!hasAllSamples) return;
    for (const kind of ["bfloat16 Uint16Array", "float16 Uint16Array", "bool Uint8Array", "complex64 Float32Array", "complex128 Float64Array", "int64 BigInt64Array", "float8_e4m3fn Uint8Array"]) check(kinds.has(kind), `no ${kind} among ${[...kinds].join(", ")}`);
    check(read > 300, `${read} tensors were read`);
  });

  test("slices are those of the command line, refusals too", () => {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-slices-")), out = path.join(directory, "x.bin");
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
    fs.rmSync(directory, { recursive: true });
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

  test("tensors with equal bytes are found, tied ones too", () => {
    withOpened(path.join(samples, "torch_train_state"), (opened) => {
      const twins = opened.twins();
      while (twins.step());
      const [largest] = JSON.parse(twins.document()).groups;
      same("model.emb.weight model.head.weight", largest.fqns.join(" "), "names");
      check(largest.bytes === 11 * 6 * 4, `${largest.bytes} bytes`);
    });
  });
}
