/** What a conversion calls after a sink, a signal or a listener has ended it, and what sinkOf keeps of a directory that it
 *  replaces. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { filesOf, sinkOf } from "../../wasm/node.js";
import { MemorySink } from "./conversions.mjs";
import { check, errorOf, same, test } from "../support/harness.mjs";

export async function testSinks({ tessera, native, root }) {
  const target = path.join(root, "samples/checkpoints/dcp_fsdp2");
  const convert = async (options, sink, from = target) => {
    const source = filesOf(from), opened = tessera.open(source.files, source.options);
    try {
      return await opened.convert(options, sink).then(() => undefined, (error) => error);
    } finally {
      opened.close();
      source.close();
    }
  };
  const mine = new Error("mine");

  await test("a sink that throws is called for abort alone", async () => {
    for (const to of ["dcp", "torch"]) {
      const sink = new MemorySink(), write = sink.write.bind(sink);
      let count = 0;
      sink.write = (...args) => {
        if (++count < 2) return write(...args);
        sink.calls.push("thrown");
        throw mine;
      };
      check(await convert({ to }, sink) === mine, "another error");
      same("abort", sink.calls.slice(sink.calls.indexOf("thrown") + 1).join(), `${to}: calls after the error`);
    }
  });

  await test("abort is called when nothing that the sink began is under way", async () => {
    const sink = new MemorySink(true), write = sink.write.bind(sink);
    let count = 0, underWay = 0, then;
    sink.write = (...args) => {
      if (++count === 2) return Promise.reject(mine);
      underWay++;
      return write(...args).then(() => new Promise((resolve) => setTimeout(resolve, 20))).finally(() => underWay--);
    };
    sink.abort = () => (then = underWay);
    check(await convert({ to: "dcp" }, sink) === mine && count > 2 && then === 0, `${then} of ${count} writes were under way`);
  });

  await test("what went wrong first is thrown where abort fails too", async () => {
    for (const abort of [() => { throw new Error("second"); }, () => Promise.reject(new Error("second"))]) {
      const sink = new MemorySink();
      Object.assign(sink, { write() { throw mine; }, abort });
      check(await convert({ to: "dcp" }, sink) === mine, "another error");
    }
  });

  await test("an abort while files are being finished leaves no marker", async () => {
    const sink = new MemorySink(), control = new AbortController(), finish = sink.finish.bind(sink);
    sink.finish = (name) => {
      finish(name);
      control.abort(mine);
    };
    check(await convert({ to: "dcp", signal: control.signal }, sink) === mine, "it went on");
    check(!sink.calls.includes("create .metadata") && sink.calls.at(-1) === "abort", `${sink.calls.slice(-4)}`);
  });

  await test("sinkOf keeps files that the replaced checkpoint does not list, as the command line does", async () => {
    const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-sinks-")), kept = ["rank0.pt", "__9_0.distcp", "shard-00001-model-00001-of-00001.safetensors", "notes.txt"];
    const [ours, theirs] = ["ours", "theirs"].map((name) => path.join(scratch, name)), from = path.join(root, "samples/checkpoints/safetensors_model/model.safetensors");
    for (const directory of [ours, theirs]) {
      fs.cpSync(target, directory, { recursive: true });
      for (const name of kept) fs.writeFileSync(path.join(directory, name), "mine");
    }
    const p = spawnSync(native, ["convert", from, theirs, "--to", "dcp", "--overwrite"], { encoding: "utf8" });
    check(p.status === 0 && await convert({ to: "dcp" }, sinkOf(ours, { overwrite: true }), from) === undefined, p.stderr);
    for (const directory of [ours, theirs]) same(kept.join(), kept.filter((name) => fs.existsSync(path.join(directory, name))).join(), `kept in ${directory}`);
    same("1", `${fs.readdirSync(ours).filter((name) => /^__0_\d+\.distcp$|^__[1-8]_/.test(name)).length}`, "data files of the new checkpoint");
    for (const options of [null, 3]) check(/^sinkOf: the options/.test(errorOf(() => sinkOf(path.join(scratch, "x"), options)).message), `${options}`);
    fs.rmSync(scratch, { recursive: true });
  });

  await test("a deep check reports every byte that changes in what sinkOf wrote", async () => {
    const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-sinks-")), flips = process.env.TSR_TEST_FULL ? 1500 : 30;
    const forms = [[{ to: "dcp" }, "dcp"], [{ to: "torch" }, "file.pt"], [{ to: "safetensors", objects: "drop", maxShardSize: 20000 }, "shards"], [{ to: "safetensors", objects: "sidecar" }, "sidecar"]];
    let seed = 44;
    const random = (count) => (seed = (seed * 1103515245 + 12345) % 2 ** 31) % count;
    for (const [options, name] of forms) {
      const out = path.join(scratch, name);
      same("undefined", `${await convert(options, sinkOf(out))}`, name);
      check(spawnSync(native, ["validate", "--deep", "-q", out]).status === 0, `${name} has errors`);
      const files = fs.statSync(out).isFile() ? [out] : fs.readdirSync(out).map((file) => path.join(out, file));
      for (let n = 0; n < flips; n++) {
        const file = files[n % files.length], bytes = fs.readFileSync(file), at = random(bytes.length), flipped = Buffer.from(bytes);
        flipped[at] ^= 1 + random(255);
        fs.writeFileSync(file, flipped);
        check(spawnSync(native, ["validate", "--deep", "-q", out]).status > 0, `${file}: byte ${at} changed from ${bytes[at]} to ${flipped[at]}`);
        fs.writeFileSync(file, bytes);
      }
    }
    fs.rmSync(scratch, { recursive: true });
  });
}
