/** Larger reads for whoever reads a file in order: a read of a dropped file costs the browser about as much for a few bytes as for
 *  a mebibyte. With readers (readers.ts) the next blocks are on their way while these are worked on. */

const LEAST = 256 << 10, MOST = 4 << 20;
/** How far a read may begin behind the end of the last one and still be in order. */
const GAP = 64 << 10;
const NOWHERE = Number.MAX_SAFE_INTEGER;
/** Of reads here and there: they are at least so long, and the last two of at most so many bytes are kept, because the records of a zip
 *  are read one by one. */
const SHORT = 16 << 10, MOST_SHORT = 64 << 10, KEPT = 2;
/** Of those that hold blocks of their own, so that thousands of files need no more memory than a few; the last one read last. */
const holders: ReadAhead[] = [], MOST_HOLDERS = 8;

let generation = 0;
/** What was read ahead is not used any more: the files may have changed since. */
export function forgetReads(): void { generation++; }

/** Bytes of a file that were read, or are being read. */
export interface Block {
  readonly at: number;
  readonly size: number;
  /** Waits for them. */
  bytes(): Uint8Array;
  release(): void;
}

/** What reads blocks while the worker does other things; `begin` gives undefined where it has no room. */
export interface BlockReader {
  readonly blockSize: number;
  readonly most: number;
  begin(at: number, size: number, holder: ReadAhead): Block | undefined;
}

const newBlock = (at: number, bytes: Uint8Array): Block => ({ at, size: bytes.length, bytes: () => bytes, release: () => undefined });

/** Reads here and there, such as those of a zip's records, fetch what they ask for and leave the blocks of the stretch that is read
 *  in order as they are. */
export class ReadAhead {
  #next = NOWHERE; // where a read would be in order
  #candidate = -1; // where another stretch would begin
  #ahead = LEAST;
  #blocks: Block[] = [];
  readonly #short: Block[] = [];
  #generation = generation;

  constructor(private readonly size: number, private readonly readAt: (at: number, size: number) => Uint8Array, private readonly reader: () => BlockReader | undefined = () => undefined) {}

  read(offset: number, into: Uint8Array): void {
    if (this.#generation !== generation) this.#startOver();
    const end = offset + into.length, isNear = offset >= this.#next && offset - this.#next <= GAP, isInOrder = isNear || offset === this.#candidate;
    if (isInOrder && !isNear) this.drop();
    for (let at = offset; at < end;) {
      const block = this.#blockAt(at) ?? (isInOrder ? this.#begin(at, end - at) : undefined);
      const bytes = block ? block.bytes().subarray(at - block.at, end - block.at) : this.#readShort(at, end - at);
      into.set(bytes, at - offset);
      at += bytes.length;
    }
    this.#candidate = end;
    if (isInOrder) this.#advance(end);
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
    this.#blocks.splice(0).forEach((block) => block.release());
    this.#ahead = LEAST;
  }

  #blockAt(at: number): Block | undefined {
    const holds = (b: Block) => at >= b.at && at < b.at + b.size;
    return this.#blocks.find(holds) ?? this.#short.find(holds);
  }

  #readShort(at: number, wanted: number): Uint8Array {
    if (wanted > MOST_SHORT) return this.readAt(at, wanted);
    const block = newBlock(at, this.readAt(at, Math.min(this.size - at, Math.max(wanted, SHORT))));
    if (this.#short.push(block) > KEPT) this.#short.shift();
    return block.bytes().subarray(0, wanted);
  }

  /** A block of at least `least` bytes; one by one twice as large. */
  #begin(at: number, least: number): Block {
    const known = holders.indexOf(this);
    if (known >= 0) holders.splice(known, 1);
    if (holders.push(this) > MOST_HOLDERS) holders.shift()?.drop();
    this.#ahead = Math.min(this.#ahead * 2, MOST);
    const block = newBlock(at, this.readAt(at, Math.min(this.size - at, Math.max(least, this.#ahead))));
    this.#blocks.push(block);
    return block;
  }

  /** Releases what lies behind, and asks for what comes next. */
  #advance(next: number): void {
    this.#next = next;
    while (this.#blocks[0] && this.#blocks[0].at + this.#blocks[0].size <= next) this.#blocks.shift()?.release();
    const reader = this.reader();
    if (!reader || this.#ahead < reader.blockSize) return;
    for (let last = this.#blocks.at(-1); this.#blocks.length < reader.most; last = this.#blocks.at(-1)) {
      const at = last ? last.at + last.size : next;
      const block = at < this.size ? reader.begin(at, Math.min(reader.blockSize, this.size - at), this) : undefined;
      if (!block) return;
      this.#blocks.push(block);
    }
  }
}
