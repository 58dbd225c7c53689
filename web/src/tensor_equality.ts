/** Compares the values of two tensors with different names bit by bit, in slices, as a diff does for equal names. */
import type { Checkpoint } from "../../wasm/tessera.js";

type Readable = Pick<Checkpoint, "read">;
const MOST_ELEMENTS = 1 << 20;

/** Yields slices, as texts, that together cover a shape. None has more than `most` elements. */
export function* slicesOf(shape: readonly number[], most = MOST_ELEMENTS): Generator<string> {
  if (shape.some((s) => s === 0)) return;
  let cut = 0, inner = shape.slice(1).reduce((a, b) => a * b, 1);
  while (inner > most) inner /= shape[++cut] ?? 1;
  const outer = shape.slice(0, cut), step = Math.max(1, Math.floor(most / inner)), size = shape[cut] ?? 1;
  const count = outer.reduce((a, b) => a * b, 1);
  for (let n = 0; n < count; n++) {
    let rest = n;
    const at = [...outer].reverse().map((s) => { const i = rest % s; rest = Math.floor(rest / s); return `${i}:${i + 1}`; }).reverse();
    for (let from = 0; from < size; from += step) yield [...at, `${from}:${Math.min(from + step, size)}`].join(",");
  }
}

/** Returns how many elements differ. Both tensors have this shape and the same dtype. */
export function differingElements(a: Readable, nameA: string, b: Readable, nameB: string, shape: readonly number[]): number {
  let differing = 0;
  for (const slice of shape.length ? slicesOf(shape) : [undefined]) {
    const x = a.read(nameA, slice).data, y = b.read(nameB, slice).data;
    const bytesX = new Uint8Array(x.buffer, x.byteOffset, x.byteLength), bytesY = new Uint8Array(y.buffer, y.byteOffset, y.byteLength);
    const elements = slice === undefined ? 1 : x.length, unit = x.byteLength / Math.max(1, elements);
    for (let i = 0; i < elements; i++) {
      for (let at = i * unit; at < (i + 1) * unit; at++) if (bytesX[at] !== bytesY[at]) { differing++; break; }
    }
  }
  return differing;
}
