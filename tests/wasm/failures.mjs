/** What the package does when a source closes a checkpoint that is being read, and when the module itself fails. */
import path from "node:path";
import { Tessera, TesseraError } from "../../wasm/tessera.js";
import { filesOf } from "../../wasm/node.js";
import { MemorySink } from "./conversions.mjs";
import { check, errorOf, test } from "../support/harness.mjs";

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

  await test("a checkpoint that its source closes during a conversion is closed, and the conversion fails", async () => {
    let isClosing = false, { checkpoint, release } = opened(() => { if (isClosing) checkpoint.close(); });
    isClosing = true;
    const sink = new MemorySink(), e = await checkpoint.convert({ to: "dcp" }, sink).then(() => undefined, (error) => error);
    check(e instanceof TesseraError && sink.calls.at(-1) === "abort" && tessera.openCount === 0, `${e}, ${sink.calls.at(-1)}, ${tessera.openCount} open`);
    release();
  });

  await test("a source that returns a promise which is rejected does not end the process", async () => {
    const unhandled = [], note = (e) => unhandled.push(e);
    process.on("unhandledRejection", note);
    const e = errorOf(() => tessera.open([{ name: "a.pt", size: 10, read: () => Promise.reject(new Error("gone")) }]));
    await new Promise((resolve) => setTimeout(resolve, 10));
    process.off("unhandledRejection", note);
    check(e instanceof TypeError && unhandled.length === 0, `${e}, ${unhandled}`);
  });

  await test("a listener of progress that rejects ends the conversion", async () => {
    const mine = new Error("mine"), { checkpoint, release } = opened(), sink = new MemorySink();
    const e = await checkpoint.convert({ to: "dcp", onProgress: async () => { throw mine; } }, sink).then(() => undefined, (error) => error);
    check(e === mine && sink.calls.at(-1) === "abort", `${e}, ${sink.calls.at(-1)}`);
    checkpoint.close();
    release();
  });

  test("numbers that the module would read as others are refused", () => {
    const { checkpoint, release } = opened(), diff = checkpoint.diff(checkpoint), outline = checkpoint.outline(), rows = JSON.stringify(outline.rows(0, 50));
    for (const part of [[0, 0], [2, 2], [-1, 2], [0, 2 ** 32], [0.5, 2], ["0", 2], [0, NaN], []])
      for (const call of [() => checkpoint.checkPart(...part), () => diff.part(...part), () => diff.found(...part), () => diff.take(...part, new Uint8Array(1))]) check(errorOf(call) instanceof TypeError, `${call} of ${part} was done`);
    for (const call of [() => checkpoint.tally(NaN), () => checkpoint.tally("a"), () => checkpoint.document("entry", { entry: "a" }), () => checkpoint.document("preview", { entry: 0.5 }), () => tessera.ruleHelp(3), () => outline.filter()]) check(errorOf(call) instanceof TypeError, `${call} was done`);
    for (const call of [() => checkpoint.tally(2 ** 32), () => checkpoint.document("entry", { entry: 2 ** 33 + 1 })]) check(/^no entry has the number 4294967295/.test(errorOf(call).message), `${call} was done`);
    for (const kind of ["entries", "constructor", "", undefined, 4]) check(/^document: kind must be one of inspect, .*sarif, plan, not /.test(errorOf(() => checkpoint.document(kind)).message), `${kind} is a kind`);
    check(errorOf(() => checkpoint.document("toString")) instanceof TypeError, "toString is a kind");
    for (const count of [2 ** 31, 2 ** 40]) check(errorOf(() => outline.rows(0, count)).status === "out of memory", `${count} rows`);
    check(JSON.stringify(outline.rows(0, 50)) === rows && checkpoint.checkPart(1, 2).length > 0, "the outline has changed");
    checkpoint.close();
    release();
  });

  await test("a module that trapped is not called again", async () => {
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
