/** Keeps ranges of files that the module announced, because reading several ranges at once takes far less time than reading
 *  them one after the other. */

export interface Range { readonly offset: number; readonly size: number }

/** Bytes of a file that were read. */
export interface Block { readonly at: number; readonly bytes: Uint8Array }

export const endOf = ({ at, bytes }: Block): number => at + bytes.length;
export const holds = ({ at, bytes }: Block, offset: number): boolean => offset >= at && offset < at + bytes.length;

/** Ranges within this many bytes are read as one: with both ends of an item of up to 8 MiB comes the item. */
const TOGETHER = 33 << 18;
/** The least size of a read, which is also more than what follows the bytes of a tensor in an item. */
const LEAST = 16 << 10;
/** The number of bytes kept for all files, and after how many announcements those that nobody read make room. */
const MOST = 24 << 20, LONG = 256;

/** Memory is used again, because the browser frees it much later than it could: keeping less would take more. Its sizes are
 *  multiples of LEAST. Blocks that are read ahead use it, too. */
let spare: ArrayBuffer[] = [];
export function recycle(buffer: ArrayBuffer): void {
  spare.unshift(buffer); // what was used last is still in the processor's caches, and is used first
  while (spare.reduce((sum, { byteLength }) => sum + byteLength, 0) > MOST) spare.pop();
}
export function memoryFor(wanted: number): ArrayBuffer {
  const all = Math.ceil(wanted / LEAST) * LEAST, at = spare.findIndex(({ byteLength }) => byteLength === all);
  return spare.splice(at, at < 0 ? 0 : 1)[0] ?? new ArrayBuffer(all);
}

/** Returns the bytes from a position on, or `size` of them, as a stream. */
export type Open = (at: number, size?: number) => ReadableStreamBYOBReader;

/** Streams to the ends of files whose announced ranges follow each other. While the module computes, the browser reads on in each
 *  of them, up to 2 MiB, and one stream costs less than many. */
const continued = new Map<object, { readonly reader: ReadableStreamBYOBReader; at: number }>(), MOST_CONTINUED = 8;
/** Where the last range of a file ended, and how many ranges before it followed each other. If only two do, what the browser
 *  reads on is often not needed. */
let sequences = new WeakMap<object, { readonly end: number; readonly count: number }>();
const LEAST_COUNT = 2;

function discontinue(owner: object): void {
  continued.get(owner)?.reader.cancel().catch(() => undefined);
  continued.delete(owner);
}

/** A stream must not be read by two ranges at the same time. */
function streamAt(owner: object, at: number, size: number, open: Open): ReadableStreamBYOBReader {
  const last = sequences.get(owner), count = last?.end === at ? last.count + 1 : 0;
  sequences.set(owner, { end: at + size, count });
  let stream = continued.get(owner);
  if (stream?.at !== at) {
    discontinue(owner);
    if (count < LEAST_COUNT || continued.size === MOST_CONTINUED) return open(at, size);
    continued.set(owner, stream = { reader: open(at), at });
  }
  stream.at += size;
  return stream.reader;
}

/** A stream that nothing refers to is collected as garbage, and its reads then never end. */
const reading = new Set<ReadableStreamBYOBReader>();

/** Reads the next `wanted` bytes of a stream into `memory`, which moves into the array that is returned. */
export async function filled(stream: ReadableStreamBYOBReader, memory: ArrayBuffer, wanted: number): Promise<Uint8Array> {
  let buffer = memory;
  reading.add(stream);
  try {
    for (let done = 0; done < wanted;) {
      const { value } = await stream.read(new Uint8Array(buffer, done, wanted - done));
      if (!value?.length) throw new Error("the stream ended early");
      done += value.length;
      buffer = value.buffer;
    }
    return new Uint8Array(buffer, 0, wanted);
  } finally {
    reading.delete(stream);
  }
}

interface Kept { readonly owner: object; readonly block: Block; readonly since: number }
let kept: Kept[] = [], size = 0, calls = 0;

export function forgetAnnounced(): void {
  for (const owner of continued.keys()) discontinue(owner);
  sequences = new WeakMap();
  kept = [];
  spare = [];
  size = 0;
}

function drop(dropped: Kept): void {
  kept.splice(kept.indexOf(dropped), 1);
  size -= dropped.block.bytes.length;
  recycle(dropped.block.bytes.buffer as ArrayBuffer);
}

function joined(ranges: readonly Range[]): Range[] {
  const runs: Range[] = [];
  for (const range of [...ranges].sort((a, b) => a.offset - b.offset)) {
    const last = runs.at(-1), reach = last && range.offset + range.size - last.offset;
    if (last && reach !== undefined && reach <= TOGETHER) runs.splice(-1, 1, { offset: last.offset, size: Math.max(last.size, reach) });
    else runs.push(range);
  }
  return runs;
}

function hasRoom(wanted: number): boolean {
  for (let oldest = kept[0]; oldest && size + wanted > MOST && calls - oldest.since > LONG; oldest = kept[0]) drop(oldest);
  return size + wanted <= MOST;
}

/** Reads ranges of the file that `owner` reads, and where there is room, what is between them. If this fails, the reads that
 *  follow find out why. */
export async function announce(owner: object, ranges: readonly Range[], fileSize: number, open: Open): Promise<void> {
  const runs = joined(ranges), all = kept, since = ++calls, isRoomy = hasRoom(runs.reduce((sum, run) => sum + run.size, 0));
  await Promise.all((isRoomy ? runs : ranges).map(async (range) => {
    const at = Math.max(0, Math.min(range.offset, fileSize - LEAST)), wanted = Math.min(fileSize, Math.max(range.offset + range.size, at + LEAST)) - at;
    const stream = isRoomy && runs.length === 1 ? streamAt(owner, at, wanted, open) : open(at, wanted);
    const bytes = await filled(stream, memoryFor(wanted), wanted).catch((e) => { discontinue(owner); throw e; });
    if (at + wanted === fileSize) discontinue(owner);
    if (all !== kept) return; // forgotten meanwhile
    kept.push({ owner, block: { at, bytes }, since });
    size += bytes.length;
  })).catch(() => undefined);
}

export const announcedAt = (owner: object, at: number): Block | undefined => kept.find((k) => k.owner === owner && holds(k.block, at))?.block;

/** Lets go of blocks of which [offset, end) was read, if that was the end of a tensor's bytes. */
export function releaseAnnounced(owner: object, offset: number, end: number): void {
  for (const k of kept.filter(({ owner: o, block }) => o === owner && offset < endOf(block) - LEAST && end > endOf(block) - LEAST && end < endOf(block))) drop(k);
}
