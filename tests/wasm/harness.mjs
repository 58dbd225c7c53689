/** Counts. */
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

export function report() {
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}
