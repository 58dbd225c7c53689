/** Runs tests and counts them. */
let passed = 0, failed = 0;

export function check(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

export function test(name, body) {
  try {
    body();
    passed++;
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}: ${e.message}`);
  }
}

export async function testAsync(name, body) {
  try {
    await body();
    passed++;
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}: ${e.message}`);
  }
}

/** Compares two texts, or with `read` the values that it makes of them. */
export function same(native, wasm, what, read = undefined) {
  const [a, b] = read ? [native, wasm].map((t) => JSON.stringify(read(t))) : [native, wasm];
  if (a === b) return;
  const n = [...a].findIndex((c, i) => c !== b[i]);
  throw new Error(`${what} differ at character ${n}: native …${a.slice(Math.max(0, n - 60), n + 60)}… wasm …${b.slice(Math.max(0, n - 60), n + 60)}…`);
}

/** Returns a function that opens what `sourceOf(target)` returns, calls `body` with the checkpoint, and closes both. */
export function opener(tessera, sourceOf) {
  return (target, body, options = {}) => {
    const source = sourceOf(target);
    let opened;
    try {
      opened = tessera.open(source.files, { ...source.options, ...options });
      return body(opened);
    } finally {
      opened?.close();
      source.close();
    }
  };
}

export function errorOf(body) {
  try {
    body();
  } catch (e) {
    return e;
  }
  throw new Error("nothing was refused");
}

export function report() {
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}
