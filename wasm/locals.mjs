/** Numbers the local variables of functions for gzip. A function's local variables of one type may have any order. In the
 *  order that is chosen here, the function repeats more of the functions before it. */
import zlib from "node:zlib";
import { bodiesOf, Reader, typesOfFunctions, u32, withBodies } from "./object_file.mjs";

const SEEN = 32768; // the number of bytes that gzip remembers
const NEAR = 1000; // the number of bytes before a function that are compressed with it, so that few bytes have a fair code
const MOST = 24; // the number of local variables of a function that are considered: the most frequent ones
const ROUNDS = 2;

/** What follows an instruction's first byte, by that byte: the number of LEB128 numbers, or how many bytes. */
const NUMBERS = new Map([[0x02, 1], [0x03, 1], [0x04, 1], [0x0c, 1], [0x0d, 1], [0x10, 1], [0x11, 2], [0x23, 1], [0x24, 1], [0x3f, 1], [0x40, 1], [0x41, 1], [0x42, 1]]);
const BYTES = new Map([[0x43, 4], [0x44, 8]]);
const AFTER_FC = [0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 1]; // the conversions that saturate, then memory.init, data.drop, memory.copy, memory.fill
const LOCAL = { get: 0x20, tee: 0x22 }, MEMORY = { first: 0x28, last: 0x3e }, TABLE_OF_BRANCHES = 0x0e, PLAIN = { first: 0x45, last: 0xc4 };
const ALONE = new Set([0x00, 0x01, 0x05, 0x0b, 0x0f, 0x1a, 0x1b]); // unreachable, nop, else, end, return, drop, select

/** Instructions on 128 bits, by the number after their first byte: loads and stores, constants and shuffles, which have 16 bytes, and those that name
 *  a lane. */
const VECTOR = { prefix: 0xfd, lastOfMemory: 11, literal: [12, 13], lanes: [21, 34], memoryLanes: [84, 91], zero: [92, 93] };
function skipVector(r, number) {
  const isIn = ([first, last]) => number >= first && number <= last, hasPlace = number <= VECTOR.lastOfMemory || isIn(VECTOR.memoryLanes) || isIn(VECTOR.zero);
  if (hasPlace) r.u32(), r.u32();
  if (isIn(VECTOR.literal)) r.at += 16;
  if (isIn(VECTOR.lanes) || isIn(VECTOR.memoryLanes)) r.at++;
}

/** Reads past what follows the first byte of an instruction other than those that name a local variable. */
function skipRest(r, first) {
  const numbers = (count) => { for (; count > 0; count--) while (r.byte() & 128); };
  if (NUMBERS.has(first)) numbers(NUMBERS.get(first));
  else if (BYTES.has(first)) r.at += BYTES.get(first);
  else if (first >= MEMORY.first && first <= MEMORY.last) numbers(2);
  else if (first === TABLE_OF_BRANCHES) numbers(r.u32() + 1);
  else if (first === VECTOR.prefix) skipVector(r, r.u32());
  else if (first === 0xfc && r.bytes[r.at] < AFTER_FC.length) numbers(AFTER_FC[r.u32()]);
  else if (!ALONE.has(first) && !(first >= PLAIN.first && first <= PLAIN.last)) throw new Error(`unknown instruction ${first} at byte ${r.at - 1} of a function`);
}

/** Reads a function's body: { body, parameters, types, begin, uses: [{ at, end, local }] }. `types` are those of all its
 *  local variables, parameters first; `begin` is the first instruction. */
function readBody(body, parameters) {
  const r = new Reader(body), types = [...parameters];
  for (const [count, type] of r.list(() => [r.u32(), r.byte()])) for (let i = 0; i < count; i++) types.push(type);
  const read = { body, parameters: parameters.length, types, begin: r.at, uses: [] };
  while (r.at < body.length) {
    const first = r.byte(), at = r.at;
    if (first < LOCAL.get || first > LOCAL.tee) skipRest(r, first);
    else read.uses.push({ local: r.u32(), at, end: r.at });
  }
  return read;
}

/** Returns the body with its local variables, except parameters, in this order. */
function withOrder({ body, parameters, types, begin, uses }, order) {
  const numbers = new Map(order.map((local, i) => [local, parameters + i])), declared = [];
  for (const local of order) {
    if (declared.at(-1)?.type === types[local]) declared.at(-1).count++;
    else declared.push({ count: 1, type: types[local] });
  }
  const parts = [Buffer.from([...u32(declared.length), ...declared.flatMap(({ count, type }) => [...u32(count), type])])];
  let last = begin;
  for (const { local, at, end } of uses) {
    parts.push(body.subarray(last, at), Buffer.from(u32(numbers.get(local) ?? local)));
    last = end;
  }
  return Buffer.concat([...parts, body.subarray(last)]);
}

/** Returns the body in the best order that exchanging two local variables at a time finds. `before` are the bytes before it. */
function numbered(read, before) {
  const near = before.subarray(-NEAR), dictionary = before.subarray(0, before.length - near.length);
  const options = { level: 9, ...(dictionary.length ? { dictionary } : {}) };
  const attempt = (order) => {
    const body = withOrder(read, order);
    return { order, body, size: zlib.deflateRawSync(Buffer.concat([near, body]), options).length };
  };
  let best = attempt(read.types.map((_, i) => i).slice(read.parameters)), size = Infinity;
  const count = Math.min(best.order.length, MOST);
  for (let round = 0; round < ROUNDS && best.size < size; round++) {
    size = best.size;
    for (let i = 0; i < count; i++)
      for (let j = i + 1; j < count; j++) {
        const order = [...best.order];
        if (read.types[order[i]] !== read.types[order[j]]) continue;
        [order[i], order[j]] = [order[j], order[i]];
        const other = attempt(order);
        if (other.size < best.size) best = other;
      }
  }
  return best.body;
}

/** Returns the module with the local variables of its functions numbered for gzip. */
export function withLocalsNumbered(module) {
  const types = typesOfFunctions(module);
  let before = Buffer.alloc(0);
  return withBodies(module, bodiesOf(module).map((body, i) => {
    const better = numbered(readBody(body, types[i]), before);
    before = Buffer.concat([before, better]).subarray(-SEEN);
    return better;
  }));
}
