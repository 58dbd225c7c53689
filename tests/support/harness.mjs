/** The runner of every test in JavaScript. A suite is a directory whose *.mjs files export families of tests: functions that are named
 *  test…, such as testMaps, and that call `test` for each test. To add a test, add a call of `test` to a family, or export another family;
 *  it is found by its name. Words of the command line select families: `maps remote` runs those whose names contain maps or remote. */
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

let passed = 0, failed = 0, skipped = 0, unfinished = 0;

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

/** Calls `run` with each family of the directory whose name contains one of the words, or with all of them if there are no words. A family
 *  that throws, has no tests, or does not await one fails, and so does a word that selects none. */
export async function runFamilies(directory, words, run) {
  const families = await familiesOf(directory), isNamed = (name, word) => name.slice("test".length).toLowerCase().includes(word.toLowerCase());
  for (const word of words.filter((w) => !families.some(([name]) => isNamed(name, w))))
    fail(word, `no family of tests has a name that contains it; there are ${families.map(([name]) => name.slice("test".length).toLowerCase()).join(", ")}`);
  for (const [name, family] of families.filter(([n]) => words.length === 0 || words.some((word) => isNamed(n, word)))) {
    const before = passed + failed + skipped;
    try {
      await run(family);
    } catch (e) {
      fail(name, e?.stack ?? e);
    }
    if (unfinished > 0) fail(name, "the family ends before its tests; await each test whose body is async");
    if (passed + failed + skipped === before) fail(name, "the family has no tests");
  }
}

/** Prints the counts in the form that tests/run reads, and ends the process. */
export function report() {
  console.log(`${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ""}`);
  process.exit(failed ? 1 : 0);
}
