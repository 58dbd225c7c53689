/** Compares the outline with a tree and a filter that are built here from names alone. */
import path from "node:path";
import { check, test } from "../support/harness.mjs";

const walk = (outline) => outline.rows(0, outline.count);

/** Returns the rows when everything is opened and unfolded, in order. Runs of similar siblings are unfolded first. */
function openAll(outline) {
  outline.act(0, "open-all");
  for (let folded = true; folded;) {
    const row = walk(outline).find((r) => r.folded);
    folded = row !== undefined;
    if (row) outline.act(row.node, "unfold");
  }
  return walk(outline);
}

function expectTotals(rows, entries) {
  const leaves = rows.filter((r) => r.entry !== undefined);
  check(leaves.length === entries.length, `${leaves.length} leaves of ${entries.length} entries`);
  for (const leaf of leaves) check(entries[leaf.entry].fqn === leaf.fqn, `entry ${leaf.entry} is called ${leaf.fqn}`);
  const top = rows.filter((r) => r.depth === 1);
  const bytes = top.reduce((sum, r) => sum + r.bytes, 0);
  check(bytes === entries.reduce((sum, e) => sum + (e.bytes ?? 0), 0), "the bytes of the top rows are not those of the entries");
  for (let i = 0; i < rows.length; i++) {
    let below = rows[i].entry === undefined ? 0 : 1;
    for (let j = i + 1; j < rows.length && rows[j].depth > rows[i].depth; j++) below += rows[j].entry === undefined ? 0 : 1;
    check(below === rows[i].entries, `${rows[i].name}: ${rows[i].entries} entries, there are ${below}`);
  }
}

const filters = [
  ["weight", (e) => e.fqn.toLowerCase().includes("weight")],
  ["WEIGHT -bias", (e) => e.fqn.toLowerCase().includes("weight") && !e.fqn.includes("bias")],
  ["kind:object", (e) => e.kind === "object"],
  ["dtype:float32", (e) => e.kind === "tensor" && e.dtype.includes("float32")],
  ["dtype:b*16", (e) => e.kind === "tensor" && /^b.*16$/.test(e.dtype)],
  [">1KB", (e) => e.kind === "tensor" && e.bytes > 1000],
  ["<=1KiB kind:tensor", (e) => e.kind === "tensor" && e.bytes <= 1024],
  ["shape:*x8", (e) => e.kind === "tensor" && (e.shapes ?? [e.shape]).some((s) => s?.length === 2 && s[1] === 8)],
  ["file:__0", (e) => e.kind === "tensor" && e.chunks.some((c) => c.file?.includes("__0"))],
  ["**.weight", (e) => e.fqn.endsWith(".weight")],
];

export function testOutlines({ root, targets, withOpened }) {
  for (const target of targets) {
    test(`${path.relative(root, target)} outline`, () => {
      let entries;
      try {
        entries = withOpened(target, (opened) => JSON.parse(opened.document("inspect")).entries);
      } catch {
        return; /* other tests check errors */
      }
      withOpened(target, (opened) => {
        const outline = opened.outline();
        expectTotals(openAll(outline), entries);
        for (const [text, keeps] of filters) {
          /* the document does not list their files */
          if (text.startsWith("file:") && entries.some((e) => e.kind === "object")) continue;
          const want = entries.map((e, i) => [e, i]).filter(([e]) => keeps(e)).map(([, i]) => i).sort((a, b) => a - b);
          check(outline.filter(text) === want.length, `filter ${text}: ${outline.filter(text)} entries, expected ${want.length}`);
          const got = walk(outline).filter((r) => want.includes(r.entry)).length;
          check(got === want.length, `filter ${text} shows ${got} of ${want.length}`);
        }
        outline.filter("");
        const objects = openAll(opened.outline({ objectsOnly: true })).filter((r) => r.entry !== undefined).map((r) => r.fqn).sort();
        const want = entries.filter((e) => e.kind !== "tensor").map((e) => e.fqn).sort();
        check(JSON.stringify(objects) === JSON.stringify(want), "the outline of objects has other entries");
        for (let e = 0; e < Math.min(entries.length, 20); e++) {
          outline.act(0, "close-all");
          outline.act(0, "open");
          const row = outline.reveal(e);
          check(outline.rows(row, 1)[0].fqn === entries[e].fqn, `row ${row} is not ${entries[e].fqn}`);
        }
      });
    });
  }
}
