/** Opening and closing checkpoints: arguments, handles that were closed, and files that cannot be read. */
import fs from "node:fs";
import path from "node:path";
import { filesOf } from "../../wasm/node.js";
import { check, errorOf, test } from "../support/harness.mjs";

export function testCheckpoints({ tessera, samples, withOpened }) {
  test("a closed checkpoint, and what was made from it, are refused", () => {
    const source = filesOf(path.join(samples, "safetensors_model"));
    const opened = tessera.open(source.files);
    const outline = opened.outline();
    opened.close();
    check(outline.count === 0, "the outline of a closed checkpoint has rows");
    check(/no checkpoint is open/.test(errorOf(() => opened.document("inspect")).message), "a closed checkpoint was read");
    check(/no checkpoint is open/.test(errorOf(() => { outline.handle && opened.outline(); }).message), "a closed checkpoint was outlined");
    source.close();
  });

  test("every call on a closed checkpoint is refused, and arguments of open are checked", () => {
    const source = filesOf(path.join(samples, "dcp_fsdp2")), opened = tessera.open(source.files), made = opened.optimizer("flatten");
    check(opened.warnings.length === 0 && opened.find("nosuch") === undefined && made.find("nosuch") === undefined, "warnings or names of an open checkpoint");
    opened.close();
    for (const call of [() => opened.find("x"), () => made.find("x"), () => opened.warnings, () => made.warnings, () => opened.check()]) check(/^no checkpoint is open/.test(errorOf(call).message), `${call}`);
    source.close();
    const file = { name: "a.pt", size: 3, read() {} };
    for (const [files, name] of [[undefined, "files"], [file, "files"], ["a.pt", "files"], [[undefined], "files[0].name"], [[file, { ...file, name: 3 }], "files[1].name"], [[{ ...file, size: -1 }], "files[0].size"], [[{ ...file, size: 1.5 }], "size"], [[{ ...file, size: 3n }], "size"], [[{ name: "a.pt", size: 3 }], "files[0].read"]]) {
      const e = errorOf(() => tessera.open(files));
      check(e instanceof TypeError && e.message.startsWith("open: ") && e.message.includes(name), `${e}`);
    }
  });

  test("a primary file that is not there, and different files with one name, are refused", () => {
    const source = filesOf(path.join(samples, "safetensors_model")), [file] = source.files;
    for (const [files, options, message] of [[[file], { primary: "nosuch" }, "there is no file 'nosuch'"], [[file, { name: file.name, size: file.size - 1, read() {} }], {}, `two files have the name '${file.name}'`]]) {
      const e = errorOf(() => tessera.open(files, options));
      check(e.status === "usage" && e.message === message, `${e}`);
    }
    source.close();
  });

  test("results of a shared check are taken from the middle of a buffer", () => {
    withOpened(path.join(samples, "dcp_fsdp2"), (opened) => {
      const found = opened.checkPart(0, 1), around = new Uint8Array(found.length + 8);
      around.set(found, 8);
      opened.checkJoin(around.subarray(8), 1);
      check(JSON.parse(opened.document("findings")).findings.length >= 0, "no findings");
    });
  });

  test("a handle that was closed is refused when its slot holds another thing of the same kind", () => {
    withOpened(path.join(samples, "safetensors_model"), (opened) => {
      const stale = opened.tally(0), number = stale.handle;
      stale.close();
      const next = opened.tally(0);
      stale.handle = number;
      check(/no tally is open/.test(errorOf(() => stale.step(100)).message), "the stale handle moved another tally");
      stale.close();
      next.step(100);
      next.close();
    });
  });

  test("a failed read is an i/o error with the file, the byte and the cause", () => {
    const file = { name: "model.safetensors", size: 1000, read() { throw new Error("the file changed"); } };
    const e = errorOf(() => tessera.open([file], { primary: file.name }));
    check(e.status === "input/output" && e.position === 0 && /model\.safetensors cannot be read \(the file changed\)/.test(e.message), `${e.status} ${e.position} ${e.message}`);
  });

  test("a read that says it gave fewer bytes is an i/o error", () => {
    const [file] = filesOf(path.join(samples, "safetensors_model")).files, all = fs.readFileSync(file.at);
    const copying = { name: file.name, size: file.size, read: (offset, into) => all.copy(into, 0, offset, offset + into.length) };
    const opened = tessera.open([copying]), { fqn } = opened.inspect().entries.find((e) => e.kind === "tensor");
    check(opened.read(fqn).data.length > 0, "a whole read is refused");
    copying.read = (offset, into) => all.copy(into, 0, offset, offset + into.length - 1);
    const e = errorOf(() => opened.read(fqn));
    check(e.status === "input/output" && /read gave \d+ of \d+ bytes/.test(e.message), `${e}`);
    opened.close();
  });
}
