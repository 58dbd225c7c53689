/** The text of a slice, as between the brackets of `tessera get`. Pure. */
import type { Chunk, TensorDetail } from "./protocol";
import { shardMap } from "./shardmap";

export const MOST_SLICE = 1 << 22;

/** A box of which every element is in one chunk. */
interface Readable { readonly offsets: readonly number[]; readonly sizes: readonly number[]; readonly isAll: boolean }
/** Of a tensor with more chunks, only these are searched for one that can be read. */
const MOST_SEARCHED = 64;

const overlap = (a: Chunk, b: Chunk): boolean => a.offsets.every((at, d) => Math.max(at, b.offsets[d] ?? 0) < Math.min(at + (a.sizes[d] ?? 0), (b.offsets[d] ?? 0) + (b.sizes[d] ?? 0)));

/** Returns what can be read of a tensor: all of it, or if its chunks leave holes or overlap, the first chunk that overlaps no other. Undefined
 *  if there is none. */
export function readableOf({ shape, chunks }: TensorDetail): Readable | undefined {
  const { gaps, overlaps } = shardMap(shape, chunks);
  if (gaps.length + overlaps.length === 0) return { offsets: shape.map(() => 0), sizes: shape, isAll: true };
  const found = chunks.slice(0, MOST_SEARCHED).find((c) => c.file !== null && c.sizes.every((size) => size > 0) && !chunks.some((other) => other !== c && overlap(c, other)));
  return found && { ...found, isAll: false };
}

/** Returns the slice that is shown first: a corner of the last two dimensions of what can be read, or as much of a vector. */
export function firstSlice(detail: TensorDetail): string {
  const { shape } = detail, side = shape.length === 1 ? 4096 : 64, { offsets, sizes } = readableOf(detail) ?? { offsets: [], sizes: shape };
  return alongText(shape.map((_, d) => {
    const from = offsets[d] ?? 0;
    return d + 2 >= shape.length ? { from, to: from + Math.min(side, sizes[d] ?? 0) } : { at: from };
  }), shape);
}

const bound = (text: string | undefined, otherwise: number, size: number): number => {
  if (!text) return otherwise;
  const n = Number(text);
  return Math.max(0, Math.min(size, n < 0 ? size + n : n));
};

/** What a slice selects along one dimension: one index, which removes the dimension, or a range. */
export type Along = { readonly at: number } | { readonly from: number; readonly to: number };

/** Returns what a slice selects along each dimension; undefined if the module has to report what is wrong with it. */
export function alongOf(text: string, shape: readonly number[]): Along[] | undefined {
  const parts = text.trim() === "" ? [] : text.split(",").map((p) => p.trim());
  if (parts.length > shape.length || !parts.every((part) => /^(-?\d*:-?\d*|-?\d+)$/.test(part))) return undefined;
  return shape.map((size, d) => {
    const part = parts[d] ?? ":", [from, to] = part.split(":");
    return to !== undefined ? { from: bound(from, 0, size), to: bound(to, size, size) } : { at: Number(part) < 0 ? size + Number(part) : Number(part) };
  });
}

/** Returns the number of elements of a slice; undefined if the module has to report what is wrong with it. */
export const elementsOfSlice = (text: string, shape: readonly number[]): number | undefined =>
  alongOf(text, shape)?.reduce((count, a) => "at" in a ? count : count * Math.max(0, a.to - a.from), 1);

export const alongText = (along: readonly Along[], shape: readonly number[]): string =>
  along.map((a, d) => "at" in a ? String(a.at) : a.from === 0 && a.to === shape[d] ? ":" : `${a.from}:${a.to}`).join(",");

/** The names of the rows and columns of what a slice selects: their indices in the tensor. A row of more than two dimensions has several. */
export function indicesOf(shape: readonly number[], along: readonly Along[] | undefined): { readonly row: (r: number) => string; readonly column: (c: number) => string } {
  const starts = along?.flatMap((a) => "at" in a ? [] : [a.from]) ?? shape.map(() => 0), outer = shape.slice(0, -1);
  const row = (r: number): string => {
    const at: number[] = [];
    for (let d = outer.length - 1, rest = r; d >= 0; d--) { const size = outer[d] ?? 1; at.unshift(rest % size + (starts[d] ?? 0)); rest = Math.floor(rest / size); }
    return at.join(",");
  };
  return { row, column: (c) => String(c + (starts[outer.length] ?? 0)) };
}

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
