/** Runs tests and counts them. */
let passed = 0, failed = 0, skipped = 0;

export function check(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

export async function test(name, body) {
  try {
    await body();
    passed++;
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}: ${String(e.message).slice(0, 1500)}`);
  }
}

export function skip(name, why) {
  skipped++;
  console.log(`SKIP ${name}: ${why}`);
}

export function report() {
  console.log(`${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ""}`);
  process.exitCode = failed ? 1 : 0;
}
