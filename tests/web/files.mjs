/** Uses the origin's private file system instead of the pickers, and runs native commands for comparison. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { root } from "./browser.mjs";
import { check } from "../support/harness.mjs";

export const native = path.join(root, "build/release/bin/tessera");

/** Makes the page's pickers return directories and files of the origin's private file system, below `chosen`. */
export const lendPlaces = (page) => page.evaluate(async () => {
  const origin = await navigator.storage.getDirectory(), chosen = await origin.getDirectoryHandle("chosen", { create: true });
  globalThis.showDirectoryPicker = async () => chosen;
  globalThis.showSaveFilePicker = async ({ suggestedName }) => chosen.getFileHandle(suggestedName, { create: true });
});

/** Makes the browser look like one without these pickers. */
export const takePickers = (page) => page.evaluate(() => { globalThis.showDirectoryPicker = globalThis.showSaveFilePicker = undefined; });

export const clearChosen = (page) => page.evaluate(async () => (await navigator.storage.getDirectory()).removeEntry("chosen", { recursive: true }).catch(() => undefined));

/** Returns every file below `chosen`, with its bytes. */
export async function chosenFiles(page) {
  const texts = await page.evaluate(async () => {
    const list = {}, walk = async (directory, below) => {
      for await (const [name, handle] of directory.entries()) {
        if (handle.kind === "directory") await walk(handle, `${below}${name}/`);
        else {
          const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
          let text = "";
          for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
          list[below + name] = btoa(text);
        }
      }
    };
    const chosen = await (await navigator.storage.getDirectory()).getDirectoryHandle("chosen").catch(() => undefined);
    if (chosen) await walk(chosen, "");
    return list;
  });
  return new Map(Object.entries(texts).map(([name, text]) => [name, Buffer.from(text, "base64")]));
}

/** Returns the sizes of files below `chosen` that have their final names, and the names of those that the browser keeps
 *  during writing. */
export const chosenSizes = (page) => page.evaluate(async () => {
  const sizes = {}, aside = [], walk = async (directory, below) => {
    for await (const [name, handle] of directory.entries()) {
      if (handle.kind === "directory") await walk(handle, `${below}${name}/`);
      else if (name.endsWith(".crswap")) aside.push(below + name);
      else sizes[below + name] = (await handle.getFile()).size;
    }
  };
  const chosen = await (await navigator.storage.getDirectory()).getDirectoryHandle("chosen").catch(() => undefined);
  if (chosen) await walk(chosen, "").catch(() => undefined); // it is being removed
  return { sizes, aside };
});

/** Returns the files below a directory, or a single file with the name "". */
export function filesBelow(target) {
  if (fs.statSync(target).isFile()) return new Map([["", fs.readFileSync(target)]]);
  const names = fs.readdirSync(target, { recursive: true }).filter((n) => fs.statSync(path.join(target, n)).isFile());
  return new Map(names.map((n) => [n, fs.readFileSync(path.join(target, n))]));
}

export function tessera(...args) {
  const p = spawnSync(native, args, { encoding: "utf8" });
  check(p.error === undefined && p.status === 0, `tessera ${args.join(" ")}: ${p.error ?? p.stderr}`);
  return p.stdout;
}

/** The document of `tessera diff`, which exits with 1 if there are differences. */
export function diffOf(...args) {
  const p = spawnSync(native, ["diff", ...args, "--json"], { encoding: "utf8", maxBuffer: 64 << 20 });
  check(p.status < 2, p.stderr);
  return JSON.parse(p.stdout);
}

/** Checks that both have the same names with the same bytes, and at least one file. */
export function expectSame(got, want) {
  check(want.size > 0 && [...want.values()].some((bytes) => bytes.length > 0), "there is nothing to compare");
  check(JSON.stringify([...got.keys()].sort()) === JSON.stringify([...want.keys()].sort()), `files ${[...got.keys()].join(" ")} instead of ${[...want.keys()].join(" ")}`);
  for (const [name, bytes] of want) check(got.get(name).equals(bytes), `'${name}' has other bytes: ${got.get(name).length} instead of ${bytes.length}`);
}
