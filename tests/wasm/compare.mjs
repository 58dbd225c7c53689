/** Compares a call, or a conversion, with the native command. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { pathless, refusalOf } from "./calls.mjs";
import { filesAt, MemorySink, resultOf, sameFiles } from "./conversions.mjs";
import { check, same } from "../support/harness.mjs";

/** Compares a call, or a conversion, of a checkpoint that was opened with options, with a command. */
export function comparer({ tessera, native, withOpened, sourceOf }, directory) {
  const run = (args) => spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 });
  /* A map that is passed as a document has no path. */
  const refuses = (p, refusal, target, what) => check(refusal !== undefined && refusalOf(p.stderr, target).replace(/--map \S+\.json/, "--map").includes(refusal), `${what}: native refuses: ${p.stderr.trim()}; wasm: ${refusal ?? "nothing"}`);

  function documents(target, options, call, args) {
    const p = run(args);
    let ours, refusal;
    try {
      ours = withOpened(target, call, options);
    } catch (e) {
      if (!e.status) throw e;
      refusal = e.message;
    }
    if (p.status === 2) return refuses(p, refusal, target, args.join(" "));
    check(refusal === undefined, `${args.join(" ")}: wasm refuses: ${refusal}`);
    same(pathless(JSON.parse(p.stdout), target), pathless(ours, target), args.join(" "));
  }

  async function files(target, options, [command, settings], args, plain = (text) => text) {
    const destination = path.join(directory, "native"), sink = new MemorySink();
    fs.rmSync(destination, { recursive: true, force: true });
    fs.rmSync(`${destination}.objects.json`, { force: true });
    const p = run([command, target, destination, "--json", ...args]);
    p.stderr = plain(p.stderr);
    const source = sourceOf(target);
    let opened, result, refusal;
    try {
      opened = tessera.open(source.files, { ...source.options, ...options });
      result = await opened[command](settings, sink);
    } catch (e) {
      if (!e.status) throw e;
      refusal = e.message;
    } finally {
      opened?.close();
      source.close();
    }
    if (p.status) return void refuses(p, refusal, target, args.join(" "));
    check(refusal === undefined, `${args.join(" ")}: wasm refuses: ${refusal}`);
    sameFiles(filesAt(destination), sink.files, args.join(" "));
    check(resultOf(JSON.parse(p.stdout)) === resultOf(result), `${args.join(" ")}: results differ: ${resultOf(JSON.parse(p.stdout)).slice(0, 300)} and ${resultOf(result).slice(0, 300)}`);
    check(sink.files.size > 0, `${args.join(" ")}: nothing was written`);
  }
  return { documents, files, run };
}
