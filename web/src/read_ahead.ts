/** Larger reads for whoever reads a file in order: a read of a dropped file costs the browser about as much for a few bytes as for
 *  a mebibyte. */

const LEAST = 256 << 10, MOST = 4 << 20;
/** How far a read may begin behind the end of the last one and still be in order. */
const GAP = 64 << 10;
const NOWHERE = Number.MAX_SAFE_INTEGER;
/** Of reads here and there: they are at least so long, longer where each is a request, and the last two of at most so many bytes are
 *  kept, because the records of a zip are read one by one. */
const SHORT = 16 << 10, SHORT_REQUEST = 64 << 10, MOST_SHORT = 64 << 10, KEPT = 2;
/** Of those that hold blocks of their own, so that thousands of files need no more memory than a few; the last one read last. */
const holders: ReadAhead[] = [], MOST_HOLDERS = 8;

let generation = 0;
/** What was read ahead is not used any more: the files may have changed since. */
export function forgetReads(): void { generation++; }

/** Bytes of a file that were read. */
interface Block {
  readonly at: number;
  readonly bytes: Uint8Array;
}

const holds = ({ at, bytes }: Block, offset: number): boolean => offset >= at && offset < at + bytes.length;

/** Reads here and there, such as those of a zip's records, fetch what they ask for and leave the blocks of the stretch that is read
 *  in order as they are. */
export class ReadAhead {
  #next = NOWHERE; // where a read would be in order
  #candidate = -1; // where another stretch would begin
  #ahead = LEAST;
  readonly #blocks: Block[] = [];
  readonly #short: Block[] = [];
  readonly #least: number; // bytes of a read here and there
  #generation = generation;

  constructor(private readonly size: number, private readonly readAt: (at: number, size: number) => Uint8Array, remote: boolean) {
    this.#least = Math.min(size, remote ? SHORT_REQUEST : SHORT);
  }

  read(offset: number, into: Uint8Array): void {
    if (this.#generation !== generation) this.#startOver();
    const end = offset + into.length, isNear = this.#isNear(offset), isInOrder = isNear || offset === this.#candidate;
    if (isInOrder && !isNear) this.drop();
    for (let at = offset; at < end;) {
      const block = this.#blockAt(at) ?? (isInOrder ? this.#begin(at, end - at) : undefined);
      const bytes = block ? block.bytes.subarray(at - block.at, end - block.at) : this.#readShort(at, end - at);
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
    this.#blocks.length = 0;
    this.#ahead = LEAST;
  }

  /** Whether a read belongs to the stretch that is read in order: shortly after the last one, or within what was read ahead, where the
   *  records before a tensor's bytes are read back and forth. */
  #isNear(offset: number): boolean {
    return (offset >= this.#next && offset - this.#next <= GAP) || this.#blocks.some((b) => holds(b, offset));
  }

  #blockAt(at: number): Block | undefined {
    const here = (b: Block) => holds(b, at);
    return this.#blocks.find(here) ?? this.#short.find(here);
  }

  #readShort(at: number, wanted: number): Uint8Array {
    if (wanted > MOST_SHORT) return this.readAt(at, wanted);
    const from = Math.min(at, this.size - this.#least); // what is before the end of a zip is needed next
    const bytes = this.readAt(from, Math.max(at + wanted - from, this.#least));
    if (this.#short.push({ at: from, bytes }) > KEPT) this.#short.shift();
    return bytes.subarray(at - from, at - from + wanted);
  }

  /** A block of at least `least` bytes; one by one twice as large. */
  #begin(at: number, least: number): Block {
    const known = holders.indexOf(this);
    if (known >= 0) holders.splice(known, 1);
    if (holders.push(this) > MOST_HOLDERS) holders.shift()?.drop();
    this.#ahead = Math.min(this.#ahead * 2, MOST);
    const block = { at, bytes: this.readAt(at, Math.min(this.size - at, Math.max(least, this.#ahead))) };
    this.#blocks.push(block);
    return block;
  }

  /** Forgets what lies behind. */
  #advance(next: number): void {
    this.#next = next;
    while (this.#blocks[0] && this.#blocks[0].at + this.#blocks[0].bytes.length <= next) this.#blocks.shift();
  }
}
