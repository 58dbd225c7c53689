/** Moves the data of the linked module. The data that the first file needs come first, so that each file has few segments.
 *  Strings come after the rest, with similar ones near each other, for gzip. A string that is the end of another one is
 *  stored inside it. */
import { nearAlike } from "./alike.mjs";
import { bodiesOf, KINDS_OF_NAMES, namesOf, segmentsOf } from "./object_file.mjs";

const ADDRESS = { unsigned: 3, signed: 4, word: 5 }; // the kinds of relocations
const IS_ALIGNED = (address, power) => address % 2 ** power === 0;

/** Read and write a number in five bytes, as the linker leaves it with -O0. */
function readPadded(bytes, at) {
  if (![0, 1, 2, 3].every((i) => bytes[at + i] & 128) || bytes[at + 4] & 128) throw new Error("the linker has shortened an address");
  return [4, 3, 2, 1, 0].reduce((value, i) => (value << 7) | (bytes[at + i] & 127), 0);
}
function writePadded(bytes, at, value, isSigned) {
  for (let i = 0; i < 4; i++) bytes[at + i] = ((value >>> (7 * i)) & 127) | 128;
  bytes[at + 4] = (isSigned ? value >> 28 : value >>> 28) & 127;
}

/** Adds to each address in `bytes` the distance by which its target has moved. */
function patch(bytes, references, movedBy) {
  for (const { at, kind, to } of references) {
    const by = to?.kind === "data" ? movedBy.get(to) : undefined;
    if (!by) continue;
    if (kind === ADDRESS.word) bytes.writeUInt32LE((bytes.readUInt32LE(at) + by) >>> 0, at);
    else if (kind === ADDRESS.unsigned || kind === ADDRESS.signed) writePadded(bytes, at, readPadded(bytes, at) + by, kind === ADDRESS.signed);
    else throw new Error(`a relocation of kind ${kind} refers to data`);
  }
}

/** Finds strings that are inside others, as a map to { of, skip }. What the first file needs is only inside strings that it
 *  also needs. */
function insideOthers(strings, isLate) {
  const ends = new Map(), inside = new Map(), rank = (s) => (isLate(s) ? 1 : 0);
  for (const string of [...strings].sort((a, b) => rank(a) - rank(b) || b.bytes.length - a.bytes.length)) {
    const text = string.bytes.toString("latin1");
    if (ends.has(text)) inside.set(string, ends.get(text));
    else for (let skip = 0; skip < text.length; skip++) if (!ends.has(text.slice(skip))) ends.set(text.slice(skip), { of: string, skip });
  }
  return inside;
}

/** Moves all data of `whole` except what is zero initially. Returns the bytes and the segments: { bytes, placed: [{ address,
 *  bytes, isLate }] }. */
export function withDataPlaced(whole, { functions, segments }, isLate) {
  const bytes = Buffer.from(whole), old = new Map(), labels = namesOf(bytes, KINDS_OF_NAMES.segments);
  segmentsOf(bytes).forEach((segment, i) => old.set(labels.get(i), segment));
  const present = segments.filter((s) => old.has(s.segment)).sort((a, b) => old.get(a.segment).address - old.get(b.segment).address);
  if (present.length !== labels.size) throw new Error("there are data that the object file does not have");
  const strings = present.filter((s) => s.isString), inside = insideOthers(strings, isLate);
  const begin = old.get(present[0].segment).address, last = old.get(present.at(-1).segment), end = last.address + last.bytes.length;
  const places = new Map();
  let next = begin;
  for (const late of [false, true]) {
    const own = strings.filter((s) => isLate(s) === late && !inside.has(s)), alike = own.length ? nearAlike(own.map((s) => s.bytes), [0]).map((i) => own[i]) : [];
    for (const segment of [...present.filter((s) => !s.isString && isLate(s) === late), ...alike]) {
      while (!IS_ALIGNED(next, segment.alignment)) next++;
      places.set(segment, next);
      next += segment.bytes.length;
    }
  }
  if (next > end) throw new Error("the data take more room than before");
  for (const [segment, { of, skip }] of inside) places.set(segment, places.get(of) + skip);

  const movedBy = new Map(present.map((s) => [s, places.get(s) - old.get(s.segment).address]));
  const bodies = bodiesOf(bytes), names = namesOf(bytes, KINDS_OF_NAMES.functions), imported = Math.max(...names.keys()) + 1 - bodies.length;
  const bodyOf = new Map([...names].map(([number, name]) => [name, bodies[number - imported]]));
  for (const { name, references } of functions) if (bodyOf.get(name)) patch(bodyOf.get(name), references, movedBy);
  for (const segment of present) patch(old.get(segment.segment).bytes, segment.references, movedBy);
  const placed = present.filter((s) => !inside.has(s)).map((s) => ({ address: places.get(s), bytes: old.get(s.segment).bytes, isLate: isLate(s) }));
  return { bytes, placed: placed.sort((a, b) => a.address - b.address) };
}
