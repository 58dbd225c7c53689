/** The page's end of one worker: calls with promises, progress, cancel. */
import type { FromWorker, Kind, Requests, Tally, ToWorker, Trouble } from "./protocol";

export class Failure extends Error {
  constructor(readonly trouble: Trouble) {
    super(trouble.message);
  }
}

export interface Progress { readonly done: number; readonly total: number; readonly tally?: Tally }

interface Waiting {
  resolve(gives: unknown): void;
  reject(e: Failure): void;
  progress?: ((p: Progress) => void) | undefined;
}

export class Client {
  readonly #worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
  readonly #waiting = new Map<number, Waiting>();
  #next = 1;

  constructor(onRead: (bytes: number, file: string) => void) {
    this.#worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
      if ("read" in data) onRead(data.read, data.file);
      else this.#hear(data);
    };
    this.#worker.onerror = (e) => this.#fail({ message: `the worker broke: ${e.message}`, status: "broken" });
  }

  #hear(data: Exclude<FromWorker, { read: number }>): void {
    const waiting = this.#waiting.get(data.id);
    if (!waiting) return;
    if ("done" in data) {
      waiting.progress?.(data);
      return;
    }
    this.#waiting.delete(data.id);
    if ("trouble" in data) waiting.reject(new Failure(data.trouble));
    else waiting.resolve(data.gives);
  }

  #fail(trouble: Trouble): void {
    for (const waiting of this.#waiting.values()) waiting.reject(new Failure(trouble));
    this.#waiting.clear();
  }

  /** The promise, and what stops the job behind it. */
  start<K extends Kind>(kind: K, takes: Requests[K]["takes"], progress?: (p: Progress) => void): { result: Promise<Requests[K]["gives"]>; cancel(): void } {
    const id = this.#next++;
    const result = new Promise<Requests[K]["gives"]>((resolve, reject) => {
      this.#waiting.set(id, { resolve: (gives) => resolve(gives as Requests[K]["gives"]), reject, progress });
    });
    const post = (message: ToWorker) => this.#worker.postMessage(message);
    post({ id, kind, takes } as ToWorker);
    return { result, cancel: () => post({ cancel: id }) };
  }

  call<K extends Kind>(kind: K, takes: Requests[K]["takes"]): Promise<Requests[K]["gives"]> {
    return this.start(kind, takes).result;
  }

  /** Ends the worker, whatever it is doing. */
  end(): void {
    this.#worker.terminate();
    this.#fail({ message: "cancelled", status: "cancelled" });
  }
}
