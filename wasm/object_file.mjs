/** Reads WebAssembly files for split.mjs: sections, and for an object file which function or data refers to which.
 *  https://github.com/WebAssembly/tool-conventions/blob/main/Linking.md describes the sections "linking" and "reloc.*". */

const SECTION = { type: 1, import: 2, function: 3, code: 10, data: 11 };
const SYMBOL = { function: 0, data: 1, section: 3 };
const UNDEFINED = 0x10, EXPLICIT_NAME = 0x40;
const IS_STRING = 1; // a flag of a segment
const SYMBOL_TABLE = 8, SEGMENT_INFO = 5, INITIAL_CALLS = 6;
const REFERS_TO_NO_SYMBOL = new Set([6, 7]); // relocations that refer to a type or a global
const HAS_ADDEND = new Set([3, 4, 5, 8, 9, 11, 14, 15, 16, 17, 21, 22, 23]);

/** A cursor over bytes. */
export class Reader {
  constructor(bytes, at = 0) { this.bytes = bytes; this.at = at; }
  byte() { return this.bytes[this.at++]; }
  u32() {
    for (let value = 0, unit = 1; ; unit *= 128) {
      const b = this.byte();
      value += (b & 127) * unit;
      if (b < 128) return value;
    }
  }
  i32() {
    for (let value = 0, shift = 0; ;) {
      const b = this.byte();
      value |= (b & 127) << shift;
      shift += 7;
      if (b < 128) return shift < 32 && b & 64 ? value | (-1 << shift) : value;
    }
  }
  text() {
    const size = this.u32();
    return this.bytes.subarray(this.at, (this.at += size)).toString();
  }
  /** Reads a count, and then as many items. */
  list(item) { return Array.from({ length: this.u32() }, item); }
}

/** Returns [{ id, name, head, begin, end }]: the section starts at `head`, and its content at `begin`. */
export function sectionsOf(bytes) {
  const reader = new Reader(bytes, 8), sections = [];
  while (reader.at < bytes.length) {
    const head = reader.at, id = reader.byte(), end = reader.u32() + reader.at, content = reader.at;
    const name = id === 0 ? reader.text() : undefined;
    sections.push({ id, name, head, content, begin: reader.at, end });
    reader.at = end;
  }
  return sections;
}

/** Returns the active data segments: [{ address, bytes }]. */
export function segmentsOf(bytes) {
  const section = sectionsOf(bytes).find(({ id }) => id === SECTION.data), r = new Reader(bytes, section.begin);
  return r.list(() => {
    if (r.u32() !== 0 || r.byte() !== 0x41) throw new Error("a data segment is not active, or its address is not constant");
    const address = r.i32() >>> 0;
    r.byte(); // the end opcode of the address
    const size = r.u32();
    return { address, bytes: r.bytes.subarray(r.at, (r.at += size)) };
  });
}

/** Returns the bodies of the functions. */
export function bodiesOf(bytes) {
  const section = sectionsOf(bytes).find(({ id }) => id === SECTION.code), r = new Reader(bytes, section.begin);
  return r.list(() => {
    const size = r.u32();
    return bytes.subarray(r.at, (r.at += size));
  });
}

/** Returns the types of the parameters of each function that has a body. */
export function typesOfFunctions(bytes) {
  const reader = (id) => new Reader(bytes, sectionsOf(bytes).find((s) => s.id === id).begin), t = reader(SECTION.type), f = reader(SECTION.function);
  const types = t.list(() => {
    t.byte(); // says that it is a function
    const parameters = t.list(() => t.byte());
    t.list(() => t.byte()); // the results
    return parameters;
  });
  return f.list(() => types[f.u32()]);
}

/** The kinds of names in the section "name". */
export const KINDS_OF_NAMES = { functions: 1, segments: 9 };

/** Returns the names of one of KINDS_OF_NAMES, by number. */
export function namesOf(bytes, wanted) {
  const section = sectionsOf(bytes).find(({ name }) => name === "name"), r = new Reader(bytes, section.begin);
  while (r.at < section.end) {
    const kind = r.byte(), end = r.u32() + r.at;
    if (kind === wanted) return new Map(r.list(() => [r.u32(), r.text()]));
    r.at = end;
  }
  throw new Error(`the section "name" has no names of kind ${wanted}`);
}

export const u32 = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...u32(value >>> 7)]);
function i32(value) {
  const bytes = [];
  for (let left = value | 0; ; left >>= 7) {
    const low = left & 127, rest = left >> 7;
    if ((rest === 0 && !(low & 64)) || (rest === -1 && low & 64)) return [...bytes, low];
    bytes.push(low | 128);
  }
}

/** Returns the module with these bodies of functions instead of its own. */
export function withBodies(bytes, bodies) {
  const { head, end } = sectionsOf(bytes).find(({ id }) => id === SECTION.code);
  const content = Buffer.concat([Buffer.from(u32(bodies.length)), ...bodies.flatMap((body) => [Buffer.from(u32(body.length)), body])]);
  return Buffer.concat([bytes.subarray(0, head), Buffer.from([SECTION.code, ...u32(content.length)]), content, bytes.subarray(end)]);
}

/** Returns the module with these data segments instead of its own. */
export function withSegments(bytes, segments) {
  const body = Buffer.concat([Buffer.from(u32(segments.length)), ...segments.flatMap(({ address, bytes: content }) =>
    [Buffer.from([0, 0x41, ...i32(address), 0x0b, ...u32(content.length)]), content])]);
  const data = Buffer.concat([Buffer.from([SECTION.data, ...u32(body.length)]), body]);
  const others = sectionsOf(bytes).filter(({ id }) => id !== SECTION.data && id !== 12); // 12: the number of segments, which is optional
  const at = others.findLastIndex(({ id }) => id === SECTION.code) + 1, parts = others.map(({ head, end }) => bytes.subarray(head, end));
  return Buffer.concat([bytes.subarray(0, 8), ...parts.slice(0, at), data, ...parts.slice(at)]);
}

function readSymbol(r) {
  const kind = r.byte(), flags = r.u32(), symbol = { kind };
  if (kind === SYMBOL.data) {
    symbol.name = r.text();
    if (!(flags & UNDEFINED)) Object.assign(symbol, { segment: r.u32(), offset: r.u32(), size: r.u32() });
    return symbol;
  }
  symbol.index = r.u32();
  if (kind !== SYMBOL.section && (!(flags & UNDEFINED) || flags & EXPLICIT_NAME)) symbol.name = r.text();
  return symbol;
}

function readLinking(bytes, section) {
  const r = new Reader(bytes, section.begin), found = { initialCalls: [] };
  r.u32(); // version
  while (r.at < section.end) {
    const kind = r.byte(), end = r.u32() + r.at;
    if (kind === SEGMENT_INFO) found.segments = r.list(() => ({ name: r.text(), alignment: r.u32(), isString: (r.u32() & IS_STRING) !== 0 }));
    if (kind === INITIAL_CALLS) found.initialCalls = r.list(() => [r.u32(), r.u32()][1]);
    if (kind === SYMBOL_TABLE) found.symbols = r.list(() => readSymbol(r));
    r.at = end;
  }
  return found;
}

/** Returns [{ kind, offset, index }], ordered by offset. Offsets count from the content of the relocated section. */
function readRelocations(bytes, section) {
  const r = new Reader(bytes, section.begin);
  r.u32(); // the number of the section
  return r.list(() => {
    const kind = r.byte(), offset = r.u32(), index = r.u32();
    if (HAS_ADDEND.has(kind)) r.i32();
    return { kind, offset, index };
  }).filter(({ kind }) => !REFERS_TO_NO_SYMBOL.has(kind));
}

/** Returns where each item of a section (function bodies or data) is, counted from the section's content. */
function itemsOf(bytes, section, skipHead) {
  const r = new Reader(bytes, section.begin);
  return r.list(() => {
    skipHead(r);
    const size = r.u32(), begin = r.at - section.content;
    r.at += size;
    return { begin, end: begin + size };
  });
}

function skipSegmentHead(r) {
  r.u32();
  r.byte();
  r.i32();
  r.byte();
}

function importedFunctions(bytes, section) {
  const r = new Reader(bytes, section.begin);
  const limits = () => (r.u32() & 1 ? [r.u32(), r.u32()] : [r.u32()]);
  return r.list(() => {
    r.text();
    r.text();
    const kind = r.byte();
    if (kind === 0) r.u32();
    else if (kind === 1) r.byte(), limits();
    else if (kind === 2) limits();
    else r.byte(), r.byte();
    return kind;
  }).filter((kind) => kind === 0).length;
}

/** Reads an object file. Returns its functions and data, each with its name, its bytes and its references: [{ name, kind,
 *  bytes, segment, alignment, isString, references: [{ at, kind, to }] }]. `at` counts from the first byte of the item,
 *  `kind` is that of the relocation, and `to` is an item or undefined. Alignments are powers of two. `constructors` are the
 *  functions that are called first. */
export function readObject(bytes) {
  const sections = sectionsOf(bytes), by = (id) => sections.find((s) => s.id === id), named = (name) => sections.find((s) => s.name === name);
  const { symbols, segments: heads, initialCalls } = readLinking(bytes, named("linking")), imported = importedFunctions(bytes, by(SECTION.import));
  const code = itemsOf(bytes, by(SECTION.code), () => {}), data = itemsOf(bytes, by(SECTION.data), skipSegmentHead);
  const functions = new Array(code.length), segments = new Array(data.length);
  const items = symbols.map((s) => {
    if (s.kind === SYMBOL.function && s.index >= imported) return (functions[s.index - imported] ??= { name: s.name, kind: "function", references: [] });
    if (s.kind === SYMBOL.data && s.segment !== undefined)
      return (segments[s.segment] ??= { ...heads[s.segment], name: s.name, kind: "data", segment: heads[s.segment].name, bytes: bytes.subarray(by(SECTION.data).content + data[s.segment].begin, by(SECTION.data).content + data[s.segment].end), references: [] });
    return undefined;
  });
  for (const [list, ranges, owners] of [[readRelocations(bytes, named("reloc.CODE")), code, functions], [readRelocations(bytes, named("reloc.DATA")), data, segments]]) {
    let i = 0;
    for (const { kind, offset, index } of list) {
      while (offset >= ranges[i].end) i++;
      owners[i].references.push({ at: offset - ranges[i].begin, kind, to: items[index] });
    }
  }
  return { functions, segments, constructors: initialCalls.map((i) => items[i]) };
}
