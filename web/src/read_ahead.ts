/** Makes larger reads for callers that read a file in order, because reading a few bytes of a dropped file takes the browser
 *  about as long as reading a mebibyte. */
import { announce, announcedAt, endOf, filled, forgetAnnounced, holds, memoryFor, recycle, releaseAnnounced, type Block, type Open, type Range } from "./announced";

/** The number of bytes read ahead: for one file, for all files that are read at the same time, and where each read is a
 *  request. */
const LEAST = 1 << 20, MOST = 8 << 20, MOST_OF_ALL = 32 << 20, MOST_REQUEST = 4 << 20;
/** How far after the end of the last read another one may begin and still be in order. */
const GAP = 64 << 10;
const NOWHERE = Number.MAX_SAFE_INTEGER;
/** For scattered reads: their least size, which is larger if each read is a request. The last two reads of at most this size
 *  are kept, because the records of a zip are read one by one. */
const SHORT = 16 << 10, SHORT_REQUEST = 64 << 10, MOST_SHORT = 64 << 10, KEPT = 2;
/** How far ahead of its position, in blocks, the sequence is still continued to reach a read. This covers the ends of zips,
 *  which are read next. */
const REACH = 2;
/** The files that hold blocks, so that thousands of files need no more memory than a few. The one that was read last comes
 *  last. */
const holders: ReadAhead[] = [], MOST_HOLDERS = 24;
const mostAhead = (): number => Math.min(MOST, Math.floor(MOST_OF_ALL / Math.max(1, holders.length)));
function letGo(holder: ReadAhead): void {
  const known = holders.indexOf(holder);
  if (known >= 0) holders.splice(known, 1);
}

/** Streams fill blocks of this size, which stay in the processor's caches. Their memory is used again. */
const STREAMED = 1 << 20;
function letBlockGo({ bytes: { buffer } }: Block): void {
  if (buffer.byteLength === STREAMED) recycle(buffer as ArrayBuffer);
}

let generation = 0;
/** Forgets what was read ahead in all files, because they may have changed since then. */
export function forgetReads(): void {
  generation++;
  forgetAnnounced();
  for (const holder of [...holders]) holder.drop();
}

/** Scattered reads, such as those of a zip's records, fetch only what they ask for. They do not affect the blocks of the
 *  sequence that is read in order. */
export class ReadAhead {
  #next = NOWHERE; // where the next read would be in order
  #candidate = -1; // where another sequence would begin
  #ahead = LEAST / 4;
  readonly #blocks: Block[] = []; // each begins at the end of the previous one
  readonly #short: Block[] = [];
  readonly #least: number; // the least size of a scattered read
  #generation = generation;
  #stream: { readonly reader: ReadableStreamBYOBReader; at: number } | undefined;

  constructor(private readonly size: number, private readonly readAt: (at: number, size: number) => Uint8Array, private readonly remote: boolean, private open?: Open) {
    this.#least = Math.min(size, remote ? SHORT_REQUEST : SHORT);
  }

  read(offset: number, into: Uint8Array): void {
    const end = offset + into.length, { isInOrder, isNear } = this.#place(offset);
    for (let at = offset; at < end;) {
      const block = this.#blockAt(at) ?? (isInOrder || isNear ? this.#extend(at, end) : undefined);
      const bytes = block ? block.bytes.subarray(at - block.at, end - block.at) : this.#readShort(at, end - at);
      into.set(bytes, at - offset);
      at += bytes.length;
    }
    releaseAnnounced(this, offset, end);
    this.#candidate = end;
    if (isInOrder) this.#advance(end);
  }

  /** Streams what a read that belongs to the sequence needs, up to its end. If that fails, the read finds out why. */
  fetch(offset: number, size: number): Promise<void> | undefined {
    if (!this.open) return undefined;
    const { isInOrder, isNear } = this.#place(offset), end = offset + size;
    if (!isInOrder && !isNear) return undefined;
    for (let at = offset; at < end;) {
      const block = this.#blockAt(at);
      if (!block) return this.#streamTo(at, end).catch(() => { if (this.#stream) this.open = undefined; });
      at = endOf(block);
    }
    return undefined;
  }

  /** Reads ranges that will be needed soon. */
  prefetch(ranges: readonly Range[]): Promise<void> | undefined {
    return this.open && announce(this, ranges, this.size, this.open);
  }

  async #streamTo(at: number, end: number): Promise<void> {
    let from = this.#end ?? at;
    this.#hold();
    if (this.#stream?.at !== from) {
      this.#cancel();
      const reader = this.open?.(from);
      if (reader) this.#stream = { reader, at: from };
    }
    for (const stream = this.#stream; stream && from < end; from = stream.at) {
      const bytes = await filled(stream.reader, memoryFor(STREAMED), Math.min(STREAMED, this.size - from));
      if (stream !== this.#stream) return; // what was read ahead was dropped
      this.#blocks.push({ at: from, bytes });
      stream.at += bytes.length;
    }
  }

  #cancel(): void {
    this.#stream?.reader.cancel().catch(() => undefined);
    this.#stream = undefined;
  }

  /** Decides whether a read belongs to the sequence, or begins another one. */
  #place(offset: number): { isInOrder: boolean; isNear: boolean } {
    if (this.#generation !== generation) this.#startOver();
    const goesOn = offset >= this.#next && offset - this.#next <= GAP, isNear = goesOn || this.#isNear(offset), isInOrder = goesOn || offset === this.#candidate;
    if (isInOrder && !isNear) this.drop();
    return { isInOrder, isNear };
  }

  #startOver(): void {
    this.drop();
    this.#short.length = 0;
    this.#next = NOWHERE;
    this.#candidate = -1;
    this.#generation = generation;
  }

  /** Forgets what was read ahead. */
  drop(): void {
    letGo(this);
    this.#cancel();
    this.#blocks.splice(0).forEach(letBlockGo);
    this.#ahead = LEAST / 4;
  }

  /** The end of what was read ahead. */
  get #end(): number | undefined {
    const last = this.#blocks.at(-1);
    return last && endOf(last);
  }

  /** Whether a read belongs to the sequence that is read in order: it is in what was read ahead, or shortly after it. The
   *  records before and after a tensor's bytes are read back and forth, and the sequence then continues where it was. */
  #isNear(offset: number): boolean {
    const [first] = this.#blocks, end = this.#end;
    if (!first || end === undefined || offset < first.at) return false;
    return offset < end || (!this.remote && offset - this.#next <= REACH * mostAhead());
  }

  #blockAt(at: number): Block | undefined {
    const here = (b: Block) => holds(b, at);
    return this.#blocks.find(here) ?? this.#short.find(here) ?? announcedAt(this, at);
  }

  #readShort(at: number, wanted: number): Uint8Array {
    if (wanted > MOST_SHORT) return this.readAt(at, wanted);
    const from = Math.min(at, this.size - this.#least); // the bytes before the end of a zip are needed next
    const bytes = this.readAt(from, Math.max(at + wanted - from, this.#least));
    if (this.#short.push({ at: from, bytes }) > KEPT) this.#short.shift();
    return bytes.subarray(at - from, at - from + wanted);
  }

  /** Reads a block that contains `at` and, if the file is long enough, everything up to `end`. Each block is larger than the
   *  previous one. */
  #extend(at: number, end: number): Block {
    const from = this.#end ?? at;
    this.#hold();
    this.#ahead = Math.min(this.#ahead * 4, this.remote ? MOST_REQUEST : mostAhead());
    const block = { at: from, bytes: this.readAt(from, Math.min(this.size - from, Math.max(end - from, this.#ahead))) };
    this.#blocks.push(block);
    return block;
  }

  #hold(): void {
    letGo(this);
    if (holders.push(this) > MOST_HOLDERS) holders[0]?.drop();
  }

  /** Forgets what is before this position, and at the end of the file everything. */
  #advance(next: number): void {
    this.#next = next;
    if (this.size - next < this.#least) this.drop();
    let done = 0;
    for (const block of this.#blocks) done += Number(endOf(block) <= next);
    this.#blocks.splice(0, done).forEach(letBlockGo);
  }
}
