/** Separates the weights of a checkpoint from optimizer state, judged by the first two components of names. */
import type { Outline } from "../../wasm/tessera.js";

export interface Amount { readonly elements: number; readonly bytes: number }

const OPTIMIZER = /^(optim|optimizer|opt)(_?states?|s)?(_?\d+)?$/i;
const MOST_ROWS = 20_000;

/** Returns how much of the outline is optimizer state. Closes the outline. */
export function optimizerOf(outline: Outline): Amount {
  try {
    outline.act(0, "close-all");
    for (const top of outline.rows(0, MOST_ROWS).reverse()) if (top.group && !OPTIMIZER.test(top.name)) outline.act(top.node, "open");
    const rows = outline.rows(0, MOST_ROWS), isState = rows.some((r) => r.depth === 1 && r.name === "param_groups");
    let elements = 0, bytes = 0, isWithin = false;
    for (const row of rows) {
      if (row.depth === 1) isWithin = OPTIMIZER.test(row.name) || (isState && row.name === "state");
      if (!(row.depth === 1 ? isWithin : row.depth === 2 && !isWithin && OPTIMIZER.test(row.name))) continue;
      const alike = row.folded ? row.run : 1;
      elements += row.elements * alike;
      bytes += row.bytes * alike;
    }
    return { elements, bytes };
  } finally {
    outline.close();
  }
}
