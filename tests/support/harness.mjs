/** The runner of every test in JavaScript. A suite is a directory whose *.mjs files export families of tests: functions that are named
 *  test…, such as testMaps, and that call `test` for each test. To add a test, add a call of `test` to a family, or export another family;
 *  it is found by its name. Words of the command line select families: `maps remote` runs those whose names contain maps or remote.
 *  Several families run at a time, each in a process that runs one after the other, so a family must not need what another one leaves. */
import { fork } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

let passed = 0, failed = 0, skipped = 0, unfinished = 0;
const isShared = process.connected; // this process runs families that another one sends (share)

function fail(name, error) {
  failed++;
  console.log(`FAIL ${name}: ${String(error?.message ?? error).slice(0, 4000)}`);
}

export function check(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

/** Runs a test and counts it. If `body` returns a promise, so does this function, and the family must await it. */
export function test(name, body) {
  const pass = () => void passed++;
  try {
    const result = body();
    if (typeof result?.then !== "function") return pass();
    unfinished++;
    return result.then(pass, (e) => fail(name, e)).finally(() => unfinished--);
  } catch (e) {
    return fail(name, e);
  }
}

export function skip(name, why) {
  skipped++;
  console.log(`SKIP ${name}: ${why}`);
}

/** Compares two texts, or with `read` the values that it makes of them. */
export function same(native, wasm, what, read = undefined) {
  const [a, b] = read ? [native, wasm].map((t) => JSON.stringify(read(t))) : [native, wasm];
  if (a === b) return;
  const n = [...a].findIndex((c, i) => c !== b[i]);
  throw new Error(`${what} differ at character ${n}: native …${a.slice(Math.max(0, n - 60), n + 60)}… wasm …${b.slice(Math.max(0, n - 60), n + 60)}…`);
}

export function errorOf(body) {
  try {
    body();
  } catch (e) {
    return e;
  }
  throw new Error("nothing was refused");
}

/** Returns the families of a directory, [name, function], sorted by file and name. Files that export none, such as helpers and scripts,
 *  are not imported. */
async function familiesOf(directory) {
  const files = fs.readdirSync(directory).filter((name) => name.endsWith(".mjs") && /^export\b.*\btest[A-Z]/m.test(fs.readFileSync(path.join(directory, name), "utf8"))).sort();
  const modules = await Promise.all(files.map((name) => import(pathToFileURL(path.join(directory, name)))));
  return modules.flatMap((module) => Object.entries(module).filter(([name]) => /^test[A-Z]/.test(name)));
}

/** Runs a family and counts its tests. A family that throws, has no tests, or does not await one fails. */
async function runFamily([name, family], run) {
  const before = passed + failed + skipped;
  try {
    await run(family);
  } catch (e) {
    fail(name, e?.stack ?? e);
  }
  if (unfinished > 0) fail(name, "the family ends before its tests; await each test whose body is async");
  if (passed + failed + skipped === before) fail(name, "the family has no tests");
}

/** In a process that `share` started: runs the families that it is sent, and answers with the counts of each. */
async function runSent(families, run) {
  const byName = new Map(families);
  let last = Promise.resolve();
  await new Promise((ended) => {
    process.on("disconnect", ended);
    process.on("message", (name) => {
      last = last.then(async () => {
        [passed, failed, skipped] = [0, 0, 0];
        await runFamily([name, byName.get(name)], run);
        if (process.connected) process.send({ passed, failed, skipped });
      });
    });
    process.send({ passed: 0, failed: 0, skipped: 0 });
  });
}

/** Starts this program again, `jobs` times, and sends each process one family after the other. */
async function share(families, jobs) {
  const left = families.map(([name]) => name), seconds = [];
  await Promise.all(Array.from({ length: jobs }, () => new Promise((ended) => {
    const child = fork(process.argv[1], process.argv.slice(2));
    let name, began;
    child.on("message", (counts) => {
      if (name !== undefined) seconds.push([name, (Date.now() - began) / 1000]);
      [passed, failed, skipped] = [passed + counts.passed, failed + counts.failed, skipped + counts.skipped];
      [name, began] = [left.shift(), Date.now()];
      if (name === undefined) child.disconnect();
      else child.send(name);
    });
    child.on("exit", (status, signal) => {
      if (name !== undefined) fail(name, `the process of the family ended with ${signal ?? `status ${status}`}`);
      ended();
    });
  })));
  for (const name of left) fail(name, "no process was left to run the family");
  console.log(`longest: ${seconds.sort((a, b) => b[1] - a[1]).slice(0, 8).map(([name, n]) => `${name} ${n.toFixed(0)} s`).join(", ")}`);
}

/** Runs each family of the directory whose name contains one of the words, or all of them if there are no words, `jobs` at a time.
 *  `start` makes what families need and returns [run, stop]: `run` is called with each family, and `stop` at the end. A word that selects no
 *  family fails. */
export async function runFamilies(directory, words, jobs, start) {
  const all = await familiesOf(directory), isNamed = (name, word) => name.slice("test".length).toLowerCase().includes(word.toLowerCase());
  const families = all.filter(([n]) => words.length === 0 || words.some((word) => isNamed(n, word)));
  if (!isShared) {
    for (const word of words.filter((w) => !all.some(([name]) => isNamed(name, w))))
      fail(word, `no family of tests has a name that contains it; there are ${all.map(([name]) => name.slice("test".length).toLowerCase()).join(", ")}`);
    if (jobs > 1 && families.length > 1) return share(families, Math.min(jobs, families.length));
  }
  const [run, stop] = await start();
  try {
    if (isShared) await runSent(families, run);
    else for (const family of families) await runFamily(family, run);
  } finally {
    await stop();
  }
  if (isShared) process.exit(0);
}

/** Prints the counts in the form that tests/run reads, and ends the process. */
export function report() {
  console.log(`${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ""}`);
  process.exit(failed ? 1 : 0);
}
