/** Computes A − B element by element. Pure. */
import { numbersOf, type Elements } from "./elements";

export interface Differences {
  /** float64; NaN if one side is not finite and the other side differs. */
  readonly elements: Elements;
  readonly count: number;
  readonly differing: number;
  /** The largest difference of finite elements. */
  readonly largest: number;
  /** The number of elements that are NaN or infinite on one side and differ. */
  readonly apart: number;
}

export function differencesOf(a: Elements, b: Elements): Differences {
  const [x, y] = [numbersOf(a), numbersOf(b)];
  if (!x || !y) throw new Error(`elements of ${x ? b.dtype : a.dtype} cannot be subtracted here`);
  if (x.length !== y.length) throw new Error("A and B have other shapes here");
  const differences = new Float64Array(x.length);
  let differing = 0, largest = 0, apart = 0;
  for (let i = 0; i < x.length; i++) {
    const [p, q] = [x[i] ?? NaN, y[i] ?? NaN];
    if (Object.is(p, q) || p === q) continue;
    const d = p - q;
    differing++;
    if (Number.isFinite(d)) largest = Math.max(largest, Math.abs(d));
    else apart++;
    differences[i] = Number.isFinite(d) ? d : NaN;
  }
  return { elements: { dtype: "float64", shape: a.shape, buffer: differences.buffer }, count: x.length, differing, largest, apart };
}
