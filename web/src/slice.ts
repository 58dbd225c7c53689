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
