/** Reads bytes for the module, in the worker: slices of dropped files, or ranges of a URL, both synchronously. */
import type { OpenOptions, SourceFile } from "../../wasm/tessera.js";
import type { Opening, Source } from "./protocol";
import { ReadAhead } from "./read_ahead";

const reader = new FileReaderSync();

function readFile(file: File, offset: number, size: number): Uint8Array {
  const bytes = reader.readAsArrayBuffer(file.slice(offset, offset + size));
  if (bytes.byteLength !== size) throw new Error("the file ended early: it changed since it was opened");
  return new Uint8Array(bytes);
}

/** While nothing may be requested: whether something was lacking. */
let lack: { isThere: boolean } | undefined;

/** Calls `body`, which may use of servers only what was fetched already. Returns undefined if that is not enough. */
export function withoutRequests<T>(body: () => T): T | undefined {
  const found = lack = { isThere: false };
  try {
    return body();
  } catch (e) {
    if (found.isThere) return undefined;
    throw e;
  } finally {
    lack = undefined;
  }
}

function readRange(url: string, size: number, offset: number, count: number): Uint8Array {
  if (lack) {
    lack.isThere = true;
    throw new Error(`${url}: this part was not fetched`);
  }
  const request = new XMLHttpRequest();
  request.open("GET", url, false);
  request.responseType = "arraybuffer";
  request.setRequestHeader("Range", `bytes=${offset}-${offset + count - 1}`);
  request.send();
  if (request.status !== 206) throw new Error(`${url} answered ${request.status} where 206 (a part of the file) was needed`);
  const total = /\/(\d+)$/.exec(request.getResponseHeader("Content-Range") ?? "")?.[1];
  if (total !== undefined && Number(total) !== size) throw new Error(`${url} now has ${total} bytes, not ${size}: it changed since it was opened`);
  const bytes: unknown = request.response;
  if (!(bytes instanceof ArrayBuffer) || bytes.byteLength !== count) throw new Error(`${url} sent another part than was asked for`);
  return new Uint8Array(bytes);
}

export const isRemote = (source: Source): source is Source & { readonly url: string } => "url" in source;

export function sourceFile(source: Source): SourceFile {
  const { name, size } = source, remote = isRemote(source);
  const ahead = remote ? new ReadAhead(size, (offset, count) => readRange(source.url, size, offset, count), true)
    : new ReadAhead(size, (offset, count) => readFile(source.file, offset, count), false, (at, count = size) => source.file.slice(at, at + count).stream().getReader({ mode: "byob" }));
  return {
    name, size, remote, read: (offset, into) => { if (into.length) ahead.read(offset, into); },
    fetch: (offset, count) => ahead.fetch(offset, count), prefetch: (ranges) => ahead.prefetch(ranges),
  };
}

/** Returns the options that select the checkpoint among its files. */
export const chosenOf = ({ primary, part, shards, salvage }: Opening): OpenOptions => ({ primary, part, shards, salvage });
