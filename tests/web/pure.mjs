/** The shard map's gaps and overlaps against counting every element; numbers as text. */
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { root } from "./browser.mjs";
import { check, test } from "./harness.mjs";

async function load(file) {
  const { transformSync } = createRequire(createRequire(path.join(root, "web/package.json")).resolve("vite"))("esbuild");
  const { code } = transformSync(fs.readFileSync(path.join(root, "web/src", file), "utf8"), { loader: "ts", format: "esm" });
  return import(`data:text/javascript,${encodeURIComponent(code)}`);
}

function random(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state % below;
  };
}

function randomChunks(next, shape) {
  return Array.from({ length: next(6) }, () => {
    const offsets = shape.map((s) => next(s + 1));
    return { offsets, sizes: shape.map((s, d) => next(s - offsets[d] + 1)), file: null, byte_offset: 0, byte_length: 0 };
  });
}

/** Of each place in the plane: the least and most chunks that hold one of the elements behind it, and their sum. */
function counted(shape, chunks, [down, across]) {
  const all = shape.reduce((list, s) => list.flatMap((at) => Array.from({ length: s }, (_, i) => [...at, i])), [[]]);
  const plane = new Map();
  for (const at of all) {
    const held = chunks.filter((c) => at.every((x, d) => x >= c.offsets[d] && x < c.offsets[d] + c.sizes[d])).length;
    const key = `${down < 0 ? 0 : at[down]},${across < 0 ? 0 : at[across]}`;
    const cell = plane.get(key) ?? { sum: 0, n: 0 };
    plane.set(key, { sum: cell.sum + held, n: cell.n + 1 });
  }
  return plane;
}

const within = (boxes, y, x) => boxes.some((b) => x >= b.x && x < b.x + b.width && y >= b.y && y < b.y + b.height);

export async function testPure() {
  const { shardMap } = await load("shardmap.ts");
  const text = await load("text.ts");
  await test("the shard map shows every gap and overlap", () => {
    const next = random(7);
    for (let round = 0; round < 400; round++) {
      const shape = Array.from({ length: next(4) }, () => 1 + next(5));
      const chunks = randomChunks(next, shape);
      const map = shardMap(shape, chunks);
      for (const [key, { sum, n }] of counted(shape, chunks, map.dims)) {
        const [y, x] = key.split(",").map(Number), where = `${JSON.stringify(shape)} ${JSON.stringify(chunks)} at ${key}`;
        check(within(map.gaps, y, x) === sum < n, `a gap is wrong: ${where}`);
        check(within(map.overlaps, y, x) === sum > n, `an overlap is wrong: ${where}`);
      }
    }
  });
  await test("sizes and names read well", () => {
    const rows = [[0, "0 B"], [999, "999 B"], [1000, "1.00 kB"], [999_499, "999 kB"], [12_345_678, "12.3 MB"], [812e9, "812 GB"]];
    for (const [bytes, want] of rows) check(text.bytesText(bytes) === want, `${bytes}: ${text.bytesText(bytes)}`);
    check(text.visible("a\u0000b\u202ec") === "a\\u0000b\\u202ec", text.visible("a\u0000b\u202ec"));
    check(text.visible("") === "(empty name)", "an empty name is not visible");
    check(text.countText(7_241_732_096) === "7.24 billion", text.countText(7_241_732_096));
  });
}
