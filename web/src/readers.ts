/** Workers that read dropped files for another worker, which waits for them without returning to its event loop. That takes shared
 *  memory, which a browser lends to pages of servers that ask for isolation; elsewhere the worker reads by itself. */
import type { Block, BlockReader, ReadAhead } from "./read_ahead";

const BLOCK = 2 << 20, SLOTS = 24, AHEAD = 4;
const HEAD = 4 * SLOTS; // a state per slot
const PENDING = 0, DONE = 1, FAILED = 2;
/** A reader that is silent for so long is not asked again. */
const PATIENCE_MS = 5_000;

/** What a worker and its readers share. */
export interface Lent { readonly ports: readonly MessagePort[]; readonly shared: SharedArrayBuffer }
interface Request { readonly slot: number; readonly file: File; readonly at: number; readonly size: number }

export const canShare = (): boolean => globalThis.crossOriginIsolated && typeof SharedArrayBuffer === "function";
export const newShared = (): SharedArrayBuffer => new SharedArrayBuffer(HEAD + SLOTS * BLOCK);
const placeOf = (shared: SharedArrayBuffer, slot: number, size: number) => new Uint8Array(shared, HEAD + slot * BLOCK, size);

/** In a reader: carries out what comes through the port. */
export function serveReads(port: MessagePort, shared: SharedArrayBuffer): void {
  const states = new Int32Array(shared, 0, SLOTS), reader = new FileReaderSync();
  port.onmessage = ({ data: { slot, file, at, size } }: MessageEvent<Request>) => {
    let state = FAILED;
    try {
      const bytes = reader.readAsArrayBuffer(file.slice(at, at + size));
      if (bytes.byteLength === size) {
        placeOf(shared, slot, size).set(new Uint8Array(bytes));
        state = DONE;
      }
    } catch { /* whoever waits reads again, and hears why */ }
    Atomics.store(states, slot, state);
    Atomics.notify(states, slot);
  };
}

/** In the worker that is read for. */
export class Readers {
  readonly #states: Int32Array;
  readonly #free = Array.from({ length: SLOTS }, (_, slot) => slot);
  #leaving: number[] = []; // released while they were being read
  readonly #holders = new Set<ReadAhead>(); // the last one read last
  #turn = 0;
  #isSilent = false;

  constructor(private readonly lent: Lent) { this.#states = new Int32Array(lent.shared, 0, SLOTS); }

  /** For one file; `readAt` is how the worker reads it by itself. */
  of(file: File, readAt: (at: number, size: number) => Uint8Array): BlockReader {
    return { blockSize: BLOCK, most: AHEAD, begin: (at, size, holder) => this.#begin({ file, at, size }, holder, readAt) };
  }

  #begin(wanted: Omit<Request, "slot">, holder: ReadAhead, readAt: (at: number, size: number) => Uint8Array): Block | undefined {
    this.#holders.delete(holder);
    this.#holders.add(holder);
    const slot = this.#slot(holder);
    if (slot === undefined || this.#isSilent) return undefined;
    Atomics.store(this.#states, slot, PENDING);
    this.lent.ports[this.#turn++ % this.lent.ports.length]?.postMessage({ slot, ...wanted } satisfies Request);
    const { at, size } = wanted;
    let own: Uint8Array | undefined; // where no reader could
    return { at, size, bytes: () => own ??= this.#wait(slot) ? placeOf(this.lent.shared, slot, size) : readAt(at, size), release: () => { this.#leaving.push(slot); } };
  }

  #slot(holder: ReadAhead): number | undefined {
    this.#reclaim();
    if (!this.#free.length) {
      const [idle] = this.#holders;
      if (!idle || idle === holder) return undefined;
      this.#holders.delete(idle);
      idle.drop();
      this.#reclaim();
    }
    return this.#free.pop();
  }

  #reclaim(): void {
    this.#leaving = this.#leaving.filter((slot) => {
      if (Atomics.load(this.#states, slot) === PENDING) return true;
      this.#free.push(slot);
      return false;
    });
  }

  #wait(slot: number): boolean {
    if (!this.#isSilent) this.#isSilent = Atomics.wait(this.#states, slot, PENDING, PATIENCE_MS) === "timed-out";
    return Atomics.load(this.#states, slot) === DONE;
  }
}
