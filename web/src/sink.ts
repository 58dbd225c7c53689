/** Writes the bytes of a conversion, in the worker: into files below a directory that the browser gave access to, or into
 *  one file. */
import type { Sink } from "../../wasm/tessera.js";
import type { Place } from "./protocol";

/** A file that is being written. A file that the user chose appears when it is closed; until then the browser keeps the
 *  bytes elsewhere. */
interface Output { write(offset: number, bytes: Uint8Array): void | Promise<void>; close(): void | Promise<void>; abort(): void | Promise<void> }

/** The browser's error states neither what was written nor what to do. */
function explained(e: unknown, name: string): unknown {
  const file = name ? `'${name}'` : "the file";
  if (!(e instanceof DOMException)) return e;
  if (e.name === "QuotaExceededError") return new Error(`there is not enough space for ${file}; free some, or choose another place`);
  if (e.name === "NotAllowedError") return new Error(`the browser does not allow this page to write ${file}; choose the place again and allow it`);
  return new Error(`${file} cannot be written: ${e.message}`);
}

async function chosenOutput(handle: FileSystemFileHandle): Promise<Output> {
  const stream = await handle.createWritable();
  return {
    write: (position, bytes) => stream.write({ type: "write", position, data: bytes.slice() }), // the module reuses memory
    close: () => stream.close(),
    abort: () => stream.abort(),
  };
}

/** The origin's own files can be written in place, which is faster. None of them has a final name. */
async function ownOutput(handle: FileSystemFileHandle): Promise<Output> {
  const access = await handle.createSyncAccessHandle();
  return {
    write(at, bytes) { for (let done = 0; done < bytes.length;) done += access.write(bytes.subarray(done), { at: at + done }); },
    close() { access.flush(); access.close(); },
    abort: () => access.close(),
  };
}

async function fileAt(directory: FileSystemDirectoryHandle, path: string): Promise<FileSystemFileHandle> {
  const components = path.split("/"), last = components.pop() ?? "";
  let at = directory;
  for (const component of components) at = await at.getDirectoryHandle(component, { create: true });
  return at.getFileHandle(last, { create: true });
}

export class PlaceSink implements Sink {
  readonly #outputs = new Map<string, Output>();
  readonly #opening = new Map<string, Promise<void>>();
  /** The sizes of the files, by their paths below the directory. */
  readonly sizes = new Map<string, number>();

  constructor(private readonly place: Place) {}

  /** A file is created before anything is written to it, because the module waits in between. */
  create(name: string): Promise<void> {
    const opening = this.#open(name).catch((e: unknown) => { throw explained(e, name); });
    this.#opening.set(name, opening);
    return opening;
  }

  async #open(name: string): Promise<void> {
    const { place } = this;
    if (place.kind === "file") {
      if (name !== "") throw new Error(`'${name}' would be written next to the file; choose a directory instead`);
      this.sizes.set(place.file.name, 0);
      this.#outputs.set(name, await chosenOutput(place.file));
      return;
    }
    const path = this.#pathOf(name), handle = await fileAt(place.directory, path);
    this.sizes.set(path, 0);
    this.#outputs.set(name, place.kind === "download" ? await ownOutput(handle) : await chosenOutput(handle));
  }

  #pathOf(name: string): string {
    const { place } = this;
    return place.kind === "file" ? place.file.name : place.base === undefined ? name : place.base + name;
  }

  async #act(name: string, act: (output: Output) => void | Promise<void>): Promise<void> {
    const output = this.#outputs.get(name);
    if (!output) throw new Error(`'${name}' was not created`);
    try {
      await act(output);
    } catch (e) {
      throw explained(e, name);
    }
  }

  /** Copies what it keeps before it returns. */
  write(name: string, offset: number, bytes: Uint8Array): Promise<void> {
    const path = this.#pathOf(name);
    this.sizes.set(path, Math.max(this.sizes.get(path) ?? 0, offset + bytes.length));
    return this.#act(name, (output) => output.write(offset, bytes));
  }

  async finish(name: string): Promise<void> {
    await this.#act(name, (output) => output.close());
    this.#outputs.delete(name);
  }

  async abort(): Promise<void> {
    await Promise.allSettled(this.#opening.values());
    await Promise.allSettled([...this.#outputs.values()].map(async (output) => output.abort()));
    this.#outputs.clear();
  }
}
