/** The WebAssembly module and the native program say the same of every sample; the exports are those listed; nothing leaks. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { Tessera } from "./tessera.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const wasm = path.join(root, "build/wasm/bin/tessera.wasm");
const native = path.join(root, "build/release/bin/tessera");
const samples = path.join(root, "samples/checkpoints");
let passed = 0, failed = 0;

function test(name, body) {
  try {
    body();
    passed++;
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}: ${e.message}`);
  }
}

function same(a, b, what) {
  if (a === b) return;
  const at = [...a].findIndex((c, i) => c !== b[i]);
  throw new Error(`${what} differ at character ${at}: native …${a.slice(at - 60, at + 60)}… wasm …${b.slice(at - 60, at + 60)}…`);
}

function nativeDocument(args) {
  const p = spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 });
  return { text: p.stdout, error: p.stderr, refused: p.status === 2 };
}

/** What each golden beside the samples is about: a folder or a file. */
function checkpoints() {
  return fs.readdirSync(samples).filter((n) => n.endsWith(".expect.json")).map((n) => {
    const expected = JSON.parse(fs.readFileSync(path.join(samples, n), "utf8"));
    return path.join(samples, expected.path ?? n.slice(0, -".expect.json".length));
  });
}

const module = await Tessera.load(wasm);

for (const target of checkpoints()) {
  const shown = path.relative(root, target);
  for (const [kind, args] of [[1, ["inspect", target, "--json"]], [2, ["validate", target, "--format", "json"]], [3, ["validate", target, "--deep", "--format", "json"]]]) {
    test(`${shown} ${args.filter((a) => a !== target).join(" ")}`, () => {
      const theirs = nativeDocument(args);
      let handle, ours, refusal;
      try {
        handle = module.open(target);
        ours = module.document(handle, kind, target);
      } catch (e) {
        refusal = e.message;
      } finally {
        if (handle) module.close(handle);
      }
      if (theirs.refused) {
        if (!refusal) throw new Error(`native refuses (${theirs.error.trim()}), wasm does not`);
      } else {
        if (refusal) throw new Error(`wasm refuses: ${refusal}`);
        same(theirs.text, ours, "documents");
      }
    });
  }
}

test("the module exports what exports.txt lists, and imports tsr_read alone of ours", () => {
  const listed = fs.readFileSync(path.join(root, "wasm/exports.txt"), "utf8").split("\n").filter((l) => /^[a-z]/.test(l)).sort();
  const built = WebAssembly.Module.exports(module.module).map((e) => e.name).filter((n) => n.startsWith("tessera_")).sort();
  same(listed.join(" "), built.join(" "), "exports");
  const imports = WebAssembly.Module.imports(module.module).filter((i) => i.module === "env").map((i) => i.name).sort();
  same("emscripten_notify_memory_growth tsr_read", imports.join(" "), "imports");
});

test("a stale handle is refused", () => {
  try {
    module.document(4000, 1, "x");
  } catch (e) {
    if (/no checkpoint is open/.test(e.message)) return;
  }
  throw new Error("handle 4000 was accepted");
});

test("a thousand opens leak nothing", () => {
  const target = path.join(samples, "dcp_fsdp2");
  const once = () => { const h = module.open(target); module.document(h, 1, "x"); module.close(h); };
  once();
  const before = module.x.memory.buffer.byteLength;
  for (let i = 0; i < 1000; i++) once();
  if (module.x.tessera_open_count() !== 0) throw new Error("checkpoints are still open");
  if (module.x.memory.buffer.byteLength > before) throw new Error(`memory grew from ${before} to ${module.x.memory.buffer.byteLength} bytes`);
});

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
