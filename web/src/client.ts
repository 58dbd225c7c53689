/** The page's side of one worker: calls with promises, progress and cancellation. The worker's script and the module are
 *  fetched once. Later workers start from memory, so the page works without a network, and its content security policy
 *  applies to workers too. */
import wasmUrl from "../../build/wasm/bin/tessera.wasm?url";
import writersUrl from "../../build/wasm/bin/tessera-writers.wasm?url";
import type { FromWorker, Kind, Requests, Tally, ToWorker, Trouble } from "./protocol";
import { scriptUrl } from "./trusted";
import workerUrl from "./worker.ts?worker&url";

export class Failure extends Error {
  constructor(readonly trouble: Trouble) {
    super(trouble.message);
  }
}

async function fetched(url: string): Promise<Response> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response;
}

const compiled = async (response: Response): Promise<WebAssembly.Module> => WebAssembly.compile(await response.arrayBuffer());

const script = fetched(workerUrl).then(async (r) => URL.createObjectURL(new Blob([await r.text()], { type: "text/javascript" })));
const module = fetched(wasmUrl).then(compiled);
let second: Promise<WebAssembly.Module> | undefined;

/** Returns the module's second file, which only some views need. It is fetched after the first file, and again if that failed
 *  before. */
const writers = (): Promise<WebAssembly.Module> => second ??= module.then(() => fetched(writersUrl)).then(compiled).catch((e: unknown) => {
  second = undefined;
  throw e;
});
writers().catch(() => undefined); // whoever needs it asks again

/** Resolves when everything that the page needs was fetched. */
export const fetchedAll = (): Promise<unknown> => Promise.all([script, module, writers()]);

export interface Progress { readonly done: number; readonly total: number; readonly tally?: Tally }

interface Waiting {
  resolve(gives: unknown): void;
  reject(e: Failure): void;
  progress?: ((p: Progress) => void) | undefined;
}

export class Client {
  readonly #waiting = new Map<number, Waiting>();
  readonly #worker: Promise<Worker>;
  #next = 1;
  /** Why no request will be answered any more. */
  #over: Trouble | undefined;

  readonly #onBroken: (trouble: Trouble) => void;

  constructor(onRead: (bytes: number, file: string) => void, onBroken: (trouble: Trouble) => void) {
    this.#onBroken = onBroken;
    this.#worker = Promise.all([script, module]).then(([url, compiled]) => {
      const worker = new Worker(scriptUrl(url), { type: "module" });
      worker.onmessage = ({ data }: MessageEvent<FromWorker>) => {
        if ("read" in data) onRead(data.read, data.file);
        else if ("asks" in data) void writers().catch(String).then((rest) => worker.postMessage({ writers: rest } satisfies ToWorker));
        else this.#hear(data);
      };
      worker.onerror = (e) => this.#break({ message: `the worker broke: ${e.message}`, status: "broken" });
      worker.onmessageerror = () => this.#break({ message: "the worker sent what cannot be read", status: "broken" });
      worker.postMessage({ module: compiled } satisfies ToWorker);
      return worker;
    });
    this.#worker.catch((e: unknown) => this.#fail({ message: `the page could not be loaded whole: ${e instanceof Error ? e.message : String(e)}`, status: "page" }));
  }

  #hear(data: Exclude<FromWorker, { read: number } | { asks: string }>): void {
    const waiting = this.#waiting.get(data.id);
    if (!waiting) return;
    if ("done" in data) {
      waiting.progress?.(data);
      return;
    }
    if ("trouble" in data && data.trouble.status === "broken") return this.#break(data.trouble);
    this.#waiting.delete(data.id);
    if ("trouble" in data) waiting.reject(new Failure(data.trouble));
    else waiting.resolve(data.gives);
  }

  /** The state of the module is unknown after this, so no more requests are sent to it. */
  #break(trouble: Trouble): void {
    if (this.#over) return;
    void this.#worker.then((w) => w.terminate(), () => undefined);
    this.#onBroken(trouble);
    this.#fail(trouble);
  }

  #fail(trouble: Trouble): void {
    this.#over ??= trouble;
    for (const waiting of this.#waiting.values()) waiting.reject(new Failure(trouble));
    this.#waiting.clear();
  }

  /** Starts a request. Returns its promise, and a function that stops the job. */
  start<K extends Kind>(kind: K, takes: Requests[K]["takes"], progress?: (p: Progress) => void): { result: Promise<Requests[K]["gives"]>; cancel(): void } {
    const id = this.#next++, over = this.#over;
    if (over) return { result: Promise.reject(new Failure(over)), cancel: () => undefined };
    const result = new Promise<Requests[K]["gives"]>((resolve, reject) => {
      this.#waiting.set(id, { resolve: (gives) => resolve(gives as Requests[K]["gives"]), reject, progress });
    });
    const post = (message: ToWorker) => void this.#worker.then((w) => w.postMessage(message), () => undefined);
    post({ id, kind, takes } as ToWorker);
    return { result, cancel: () => post({ cancel: id }) };
  }

  call<K extends Kind>(kind: K, takes: Requests[K]["takes"]): Promise<Requests[K]["gives"]> {
    return this.start(kind, takes).result;
  }

  /** Ends the worker, whatever it is doing. */
  end(): void {
    void this.#worker.then((w) => w.terminate(), () => undefined);
    this.#fail({ message: "cancelled", status: "cancelled" });
  }
}
