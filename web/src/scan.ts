/** Looks at the values of every tensor, in the worker: NaN, Inf, and tensors that are all zero or have only one value. */
import type { Checkpoint, MappedCheckpoint } from "../../wasm/tessera.js";
import type { Leaf } from "./entry_tree";
import type { Scan, Statistics, Tally } from "./protocol";
import { isOptimizerName } from "./split";

const STEP_BYTES = 8 << 20;

export function tallyOf(checkpoint: MappedCheckpoint, entry: number): Tally {
  const job = checkpoint.tally(entry);
  try {
    while (job.step(STEP_BYTES));
    return JSON.parse(job.document()) as Tally;
  } finally {
    job.close();
  }
}

export function scanned(checkpoint: Checkpoint, leaves: readonly Leaf[]): Scan {
  const suspects: Scan["suspects"][number][] = [], skipped: Scan["skipped"][number][] = [];
  const tensors = leaves.filter((l) => l.kind === "tensor" && l.elements > 0);
  for (const { entry, fqn, dtypes } of tensors) {
    try {
      const { count, zero, nan, inf, min, max } = tallyOf(checkpoint, entry);
      if (count === 0) skipped.push({ fqn, why: `statistics of ${dtypes.join()} are not supported` });
      const is = count > 0 && zero === count ? "all zero" : count > 1 && nan === 0 && min === max ? "constant" : undefined;
      if (nan || inf || is) suspects.push({ fqn, nan, inf, is });
    } catch (e) {
      skipped.push({ fqn, why: e instanceof Error ? e.message : String(e) });
    }
  }
  return { suspects, scanned: tensors.length - skipped.length, skipped };
}

/** Of each floating-point tensor, optimizer state aside. */
export const statisticsOf = (checkpoint: Checkpoint, leaves: readonly Leaf[]): Statistics =>
  leaves.filter(({ kind, elements, fqn, dtypes }) => kind === "tensor" && elements > 0 && dtypes.every((d) => /float/.test(d)) && !isOptimizerName(fqn)).flatMap(({ entry, fqn }) => {
    const { count, nan, inf, mean, std } = tallyOf(checkpoint, entry), number = (v: typeof mean) => typeof v === "number" ? v : 0;
    return count ? [{ fqn, count: count - nan - inf, mean: number(mean), std: number(std), bad: nan + inf }] : [];
  });
