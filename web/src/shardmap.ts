/** Counts in how many chunks each element of a tensor is, along two of its dimensions. The borders of all chunks divide the
 *  plane into cells. A cell is full if the chunks over it contain the whole extent of all dimensions that are not shown. */
import type { Chunk, Sharding, TensorDetail } from "./protocol";
import { exactText, plural } from "./text";

export interface Box { readonly x: number; readonly y: number; readonly width: number; readonly height: number }
interface ShardMap {
  /** The dimensions that are shown; -1 if the tensor does not have that many. */
  readonly dims: readonly [number, number];
  readonly columns: number;
  readonly rows: number;
  readonly chunks: readonly Box[];
  readonly gaps: readonly Box[];
  readonly overlaps: readonly Box[];
  /** Whether no gaps and overlaps mean that there are none: in the dimensions that are not shown, they can cancel out. */
  readonly isExact: boolean;
}

const MOST_CELLS = 1 << 18;

/** Returns the two dimensions that are divided most, in their order. A single dimension is shown horizontally. */
function dimsOf(shape: readonly number[], chunks: readonly Chunk[]): [number, number] {
  if (shape.length === 0) return [-1, -1];
  if (shape.length === 1) return [-1, 0];
  const cuts = shape.map((_, d) => new Set(chunks.map((c) => c.offsets[d])).size);
  const order = shape.map((_, d) => d).sort((a, b) => (cuts[b] ?? 0) - (cuts[a] ?? 0) || (shape[b] ?? 0) - (shape[a] ?? 0));
  const [first = 0, second = 1] = order;
  return first < second ? [first, second] : [second, first];
}

function span(list: readonly number[], dim: number, otherwise: number): number {
  return dim < 0 ? otherwise : list[dim] ?? otherwise;
}

function bordersOf(boxes: readonly Box[], from: (b: Box) => number, size: (b: Box) => number, end: number): number[] {
  const borders = new Set([0, end]);
  for (const b of boxes) {
    borders.add(Math.min(from(b), end));
    borders.add(Math.min(from(b) + size(b), end));
  }
  return [...borders].sort((a, b) => a - b);
}

function cellsOf(boxes: readonly Box[], weights: readonly number[], columns: number, rows: number): { gaps: Box[]; overlaps: Box[]; isCounted: boolean } {
  const xs = bordersOf(boxes, (b) => b.x, (b) => b.width, columns), ys = bordersOf(boxes, (b) => b.y, (b) => b.height, rows);
  const across = xs.length - 1, down = ys.length - 1;
  const gaps: Box[] = [], overlaps: Box[] = [];
  if (across * down > MOST_CELLS) return { gaps, overlaps, isCounted: false };
  const column = new Map(xs.map((x, i) => [x, i])), row = new Map(ys.map((y, i) => [y, i]));
  const cover = new Float64Array(across * down);
  boxes.forEach((b, n) => {
    const x1 = column.get(Math.min(b.x + b.width, columns)) ?? 0, y1 = row.get(Math.min(b.y + b.height, rows)) ?? 0;
    for (let y = row.get(Math.min(b.y, rows)) ?? 0; y < y1; y++) {
      for (let x = column.get(Math.min(b.x, columns)) ?? 0; x < x1; x++) cover[y * across + x] = (cover[y * across + x] ?? 0) + (weights[n] ?? 0);
    }
  });
  for (let y = 0; y < down; y++) {
    for (let x = 0; x < across; x++) {
      const held = cover[y * across + x] ?? 0;
      if (Math.abs(held - 1) < 1e-9) continue;
      const [left = 0, right = 0, top = 0, bottom = 0] = [xs[x], xs[x + 1], ys[y], ys[y + 1]];
      (held < 1 ? gaps : overlaps).push({ x: left, y: top, width: right - left, height: bottom - top });
    }
  }
  return { gaps, overlaps, isCounted: true };
}

/** Returns what the chunks contain of their tensor, and how many of its elements are in chunks that `isAway`. `isSound`: the
 *  core found neither holes nor overlaps. */
export function coverageText(detail: TensorDetail, { gaps, overlaps, isExact }: ShardMap, isAway: (chunk: Chunk) => boolean, isSound: boolean): string {
  const product = (sizes: readonly number[]) => sizes.reduce((n, s) => n * s, 1), elements = product(detail.shape), { chunks } = detail;
  if (elements === 0) return "the tensor has no elements";
  if (gaps.length || overlaps.length) return [gaps.length ? "some elements are not in any chunk (red)" : "", overlaps.length ? "some are in several chunks (orange)" : ""].filter(Boolean).join(", ");
  if (!isExact && !isSound) return "Problems lists holes and overlaps";
  const away = chunks.filter(isAway), lacking = away.reduce((n, c) => n + product(c.sizes), 0), would = away.length ? "would cover" : "cover";
  return `${chunks.length === 1 ? `it ${would}${away.length ? "" : "s"} every element` : `the chunks ${would} every element once`}${away.length && away.length < chunks.length ? `; ${exactText(lacking)} of ${plural(elements, "element")} are missing` : ""}`;
}

export function shardMap(shape: readonly number[], chunks: readonly Chunk[]): ShardMap {
  const dims = dimsOf(shape, chunks);
  const [down, across] = dims;
  const rows = span(shape, down, 1), columns = span(shape, across, 1);
  const boxes = chunks.map((c): Box => ({ x: span(c.offsets, across, 0), y: span(c.offsets, down, 0), width: span(c.sizes, across, 1), height: span(c.sizes, down, 1) }));
  const weights = chunks.map((c) => shape.reduce((w, size, d) => d === down || d === across ? w : w * (c.sizes[d] ?? 0) / size, 1));
  const { gaps, overlaps, isCounted } = cellsOf(boxes, weights, columns, rows);
  return { dims, columns, rows, chunks: boxes, gaps, overlaps, isExact: isCounted && weights.every((w) => w === 1) };
}

/** Says how a tensor is divided: "2 on dim 0", "2 × 4 on dims 0, 1", or "4 chunks" if they are not a grid. */
export function shardingOf(shape: readonly number[], chunks: readonly Chunk[], mostBoxes: number): Sharding {
  const cuts = shape.map((_, d) => new Set(chunks.map((c) => c.offsets[d])).size), grid = cuts.reduce((n, c) => n * c, 1);
  const dims = cuts.flatMap((n, d) => n > 1 ? [d] : []), isGrid = grid === chunks.length && dims.length > 0;
  const [down, across] = dimsOf(shape, chunks), rows = Math.max(1, span(shape, down, 1)), columns = Math.max(1, span(shape, across, 1));
  return {
    text: isGrid ? `${dims.map((d) => exactText(cuts[d] ?? 0)).join(" × ")} on ${dims.length === 1 ? "dim" : "dims"} ${dims.join(", ")}` : plural(chunks.length, "chunk"),
    boxes: chunks.slice(0, mostBoxes).map((c) => [span(c.offsets, across, 0) / columns, span(c.offsets, down, 0) / rows, span(c.sizes, across, 1) / columns, span(c.sizes, down, 1) / rows]),
  };
}
