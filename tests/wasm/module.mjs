/** The module itself: its exports, size and memory limit, and that nothing leaks. */
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";
import { Tessera } from "../../wasm/tessera.js";
import { check, same, test } from "../support/harness.mjs";

/** Returns the module with another memory limit, in pages of 64 KiB, by rewriting the limits in its memory section. */
function withMostPages(bytes, pages) {
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

export async function testModule({ tessera, bytes, module, writers, root, samples, withOpened }) {
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

  const starved = await Promise.all([0, 300, 400, 500, 700, 1000].map(async (pages) => Tessera.load(withMostPages(bytes, pages))));
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
}
