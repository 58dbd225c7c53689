/** Several workers compare values: the result is that of a single worker, whatever fails in one of them. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { filesOf } from "../../wasm/node.js";
import { Tessera } from "../../wasm/tessera.js";
import { allowWorkers, PATIENCE, pick, root, rowsIn, samples } from "./browser.mjs";
import { native, tessera } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { load } from "./pure.mjs";
import { goTo } from "./views.mjs";

const MIB = 1 << 20, TENSORS = 28, ELEMENTS = MIB / 2, PARTS = 5;
const nameOf = (i) => `layers.${i}.w`;

/** Writes tensors of 2 MiB, and one of 1 MiB, in which all values differ. `change` may change them and returns their
 *  names. */
function writeModel(at, change) {
  const tensors = new Map(Array.from({ length: TENSORS }, (_, i) => [nameOf(i), Float32Array.from({ length: i === 7 ? ELEMENTS / 2 : ELEMENTS }, (_, k) => i * 1000 + k / 7)]));
  change(tensors);
  let end = 0;
  const header = Buffer.from(JSON.stringify(Object.fromEntries([...tensors].map(([name, { length }]) => [name, { dtype: "F32", shape: [length / 512, 512], data_offsets: [end, end += 4 * length] }]))));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(header.length));
  fs.writeFileSync(at, Buffer.concat([size, header, ...[...tensors.values()].map((t) => Buffer.from(t.buffer))]));
}

/** A: a DCP. B: safetensors in several files, with different values (one is NaN), a renamed tensor and a missing one. */
function makePair(directory) {
  const at = (name) => path.join(directory, name), a = at("a"), b = at("b"), short = at("short");
  writeModel(at("a.safetensors"), () => undefined);
  writeModel(at("b.safetensors"), (tensors) => {
    tensors.get(nameOf(3))[77] += 0.5;
    tensors.get(nameOf(11)).fill(NaN, 5, 9);
    tensors.get(nameOf(20))[ELEMENTS - 1] = -1;
    tensors.set("blocks.7.w", tensors.get(nameOf(7)));
    [nameOf(7), nameOf(15)].forEach((name) => tensors.delete(name));
  });
  tessera("convert", at("a.safetensors"), a, "--to", "dcp");
  tessera("convert", at("b.safetensors"), b, "--to", "safetensors", "--max-shard-size", "12MiB");
  tessera("convert", at("b.safetensors"), short, "--to", "dcp");
  return { a, b, short };
}

const [moduleBytes, writerBytes] = ["tessera", "tessera-writers"].map((name) => fs.readFileSync(path.join(root, `build/wasm/bin/${name}.wasm`)));

/** Compares two checkpoints in a separate module. */
async function comparison(...targets) {
  const t = await Tessera.load(moduleBytes);
  const [a, b] = targets.map((target) => {
    const { files, options } = filesOf(target);
    return t.open(files, options);
  });
  return a.diff(b);
}

async function testParts({ a, b }) {
  await test("parts that several modules compared are together what one finds, and what the command finds", async () => {
    const [whole, first, ...others] = await Promise.all([1, 2, 3, 4].map(() => comparison(a, b)));
    while (whole.step());
    let most = 0;
    for (let part = 0; part < PARTS; part++) {
      const member = [first, ...others][part % 3];
      member.part(part, PARTS);
      while (member.step());
      const found = member.found(part, PARTS);
      most = Math.max(most, found.length);
      if (member !== first) first.take(part, PARTS, found);
      others.forEach((other) => other.take(part, PARTS, found));
    }
    check(most < others[0].found(0, 1).length / 2, "one part has most of the tensors");
    check([first, ...others].every((m) => m.document("a", "b") === whole.document("a", "b")), first.document("a", "b"));
    const { same, changed, renamed, removed } = JSON.parse(spawnSync(native, ["diff", a, b, "--values", "--json"], { encoding: "utf8", maxBuffer: 64 * MIB }).stdout), mine = first.result();
    check(JSON.stringify(mine.changed) === JSON.stringify(changed) && JSON.stringify(mine.renamed) === JSON.stringify(renamed) && same === mine.same && removed.length === mine.removed.length && changed.length === 3 && renamed.length === 1, JSON.stringify([mine.changed, changed]));
  });
}

/** Samples of several formats, so that the check of every reader is shared: with damage of each kind, without any, and with many
 *  findings. */
const CHECKED = [...fs.readdirSync(samples).filter((name) => /^(broken_|dcp_|torch_|safetensors_)/.test(name)).map((name) => path.join(samples, name)),
  ...["megatron/layers", "deepspeed/zero1_bf16"].map((name) => path.join(root, "tests/golden", name))];

/** Opens a checkpoint in a separate module that can read all formats. Returns undefined if it cannot be opened. */
async function checked(target) {
  const t = await Tessera.load(moduleBytes);
  await t.prepare(writerBytes);
  const { files, options } = filesOf(target);
  try {
    return t.open(files, options);
  } catch {
    return undefined;
  }
}

async function testChecks() {
  await test("several modules together find what a single one finds, in the same order", async () => {
    const wrong = [];
    let most = 0, count = 0;
    for (const target of CHECKED) {
      const whole = await checked(target);
      if (!whole) continue;
      const members = [await checked(target), await checked(target)], first = members[1], path = "x";
      const want = whole.document("findings-deep", { path });
      const found = Array.from({ length: PARTS }, (_, i) => [PARTS - 1 - i, members[i % 2].checkPart(PARTS - 1 - i, PARTS)]).sort(([a], [b]) => a - b).map(([, bytes]) => bytes);
      first.checkJoin(new Uint8Array(Buffer.concat(found)), PARTS);
      const same = ["findings", "sarif"].every((kind) => first.document(kind, { path }) === whole.document(kind, { path })) && first.document("findings", { path }) === want;
      if (!same) wrong.push(`${target}: ${first.document("findings", { path })} instead of ${want}`);
      most = Math.max(most, JSON.parse(want).findings.length);
      count++;
    }
    check(wrong.length === 0 && count > 60 && most > 4, `${count} ${most} ${wrong.join("\n")}`);
  });
}

/** Workers like those of the page. `trouble` makes worker `i` fail at the part with a number. */
function members(trouble) {
  const asked = [], joined = [];
  const member = (i) => ({
    async call(kind, { part, found }) {
      if (kind === "diff") return { found };
      asked.push([i, part]);
      await new Promise((resolve) => { setTimeout(resolve, 1); });
      const status = trouble(i, part);
      if (status) throw Object.assign(new Error(`part ${part}`), { trouble: { status } });
      return part;
    },
  });
  return { asked, joined, first: member(0), join: async () => { joined.push(1); return member(joined.length); } };
}

async function testTroubles() {
  const { compareValues, workersFor } = await load("team.ts");
  const opening = (size, more = {}) => [{ title: "x", files: [{ name: "x.distcp", size, ...more }] }], four = { hardwareConcurrency: 8, deviceMemory: 8 };
  const run = (team, join = team.join) => compareValues(team.first, join, { canonical: false, map: {}, openings: opening(1024 * MIB) });
  const all = Array.from({ length: 16 }, (_, i) => i).join();
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  Object.defineProperty(globalThis, "navigator", { value: four, configurable: true });
  try {
    await test("as many workers as there are cores, memory and bytes for them, two per core", () => {
      const counts = [[opening(1024 * MIB), four], [opening(40 * MIB), four], [opening(100 * MIB), four], [opening(1024 * MIB), { hardwareConcurrency: 2 }], [opening(1024 * MIB), { hardwareConcurrency: 1 }], [opening(1024 * MIB), { hardwareConcurrency: 8, deviceMemory: 2 }], [opening(1024 * MIB, { url: "x" }), four], [[{ files: [{ name: "a/.metadata", size: 80 * MIB }, { name: "x", size: 1024 * MIB }] }], four]];
      check(counts.map((c) => workersFor(...c)).join() === "4,1,3,4,2,1,1,1", counts.map((c) => workersFor(...c)).join());
    });
    await test("every part is compared once, in its place", async () => {
      const team = members(() => undefined), { found } = await run(team);
      check(found.join() === all && team.asked.length === 16 && new Set(team.asked.map(([i]) => i)).size === 4, JSON.stringify(team.asked));
    });
    await test("what a worker that breaks, or runs out of memory, had begun is done by another", async () => {
      for (const status of ["broken", "out of memory"]) {
        const { found } = await run(members((i, part) => (i > 0 && part > 1 ? status : undefined)));
        check(found.join() === all, found.join());
      }
    });
    await test("where no other worker starts, one does all", async () => {
      const { found } = await run(members(() => undefined), () => Promise.reject(new Error("no worker")));
      check(found.join() === all, found.join());
    });
    await test("the first failure in the order of parts is the one that is told", async () => {
      const team = members((_, part) => (part === 5 || part === 2 || part === 9 ? "input/output" : undefined)), e = await run(team).then(() => undefined, (error) => error);
      check(e?.message === "part 2" && [0, 1, 2].every((p) => team.asked.some(([, part]) => part === p)) && team.asked.length < 14, `${e} ${JSON.stringify(team.asked)}`);
    });
    await test("a worker takes parts that follow each other, and what is left of another's", async () => {
      const team = members(() => undefined);
      await run(team);
      const follows = team.asked.filter(([i, part], at) => team.asked.slice(0, at).findLast(([j]) => j === i)?.[1] === part - 1);
      check(follows.length >= 8, JSON.stringify(team.asked));
    });
  } finally {
    if (before) Object.defineProperty(globalThis, "navigator", before);
    else delete globalThis.navigator;
  }
}

async function openBoth(page, url, a, b) {
  await page.goto(url);
  await pick(page, a);
  await page.locator(".window .row .text").first().waitFor();
  await goTo(page, "Compare");
  await pick(page, b);
  await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values not compared yet" }).waitFor();
}

/** Waits until values are compared and the changed tensors were searched for NaN. */
async function comparedWhole(page) {
  await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values included" }).waitFor();
  await page.getByRole("heading", { name: "1 changed tensor has NaN or infinity" }).waitFor();
  await page.locator(".window .row .measure", { hasText: /\d/ }).first().waitFor(); // the rows have what was measured after the heading
}

/** True for the last of three workers that begin. */
const manyWorkers = (left = 3) => () => --left === 0;

const rowsShown = async (page) => (await (await rowsIn(page)).allInnerTexts()).join("\n");

async function testPage({ context, url }, { a, b, short }) {
  const shown = [], started = []; // as many measure the changed tensors as compared
  for (const workers of [1, 3]) {
    const page = await context.newPage();
    await allowWorkers(page, workers);
    await openBoth(page, url, a, b);
    let seen = 0;
    page.on("worker", () => { seen++; });
    await test(`values are compared in the page by ${workers === 1 ? "one worker" : "three workers"}`, async () => {
      await page.getByRole("button", { name: /^Values/ }).click();
      await comparedWhole(page);
      started.push(seen);
      shown.push(`${await page.locator(".current[aria-busy=false] .verdict-line").innerText()}\n${await rowsShown(page)}`);
      check(/3 changed/.test(shown.at(-1)), shown.at(-1));
    });
    if (workers === 3) {
      await test("several workers show what one shows", () => check(shown[0] === shown[1] && started.join() === "2,6", `${started}\n${shown.join("\n---\n")}`));
      await test("comparing by several workers is cancelled, and all of them end", async () => {
        const click = () => page.getByRole("button", { name: /^Values/ }).evaluate((b) => b.click());
        await click();
        const begun = page.waitForEvent("worker", manyWorkers());
        await click();
        await begun;
        await click();
        while (page.workers().length > 1) await page.waitForTimeout(5);
        check(await page.locator(".trouble").count() === 0, "cancelling is trouble");
        await click();
        await comparedWhole(page);
        check(`${await page.locator(".current[aria-busy=false] .verdict-line").innerText()}\n${await rowsShown(page)}` === shown[0], await rowsShown(page));
      });
      await test("comparing that is cancelled and begun again at once ends with the whole result", async () => {
        const values = page.getByRole("button", { name: /^Values/ });
        const begun = page.waitForEvent("worker", manyWorkers());
        await values.evaluate((b) => { b.click(); b.click(); });
        await begun;
        await values.evaluate((b) => { b.click(); b.click(); });
        await comparedWhole(page);
        check(`${await page.locator(".current[aria-busy=false] .verdict-line").innerText()}\n${await rowsShown(page)}` === shown[0], await rowsShown(page));
      });
      await test("a file that changed since it was opened is told as trouble", async () => {
        await openBoth(page, url, a, short);
        const data = fs.readdirSync(short).find((name) => name !== ".metadata");
        fs.truncateSync(path.join(short, data), 20 * MIB);
        await page.getByRole("button", { name: /^Values/ }).click();
        await page.locator(".trouble").waitFor();
        check(await page.getByRole("button", { name: "Cancel" }).count() === 0, "work goes on");
      });
    }
    await page.close();
  }
}

/** A DCP of 70 MiB with NaN in two tensors and a byte changed in each half of its file. */
function makeDamaged(directory) {
  const at = (name) => path.join(directory, name);
  writeModel(at("d.safetensors"), (tensors) => {
    [2, 25].forEach((i) => tensors.get(nameOf(i)).fill(NaN, 3, 3 + i));
    for (let i = TENSORS; i < TENSORS + 8; i++) tensors.set(nameOf(i), Float32Array.from({ length: ELEMENTS }, (_, k) => i + k / 3));
  });
  tessera("convert", at("d.safetensors"), at("d"), "--to", "dcp");
  const data = path.join(at("d"), fs.readdirSync(at("d")).find((name) => name.endsWith(".distcp"))), file = fs.openSync(data, "r+");
  for (const place of [9 * MIB + 7, 50 * MIB + 1]) {
    const byte = Buffer.alloc(1);
    fs.readSync(file, byte, 0, 1, place);
    fs.writeSync(file, Buffer.of(byte[0] ^ 64), 0, 1, place);
  }
  fs.closeSync(file);
  return at("d");
}

async function openProblems(page, url, target) {
  await page.goto(url);
  await pick(page, target);
  await page.locator(".window .row .text").first().waitFor();
  await goTo(page, "Problems");
}

async function testPageChecks({ context, url }, damaged) {
  const told = JSON.parse(spawnSync(native, ["validate", "--deep", damaged, "--json"], { encoding: "utf8" }).stdout).findings.map((f) => f.message);
  const shown = [];
  for (const workers of [1, 2]) {
    const page = await context.newPage();
    await allowWorkers(page, workers);
    await openProblems(page, url, damaged);
    const deep = page.getByRole("button", { name: "Check every byte" }), started = new Set();
    page.on("worker", (worker) => started.add(worker));
    await test(`every byte is checked in the page by ${workers === 1 ? "one worker" : "two workers"}`, async () => {
      await deep.click();
      await page.getByText(told.at(-1)).first().waitFor();
      shown.push(await page.locator(".view").innerText());
      check(started.size === workers && told.length >= 4 && told.every((message) => shown.at(-1).includes(message)), `${started.size} ${told} ${shown.at(-1)}`);
    });
    if (workers === 2) {
      await test("several workers find what one finds", () => check(shown[0] === shown[1], shown.join("\n---\n")));
      await test("a shared check is cancelled, and all of its workers end", async () => {
        await openProblems(page, url, damaged); // what was checked is not offered again
        await page.evaluate(() => { // the second part of each worker never begins, so no machine is done before there is a button
          const post = globalThis.postBefore = Worker.prototype.postMessage, begun = new WeakMap();
          Worker.prototype.postMessage = function (message, ...rest) {
            if (message.kind === "deepPart") begun.set(this, (begun.get(this) ?? 0) + 1);
            if (message.kind !== "deepPart" || begun.get(this) < 2) post.call(this, message, ...rest);
          };
        });
        await deep.click();
        await page.getByRole("button", { name: "Cancel" }).click();
        await page.waitForFunction(() => !document.body.innerText.includes("Checking every byte"));
        await page.evaluate(() => { Worker.prototype.postMessage = globalThis.postBefore; });
        const end = Date.now() + PATIENCE;
        while (page.workers().length > 1 && Date.now() < end) await page.waitForTimeout(5);
        check(page.workers().length === 1 && await page.locator(".trouble").count() === 0, `${page.workers().length} workers`);
        await deep.click();
        await page.getByText(told.at(-1)).first().waitFor();
        check(await page.locator(".view").innerText() === shown[0], await page.locator(".view").innerText());
      });
    }
    await page.close();
  }
}

export async function testSharing({ context, url, broken }) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-sharing-"));
  try {
    await testTroubles();
    const pair = makePair(directory);
    await testParts(pair);
    await testChecks();
    await testPage({ context, url }, pair);
    await testPageChecks({ context, url }, makeDamaged(directory));
  } finally {
    fs.rmSync(directory, { recursive: true });
  }
  await test("sharing work does not break the page", () => check(broken.length === 0, broken.join("; ")));
}
