/** Reading ahead returns the bytes of the file, in whatever order they are read, and long work on the page has the same
 *  result as the command. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { pick } from "./browser.mjs";
import { native, tessera } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { load } from "./pure.mjs";
import { goTo } from "./views.mjs";

const MIB = 1 << 20;

function random(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(state / 2 ** 32 * below);
  };
}

const noise = (size, seed) => {
  const next = random(seed), words = new Uint32Array(size / 4);
  for (let i = 0; i < words.length; i++) words[i] = next(2 ** 32);
  return new Uint8Array(words.buffer);
};

async function testBytes() {
  const { ReadAhead, forgetReads } = await load("read_ahead.ts");
  const bytes = noise(24 * MIB, 1);
  await test("every read gives the file's bytes", () => {
    const next = random(2), files = Array.from({ length: 20 }, () => new ReadAhead(bytes.length, (at, size) => bytes.slice(at, at + size)));
    for (let round = 0; round < 300; round++) {
      const file = files[next(files.length)];
      let at = next(4) ? next(bytes.length) : Math.max(0, bytes.length - next(40000));
      for (let n = 1 + next(40), step = 1 + next(next(3) ? 600000 : 300); n && at < bytes.length; n--) {
        const size = Math.min(step, bytes.length - at), into = new Uint8Array(size);
        file.read(at, into);
        check(Buffer.compare(into, bytes.subarray(at, at + size)) === 0, `${size} bytes at ${at}`);
        at += size + (next(9) ? 0 : next(100000));
      }
    }
  });
  await test("what was read before a request is read again in it", () => {
    let seen = bytes;
    const file = new ReadAhead(bytes.length, (at, size) => seen.slice(at, at + size)), into = new Uint8Array(1000), read = (at) => (file.read(at, into), into[0]);
    for (const at of [5000, 6000, 7000, 40, 20 * MIB]) read(at);
    seen = bytes.map((b) => b ^ 255);
    forgetReads();
    for (const at of [7000, 8000, 40, 20 * MIB]) check(read(at) === seen[at], `the bytes at ${at} are those of before`);
  });
  await test("reading in order takes few reads, and reads here and there fetch little", () => {
    const seen = [], file = new ReadAhead(bytes.length, (at, size) => (seen.push(size), bytes.slice(at, at + size)));
    for (let at = 0, into = new Uint8Array(131072); at < bytes.length; at += into.length) file.read(at, into);
    check(seen.length < 20 && seen.reduce((a, b) => a + b) <= bytes.length + MIB, `${seen.length} reads: ${seen}`);
    const apart = [], other = new ReadAhead(bytes.length, (at, size) => (apart.push(size), bytes.slice(at, at + size)));
    for (let at = 20 * MIB; at > 0; at -= MIB) other.read(at, new Uint8Array(30));
    check(apart.every((size) => size <= 16384), `${apart}`);
  });
  await test("items with a header before their bytes are read once", () => {
    const each = 3 * MIB, seen = [], file = new ReadAhead(bytes.length, (at, size) => (seen.push([at, size]), bytes.slice(at, at + size)));
    const read = (at, size) => file.read(at, new Uint8Array(size));
    for (let at = 0; at < bytes.length; at += each) {
      read(at + each - 16384, 16384); // the zip's end, its first record, and its pickle, back and forth
      read(at, 4096);
      read(at + each - 900, 900);
      for (const [offset, size] of [[448, 2], [576, 6], [64, 167], [320, 1]]) read(at + offset, size);
      for (let offset = 704; offset < each - 1000; offset += 131072) read(at + offset, Math.min(131072, each - 1000 - offset));
    }
    const total = seen.reduce((sum, [, size]) => sum + size, 0);
    check(seen.length <= 12 && total <= bytes.length + 3 * 16384, `${total} bytes of ${bytes.length}: ${seen.map(([at, size]) => `${size} at ${at}`).join(", ")}`);
  });
  await test("the headers of items that are opened long before their bytes are read cost nothing more, in files that take turns", () => {
    forgetReads();
    const each = 3 * MIB, fetched = [0, 0, 0], seen = [];
    const files = fetched.map((_, i) => new ReadAhead(bytes.length, (at, size) => (fetched[i] += size, seen.push(size), bytes.slice(at, at + size))));
    const read = (file, at, size) => file.read(at, new Uint8Array(size));
    for (let at = 0; at < bytes.length; at += each) {
      for (const file of files) {
        for (const opened of at ? [at + 2 * each] : [0, each, 2 * each]) {
          if (opened + each > bytes.length) continue;
          for (const [offset, size] of [[each - 16384, 16384], [0, 4096], [each - 900, 900], [576, 6]]) read(file, opened + offset, size);
        }
        for (let offset = 704; offset < each - 1000; offset += 131072) read(file, at + offset, Math.min(131072, each - 1000 - offset));
      }
    }
    check(fetched.every((n) => n <= bytes.length + 8 * 16384) && seen.length <= 3 * 16, `${fetched} bytes of ${bytes.length} in ${seen.length} reads: ${seen}`);
  });
}

/** The bytes from a position on, as a file's stream gives them: in parts of any size, into the reader's memory. `tell` hears their
 *  sizes. */
const streamOf = (bytes, at, next, tell = () => undefined) => new ReadableStream({
  type: "bytes",
  pull(controller) {
    const { byobRequest } = controller, size = Math.min(byobRequest.view.byteLength, 1 + next(300_000), bytes.length - at);
    byobRequest.view.set(bytes.subarray(at, at + size));
    at += size;
    tell(size);
    if (size === 0) controller.close();
    byobRequest.respond(size);
  },
}).getReader({ mode: "byob" });

async function testStreams() {
  const { ReadAhead, forgetReads } = await load("read_ahead.ts"), bytes = noise(24 * MIB, 4), whole = (at, size) => bytes.slice(at, at + size);
  await test("every read gives the file's bytes after they were streamed", async () => {
    const next = random(5), files = Array.from({ length: 12 }, () => new ReadAhead(bytes.length, whole, false, (at) => streamOf(bytes, at, next)));
    for (let round = 0; round < 200; round++) {
      const file = files[next(files.length)];
      let at = next(4) ? next(bytes.length) : Math.max(0, bytes.length - next(40000));
      for (let n = 1 + next(40), step = 1 + next(next(3) ? 600000 : 300); n && at < bytes.length; n--) {
        const size = Math.min(step, bytes.length - at), into = new Uint8Array(size);
        if (next(20) === 0) forgetReads();
        if (next(5)) await file.fetch(at, size);
        file.read(at, into);
        check(Buffer.compare(into, bytes.subarray(at, at + size)) === 0, `${size} bytes at ${at}`);
        at += size + (next(9) ? 0 : next(100000));
      }
    }
  });
  await test("files that take turns are streamed once, and are read otherwise at their beginnings only", async () => {
    forgetReads();
    let opened = 0;
    const seen = [], files = Array.from({ length: 4 }, () => new ReadAhead(bytes.length, (at, size) => (seen.push(size), whole(at, size)), false, (at) => (opened++, streamOf(bytes, at, random(6)))));
    for (let at = 0, into = new Uint8Array(1_500_000); at + into.length <= bytes.length; at += into.length) {
      for (const file of files) {
        await file.fetch(at, into.length);
        file.read(at, into);
      }
    }
    check(seen.length === files.length && opened === files.length, `${seen.length} reads: ${seen}; ${opened} streams`);
  });
  await test("what a stream does not deliver is read, and its errors are those of the read", async () => {
    for (const cut of [10 * MIB, 0]) {
      let isGone = false;
      const short = bytes.subarray(0, cut), file = new ReadAhead(bytes.length, (at, size) => { if (isGone) throw new Error("the file ended early"); return whole(at, size); }, false, (at) => streamOf(short, Math.min(at, cut), random(7)));
      for (let at = 0, into = new Uint8Array(MIB); at < 12 * MIB; at += into.length) {
        await file.fetch(at, into.length);
        file.read(at, into);
        check(Buffer.compare(into, bytes.subarray(at, at + into.length)) === 0, `the bytes at ${at}`);
      }
      forgetReads();
      isGone = true;
      await file.fetch(12 * MIB, 100);
      let message = "none";
      try { file.read(12 * MIB, new Uint8Array(100)); } catch (e) { ({ message } = e); }
      check(message === "the file ended early", message);
    }
  });
  await test("what is forgotten while it is streamed is read again", async () => {
    let seen = bytes;
    const file = new ReadAhead(bytes.length, (at, size) => seen.slice(at, at + size), false, (at) => streamOf(seen, at, random(8))), into = new Uint8Array(100_000);
    for (const at of [0, 100_000]) file.read(at, into);
    const fetching = file.fetch(200_000, 3 * MIB);
    seen = bytes.map((b) => b ^ 255);
    forgetReads();
    await fetching;
    file.read(200_000, into);
    check(Buffer.compare(into, seen.subarray(200_000, 300_000)) === 0, "the bytes are those of before");
  });
}

/** Streams of ranges, which are listed in `seen`. */
const opening = (bytes, seen, next, tell) => (at, size = bytes.length) => (seen.push([at, size]), streamOf(bytes.subarray(0, at + size), at, next, tell));

async function testAnnounced() {
  const { ReadAhead, forgetReads } = await load("read_ahead.ts"), bytes = noise(96 * MIB, 9), next = random(10);
  const refused = () => { throw new Error("a read of its own"); };
  const rangesOf = (at, each) => [{ offset: at, size: 1 }, { offset: at + each - 16384, size: 16384 }];
  /** Reads an item as the module does: its end, its beginning, and the bytes of its tensor. */
  const readItem = (file, at, each) => {
    for (const [offset, size] of [[each - 16384, 16384], [0, 4096], [704, each - 2000]]) {
      const into = new Uint8Array(size);
      file.read(at + offset, into);
      check(Buffer.compare(into, bytes.subarray(at + offset, at + offset + size)) === 0, `${size} bytes at ${at + offset}`);
    }
  };
  await test("items that were announced are read as a whole, each once, and make room when their tensors were read", async () => {
    forgetReads();
    const each = 3 * MIB, seen = [], files = Array.from({ length: 4 }, () => new ReadAhead(bytes.length, refused, false, opening(bytes, seen, next)));
    for (let at = 0; at < bytes.length; at += 2 * each) {
      await Promise.all(files.map((file) => file.prefetch([...rangesOf(at, each), ...rangesOf(at + each, each)])));
      for (const first of [at, at + each]) for (const file of files) readItem(file, first, each);
    }
    const [whole, continued] = [2 * each, bytes.length].map((wanted) => seen.filter(([, size]) => size === wanted));
    check(whole.length === 2 * files.length && continued.length === files.length && seen.length === 3 * files.length, `${seen.length} streams: ${seen}`);
    check(continued.every(([at]) => at === 4 * each), `${continued}`);
  });
  await test("items that do not follow each other, of many files or announced together, are read by streams that end with them", async () => {
    forgetReads();
    const each = 3 * MIB, counts = [], announce = async (files, at) => {
      for (const file of files) await file.prefetch(rangesOf(at, each));
      for (const file of files) readItem(file, at, each);
    };
    for (const [places, count] of [[[0, 1, 3, 4, 6, 7], 1], [[0, 1, 2, 3, 4], 11]]) {
      const seen = [], files = Array.from({ length: count }, () => new ReadAhead(bytes.length, refused, false, opening(bytes, seen, next)));
      for (const place of places) for (let at = 0; at < files.length; at += 4) await announce(files.slice(at, at + 4), place * each);
      counts.push(seen.filter(([, size]) => size === bytes.length).length);
    }
    check(counts[0] === 0 && counts[1] === 8, `${counts} streams went on`);
    forgetReads();
    const seen = [];
    for (let n = 0; n < 9; n++) {
      const file = new ReadAhead(bytes.length, refused, false, opening(bytes, seen, next));
      for (let at = 0; at < bytes.length; at += each) await announce([file], at);
    }
    check(seen.filter(([, size]) => size === bytes.length).length === 9, "a file that was read to its end keeps its stream");
  });
  await test("a stream that goes on is not read by two ranges at a time, nor after it failed, nor after it was forgotten", async () => {
    const each = 3 * MIB, expect = (file, at, size, wanted) => {
      const into = new Uint8Array(size);
      file.read(at, into);
      check(Buffer.compare(into, wanted.subarray(at, at + size)) === 0, `${size} bytes at ${at}`);
    };
    const start = async (read, open) => {
      forgetReads();
      const file = new ReadAhead(bytes.length, read, false, open);
      for (let at = 0; at < 4 * each; at += each) {
        await file.prefetch(rangesOf(at, each));
        readItem(file, at, each);
      }
      return file;
    };
    const two = await start(refused, opening(bytes, [], next)), at = 4 * each;
    await two.prefetch([{ offset: at, size: 8 * MIB }, { offset: at + 8 * MIB, size: MIB }]);
    expect(two, at, 8 * MIB, bytes);
    expect(two, at + 8 * MIB, MIB, bytes);
    let streams = 0;
    const reads = [], broken = await start((from, size) => (reads.push(from), bytes.slice(from, from + size)), (from, size) => streamOf(size ? bytes.subarray(0, from + size) : bytes.subarray(0, (streams++ ? 32 : 4.5) * each), from, next));
    for (let i = 4; i < 8; i++) {
      await broken.prefetch(rangesOf(i * each, each));
      readItem(broken, i * each, each);
    }
    check(reads.length > 0 && reads.every((from) => from < 5 * each), `reads at ${reads}`);
    let now = bytes;
    const changed = await start(refused, (from, size = bytes.length) => streamOf(now.subarray(0, from + size), from, next));
    now = bytes.map((b) => b ^ 255);
    forgetReads();
    await changed.prefetch(rangesOf(at, each));
    expect(changed, at, 1000, now);
  });
  await test("announced items have the file's bytes in whatever order they come, with streams that fail and reads that are forgotten", async () => {
    forgetReads();
    const each = 2 * MIB, items = bytes.length / each, files = Array.from({ length: 3 }, () => new ReadAhead(bytes.length, (at, size) => bytes.slice(at, at + size), false,
      (at, size = bytes.length) => streamOf(bytes.subarray(0, next(6) ? at + size : at + next(size)), at, next)));
    for (let round = 0; round < 60; round++) {
      let item = next(items);
      for (let n = next(9); n >= 0 && item < items; n--, item += next(7) ? 1 : 2) {
        const count = Math.min(next(8) ? 1 : 7, items - item), large = count * each; // seven are too large to be read as a whole
        const pending = files.map((file) => file.prefetch(rangesOf(item * each, large)));
        if (next(12) === 0) forgetReads();
        await Promise.all(pending);
        for (const file of files) readItem(file, item * each, large);
        item += count - 1;
      }
    }
  });
  await test("of large items, and of items for which there is no room, only the ends are read", async () => {
    for (const [each, count] of [[12 * MIB, 8], [4 * MIB, 24]]) {
      forgetReads();
      let streamed = 0;
      const seen = [], reads = [], file = new ReadAhead(bytes.length, (at, size) => (reads.push(size), bytes.slice(at, at + size)), false, opening(bytes, seen, next, (size) => { streamed += size; }));
      for (let i = 0; i < count; i++) await file.prefetch(rangesOf(i * each, each));
      check(streamed <= 33 * MIB && seen.filter(([, size]) => size <= 16384).length >= 16, `${streamed} bytes: ${seen}`);
      for (let i = 0; i < count; i++) readItem(file, i * each, each);
      check(reads.every((size) => size > 65536), `read again: ${reads.filter((size) => size <= 65536)}`);
    }
  });
  await test("items that nobody reads make room in the end", async () => {
    forgetReads();
    const each = 4 * MIB, seen = [], file = new ReadAhead(bytes.length, (at, size) => bytes.slice(at, at + size), false, opening(bytes, seen, next));
    for (let n = 0; n < 600; n++) await file.prefetch(rangesOf((n % 16) * each, each));
    const whole = seen.map(([, size], n) => (size === each ? n : 0));
    check(Math.max(...whole) > 500, `the last whole item was read number ${Math.max(...whole)} of ${seen.length}`);
  });
  await test("what is announced is read otherwise if its stream ends early, and again after it was forgotten", async () => {
    forgetReads();
    let seen = bytes;
    const each = 3 * MIB, file = new ReadAhead(bytes.length, (at, size) => seen.slice(at, at + size), false, (at, size = bytes.length) => streamOf(seen.subarray(0, at + (at ? size : 5000)), at, next));
    await file.prefetch(rangesOf(0, each));
    readItem(file, 0, each);
    await file.prefetch(rangesOf(each, each));
    const late = file.prefetch(rangesOf(2 * each, each));
    seen = bytes.map((b) => b ^ 255);
    forgetReads();
    await late;
    for (const at of [each, 2 * each]) {
      const into = new Uint8Array(100);
      file.read(at, into);
      check(Buffer.compare(into, seen.subarray(at, at + 100)) === 0, `the bytes at ${at} are those of before`);
    }
  });
}

/** Makes a model of 48 MiB as a DCP of eight ranks, and the same with one flipped bit. */
function makeCheckpoints(directory) {
  const each = 6 * MIB, header = Buffer.from(JSON.stringify(Object.fromEntries(Array.from({ length: 8 }, (_, i) => [`layers.${i}.w`, { dtype: "I32", shape: [each / 4], data_offsets: [i * each, (i + 1) * each] }]))));
  const size = Buffer.alloc(8), at = (name) => path.join(directory, name);
  size.writeBigUInt64LE(BigInt(header.length));
  fs.writeFileSync(at("model.safetensors"), Buffer.concat([size, header, noise(8 * each, 3)]));
  tessera("convert", at("model.safetensors"), at("sound"), "--to", "dcp");
  fs.cpSync(at("sound"), at("flipped"), { recursive: true });
  const data = fs.readdirSync(at("flipped")).filter((name) => name !== ".metadata").map((name) => path.join(at("flipped"), name)).at(-1), bytes = fs.readFileSync(data);
  bytes[Math.floor(bytes.length * 0.7)] ^= 4;
  fs.writeFileSync(data, bytes);
  return { sound: at("sound"), flipped: at("flipped") };
}

async function open(page, url, target) {
  await page.goto(url);
  await pick(page, target);
  await page.locator(".window .row .text").first().waitFor();
}

async function testWork({ page, url, made, directory }) {
  await test("a flipped bit in 48 MiB is found where the command finds it", async () => {
    await open(page, url, made.flipped);
    await goTo(page, /^Problems/);
    await page.getByRole("button", { name: /^Check every byte/ }).click();
    await page.locator(".findings code", { hasText: "zip/crc" }).waitFor();
    const { findings } = JSON.parse(spawnSync(native, ["validate", made.flipped, "--deep", "--json"], { encoding: "utf8" }).stdout), text = await page.locator(".view").innerText();
    check(findings.some((f) => f.rule === "zip/crc" && text.includes(f.message)), `${JSON.stringify(findings)}: ${text}`);
  });
  await test("values differ in one tensor", async () => {
    await open(page, url, made.sound);
    await goTo(page, "Compare");
    await pick(page, made.flipped);
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values not compared yet" }).waitFor();
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: /1 .*differ|1 changed/ }).waitFor();
  });
  await test("a conversion writes what the command writes", async () => {
    await open(page, url, made.sound);
    await goTo(page, "Convert…");
    await page.locator("form.questions").getByLabel("Form", { exact: true }).selectOption("safetensors");
    await page.getByRole("button", { name: "Save…", exact: true }).and(page.locator(":enabled")).waitFor();
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save…", exact: true }).click()]);
    const expected = path.join(directory, "native.safetensors");
    tessera("convert", made.sound, expected, "--to", "safetensors");
    check(fs.readFileSync(await file.path()).equals(fs.readFileSync(expected)), "it has other bytes");
  });
}

export async function testReading({ context, url, broken }) {
  await testBytes();
  await testStreams();
  await testAnnounced();
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-reading-"));
  try {
    const made = makeCheckpoints(directory);
    const page = await context.newPage();
    await page.addInitScript(() => { globalThis.showSaveFilePicker = globalThis.showDirectoryPicker = undefined; });
    await testWork({ page, url, made, directory });
    await page.close();
  } finally {
    fs.rmSync(directory, { recursive: true });
  }
  await test("reading ahead does not break the page", () => check(broken.length === 0, broken.join("; ")));
}
