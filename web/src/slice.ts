/** The text of a slice, as between the brackets of `tessera get`. Pure. */
export const MOST_SLICE = 1 << 22;

/** Returns the slice that is shown first: a corner of the last two dimensions. */
export function firstSlice(shape: readonly number[], side = 64): string {
  return shape.map((size, d) => d + 2 >= shape.length ? (size > side ? `0:${side}` : ":") : "0").join(",");
}

const bound = (text: string | undefined, otherwise: number, size: number): number => {
  if (!text) return otherwise;
  const n = Number(text);
  return Math.max(0, Math.min(size, n < 0 ? size + n : n));
};

/** Returns the number of elements of a slice; undefined if the module has to report what is wrong with it. */
export function elementsOfSlice(text: string, shape: readonly number[]): number | undefined {
  const parts = text.trim() === "" ? [] : text.split(",").map((p) => p.trim());
  if (parts.length > shape.length) return undefined;
  let count = 1;
  for (const [d, size] of shape.entries()) {
    const part = parts[d] ?? ":", [, from, to] = /^(-?\d*):(-?\d*)$/.exec(part) ?? [];
    if (from !== undefined) count *= Math.max(0, bound(to, size, size) - bound(from, 0, size));
    else if (!/^-?\d+$/.test(part)) return undefined;
  }
  return count;
}

/** What a slice selects along one dimension: one index, which removes the dimension, or a range. */
export type Along = { readonly at: number } | { readonly from: number; readonly to: number };

/** Returns what a slice selects along each dimension; undefined if the module has to report what is wrong with it. */
export function alongOf(text: string, shape: readonly number[]): Along[] | undefined {
  if (elementsOfSlice(text, shape) === undefined) return undefined;
  const parts = text.trim() === "" ? [] : text.split(",").map((p) => p.trim());
  return shape.map((size, d) => {
    const part = parts[d] ?? ":", [, from, to] = /^(-?\d*):(-?\d*)$/.exec(part) ?? [];
    return from !== undefined ? { from: bound(from, 0, size), to: bound(to, size, size) } : { at: Number(part) < 0 ? size + Number(part) : Number(part) };
  });
}

export const alongText = (along: readonly Along[], shape: readonly number[]): string =>
  along.map((a, d) => "at" in a ? String(a.at) : a.from === 0 && a.to === shape[d] ? ":" : `${a.from}:${a.to}`).join(",");

/** Moves a slice along a dimension: an index by one, a range by its length. Stays within the tensor. */
export function moved(along: readonly Along[], dim: number, by: 1 | -1, shape: readonly number[]): Along[] {
  const size = shape[dim] ?? 0;
  return along.map((a, d) => {
    if (d !== dim) return a;
    if ("at" in a) return { at: Math.max(0, Math.min(size - 1, a.at + by)) };
    const length = a.to - a.from, from = Math.max(0, Math.min(size - length, a.from + by * length));
    return { from, to: from + length };
  });
}
