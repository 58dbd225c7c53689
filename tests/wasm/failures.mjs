/** What the package does when a source closes a checkpoint that is being read, and when the module itself fails. */
import path from "node:path";
import { Tessera, TesseraError } from "../../wasm/tessera.js";
import { filesOf } from "../../wasm/node.js";
import { MemorySink } from "./conversions.mjs";
import { check, errorOf, test, testAsync } from "./harness.mjs";

/** A module whose function `f` traps. */
const TRAP = Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, 1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0, 7, 5, 1, 1, 0x66, 0, 0, 10, 5, 1, 3, 0, 0, 11);

export async function testFailures({ tessera, module, writers, root }) {
  const target = path.join(root, "samples/checkpoints/dcp_fsdp2");

  /** Opens a checkpoint. `onRead` is called before each read. */
  function opened(onRead, by = tessera) {
    const source = filesOf(target), files = source.files.map((file) => ({ name: file.name, size: file.size, read: (offset, into) => { onRead?.(); file.read(offset, into); } }));
    return { checkpoint: by.open(files), release: () => source.close() };
  }

  for (const [what, call] of [["inspect", (c) => c.inspect({ hash: "sha256" }).entries.length], ["read", (c) => c.read("model.few.weight").data.length], ["outline", (c) => c.validate({ deep: true }).summary.paths]])
    test(`a checkpoint that its source closes during ${what} is closed after the call`, () => {
      let isClosing = false, { checkpoint, release } = opened(() => { if (isClosing) checkpoint.close(); });
      const want = call(checkpoint);
      isClosing = true;
      check(call(checkpoint) === want, "another result");
      check(tessera.openCount === 0 && /^no checkpoint is open/.test(errorOf(() => checkpoint.inspect()).message), "it is open");
      release();
    });

  await testAsync("a checkpoint that its source closes during a conversion is closed, and the conversion fails", async () => {
    let isClosing = false, { checkpoint, release } = opened(() => { if (isClosing) checkpoint.close(); });
    isClosing = true;
    const sink = new MemorySink(), e = await checkpoint.convert({ to: "dcp" }, sink).then(() => undefined, (error) => error);
    check(e instanceof TesseraError && sink.calls.at(-1) === "abort" && tessera.openCount === 0, `${e}, ${sink.calls.at(-1)}, ${tessera.openCount} open`);
    release();
  });

  await testAsync("a listener of progress that rejects ends the conversion", async () => {
    const mine = new Error("mine"), { checkpoint, release } = opened(), sink = new MemorySink();
    const e = await checkpoint.convert({ to: "dcp", onProgress: async () => { throw mine; } }, sink).then(() => undefined, (error) => error);
    check(e === mine && sink.calls.at(-1) === "abort", `${e}, ${sink.calls.at(-1)}`);
    checkpoint.close();
    release();
  });

  await testAsync("a module that trapped is not called again", async () => {
    const { exports } = (await WebAssembly.instantiate(TRAP)).instance;
    for (const [name, call] of [["tessera_call", (c) => c.inspect()], ["tessera_find", (c) => c.find("x")], ["tessera_convert_step", (c) => c.convert({ to: "dcp" }, new MemorySink())]]) {
      const own = await Tessera.load(module);
      await own.prepare(writers);
      const { checkpoint, release } = opened(undefined, own), { m } = checkpoint;
      m.x = { ...m.x, [name]: exports.f };
      const failed = async (act) => { try { await act(); } catch (e) { return e; } };
      for (const act of [call, (c) => c.read("model.few.weight"), (c) => c.outline(), () => own.mapList(), () => own.open([])]) {
        const e = await failed(() => act(checkpoint));
        check(e instanceof TesseraError && /^the module failed \(.*unreachable.*\) and cannot be used any more/.test(e.message), `${name}, ${act}: ${e}`);
      }
      checkpoint.close();
      check(own.openCount === 0 && own.memoryBytes > 0, `${own.openCount} open`);
      release();
    }
    const { checkpoint, release } = opened();
    check(checkpoint.inspect().entries.length > 0, "another instance is not usable");
    checkpoint.close();
    release();
  });
}
