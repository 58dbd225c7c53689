/** Reads the values of a tensor, or of a slice of it, as a typed array. */

import { argumentOf } from "./options.js";

const PART_BYTES = 32 + 3 * 64 * 8 + 8; // tessera_part: numbers, offsets, sizes, shape, and the result's dimensions
const SLICE_SHAPE = 32 + 2 * 64 * 8;
const READ_BYTES = 4 << 20;

/** The arrays that hold elements. All dtypes that are not listed are returned as bytes. */
const ARRAYS = {
  float64: Float64Array, float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, complex32: Uint16Array, bcomplex32: Uint16Array, complex64: Float32Array, complex128: Float64Array,
  int64: BigInt64Array, int32: Int32Array, int16: Int16Array, int8: Int8Array, uint64: BigUint64Array, uint32: Uint32Array, uint16: Uint16Array,
};

/** Returns { dtype, shape, data }. `slice` is a text, or undefined. */
export function readValues(m, handle, fqn, slice) {
  const texts = slice === undefined ? [fqn] : [fqn, argumentOf("read", "slice", slice, "text")];
  const part = m.room(PART_BYTES);
  try {
    m.withTexts(texts, (args) => m.checked((err) => m.x.tessera_part_of(handle, ...(slice === undefined ? [...args, 0, 0] : args), part, err)));
    const view = new DataView(m.x.memory.buffer, part, PART_BYTES), u64 = (at) => Number(view.getBigUint64(at, true));
    const dtype = m.text(m.x.tessera_dtype_name(view.getUint32(4, true))), unit = view.getUint32(16, true), whole = view.getUint32(12, true) === 2;
    const shape = Array.from({ length: view.getUint32(PART_BYTES - 8, true) }, (_, i) => u64(SLICE_SHAPE + 8 * i));
    const bytes = readPart(m, handle, part, { count: u64(24), unit, whole });
    return { dtype, shape, data: new (ARRAYS[dtype] ?? Uint8Array)(bytes.buffer) };
  } finally {
    m.x.tessera_release(part);
  }
}

/** Reads in pieces of 4 MiB, unless elements are smaller than bytes: those are read in one piece. */
function readPart(m, handle, part, { count, unit, whole }) {
  const all = new Uint8Array(count * unit), most = whole ? count : Math.floor(READ_BYTES / unit);
  if (!count) return all;
  const piece = m.room(Math.min(count, most) * unit);
  try {
    for (let first = 0; first < count; first += most) {
      const taken = Math.min(most, count - first);
      m.checked((err) => m.x.tessera_read(handle, part, BigInt(first), taken, piece, err));
      all.set(new Uint8Array(m.x.memory.buffer, piece, taken * unit), first * unit);
    }
  } finally {
    m.x.tessera_release(piece);
  }
  return all;
}
