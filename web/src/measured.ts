/** How much two tensors differ as a whole, in the worker: the values that are not finite, the relative error and the cosine. */
import type { MappedCheckpoint } from "../../wasm/tessera.js";
import { Sums } from "./differences";
import { numbersOf } from "./elements";
import { isDense, type Detail, type Measured, type PairOfNames } from "./protocol";
import { tallyOf } from "./scan";
import { slicesOf } from "./tensor_equality";

function count(values: ArrayLike<number>, into: { nan: number; inf: number }): void {
  for (let i = 0; i < values.length; i++) {
    const value = values[i] ?? NaN;
    if (Number.isNaN(value)) into.nan++;
    else if (!Number.isFinite(value)) into.inf++;
  }
}

/** Numbers of this dtype cannot be read one by one here, but can be counted. */
function onlyCounted(sides: readonly [MappedCheckpoint, MappedCheckpoint], pair: PairOfNames): Measured {
  const of = (side: MappedCheckpoint, fqn: string) => {
    const entry = side.find(fqn), { nan, inf } = entry === undefined ? { nan: 0, inf: 0 } : tallyOf(side, entry);
    return { nan, inf };
  };
  return { fqn: pair.fqn, a: of(sides[0], pair.fqn), b: of(sides[1], pair.other) };
}

/** Reads both tensors once, slice by slice. They have the same shape. */
export function measured(sides: readonly [MappedCheckpoint, MappedCheckpoint], pair: PairOfNames): Measured {
  const [a, b] = sides, entry = a.find(pair.fqn), sums = new Sums(), ofA = { nan: 0, inf: 0 }, ofB = { nan: 0, inf: 0 };
  const [detail] = entry === undefined ? [] : (JSON.parse(a.document("entry", { entry })) as { entries: Detail[] }).entries;
  if (!isDense(detail)) return { fqn: pair.fqn, a: ofA, b: ofB };
  for (const slice of detail.shape.length ? slicesOf(detail.shape) : [undefined]) {
    const numbers = (side: MappedCheckpoint, fqn: string) => {
      const { dtype, shape, data } = side.read(fqn, slice);
      return numbersOf({ dtype, shape, buffer: data.buffer as ArrayBuffer });
    };
    const x = numbers(a, pair.fqn), y = numbers(b, pair.other);
    if (!x || !y) return onlyCounted(sides, pair);
    sums.add(x, y);
    count(x, ofA);
    count(y, ofB);
  }
  return { fqn: pair.fqn, a: ofA, b: ofB, relative: sums.relative, cosine: sums.cosine };
}
