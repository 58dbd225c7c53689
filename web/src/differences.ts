/** Computes A − B element by element. Pure. */
import { numbersOf, type Elements } from "./elements";

export interface Differences {
  /** float64; NaN where a difference has no size. */
  readonly elements: Elements;
  readonly count: number;
  readonly differing: number;
  /** The largest difference that is a number. */
  readonly largest: number;
  /** The number of elements that differ as NaN, as infinity or in the sign of zero. */
  readonly apart: number;
  /** The norm of A − B divided by the norm of B, and the cosine of A and B: of the elements that are finite in both. NaN without
   *  a norm. */
  readonly relative: number;
  readonly cosine: number;
}

/** The sums over the elements of A and B that are finite in both. */
export class Sums {
  #ofA = 0;
  #ofB = 0;
  #both = 0;
  #ofDifference = 0;

  add(x: ArrayLike<number>, y: ArrayLike<number>): void {
    for (let i = 0; i < x.length; i++) {
      const p = x[i] ?? NaN, q = y[i] ?? NaN;
      if (!Number.isFinite(p) || !Number.isFinite(q)) continue;
      this.#ofA += p * p;
      this.#ofB += q * q;
      this.#both += p * q;
      this.#ofDifference += (p - q) ** 2;
    }
  }

  get relative(): number { return Math.sqrt(this.#ofDifference / this.#ofB); }
  get cosine(): number { return this.#both / Math.sqrt(this.#ofA) / Math.sqrt(this.#ofB); }
}

/** Whether the elements with this number have the same bytes. Only for equal dtypes. */
function sameBytes(a: Elements, b: Elements, count: number): (i: number) => boolean {
  const [x, y] = [new Uint8Array(a.buffer), new Uint8Array(b.buffer)], size = x.length / Math.max(1, count);
  return (i) => {
    for (let at = i * size; at < (i + 1) * size; at++) if (x[at] !== y[at]) return false;
    return true;
  };
}

/** 64-bit integers are subtracted as such: as numbers, 2^62 and 2^62 + 1 are equal. */
function subtraction(a: Elements, b: Elements, x: ArrayLike<number>, y: ArrayLike<number>): (i: number) => number {
  if (a.dtype !== b.dtype || !/^u?int64$/.test(a.dtype)) return (i) => (x[i] ?? NaN) - (y[i] ?? NaN);
  const Wide = a.dtype === "int64" ? BigInt64Array : BigUint64Array, [p, q] = [new Wide(a.buffer), new Wide(b.buffer)];
  return (i) => Number((p[i] ?? 0n) - (q[i] ?? 0n));
}

/** Elements of one dtype are compared bit by bit, as by `tessera diff --values`. */
export function differencesOf(a: Elements, b: Elements): Differences {
  const [x, y] = [numbersOf(a), numbersOf(b)];
  if (!x || !y) throw new Error(`elements of ${x ? b.dtype : a.dtype} cannot be subtracted here`);
  if (x.length !== y.length) throw new Error("A and B have other shapes here");
  const differences = new Float64Array(x.length), minus = subtraction(a, b, x, y), isSame = a.dtype === b.dtype ? sameBytes(a, b, x.length) : (i: number) => Object.is(x[i], y[i]);
  const sums = new Sums();
  let differing = 0, largest = 0, apart = 0;
  sums.add(x, y);
  for (let i = 0; i < x.length; i++) {
    if (isSame(i)) continue;
    const d = minus(i), isNumber = Number.isFinite(d) && d !== 0;
    differing++;
    if (isNumber) largest = Math.max(largest, Math.abs(d));
    else apart++;
    differences[i] = isNumber ? d : NaN;
  }
  return { elements: { dtype: "float64", shape: a.shape, buffer: differences.buffer }, count: x.length, differing, largest, apart, relative: sums.relative, cosine: sums.cosine };
}
