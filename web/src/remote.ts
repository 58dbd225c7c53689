/** Opens checkpoints at URLs: one file by ranges, the shards of an index, the files of a DCP, or a Hugging Face
 *  repository. This file is fetched when a URL is opened. */
import type { Progress } from "./client";
import { HUB } from "./elsewhere";
import type { Opening, Source } from "./protocol";

export interface Remote {
  readonly url: string;
  readonly name: string;
  readonly size: number | undefined;
  /** Whether the server returns ranges of the file. */
  readonly ranges: boolean;
}

/** Returns the address of the files of the repository `hf://ORG/REPO@REV`. */
function hubOf(text: string): string | undefined {
  const [, repository, revision = "main"] = HUB.exec(text) ?? [];
  return repository && `https://huggingface.co/${repository}/resolve/${encodeURIComponent(revision)}/`;
}

function urlOf(text: string): URL {
  if (!URL.canParse(text, document.baseURI)) throw new Error(`'${text}' is not a URL`);
  const url = new URL(text, document.baseURI);
  if (!/^https?:$/.test(url.protocol)) throw new Error(`a URL begins with https: or http:, not ${url.protocol}`);
  return url;
}

function nameOf({ pathname }: URL): string {
  const last = pathname.split("/").pop() ?? "";
  try {
    return decodeURIComponent(last) || "checkpoint";
  } catch {
    return last;
  }
}

class NotThere extends Error {}

/** Asks the server for one byte. */
async function askUrl(text: string, signal: AbortSignal): Promise<Remote> {
  const url = urlOf(text);
  const response = await fetch(url, { headers: { Range: "bytes=0-0" }, signal }).catch(() => {
    signal.throwIfAborted();
    throw new Error(`${url.host} cannot be read from this page: either it does not answer, or it does not allow other sites to read it (CORS headers Access-Control-Allow-Origin and, for the Range header, Access-Control-Allow-Headers). Download the file and drop it here instead.`);
  });
  await response.body?.cancel();
  if (response.status === 404) throw new NotThere(`${url.host} answered 404 ${response.statusText} for ${url.pathname}`);
  if (!response.ok) throw new Error(`${url.host} answered ${response.status} ${response.statusText}`);
  const ranges = response.status === 206;
  const total = ranges ? /\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "")?.[1] : response.headers.get("Content-Length");
  if (ranges && !total) throw new Error(`${url.host} does not state the file's size: it must allow other sites to see Content-Range (Access-Control-Expose-Headers). Download the file and drop it here instead.`);
  return { url: url.href, name: nameOf(url), size: total ? Number(total) : undefined, ranges };
}

const AT_ONCE = 6, MOST_WHOLE = 256 << 20;

/** Downloads a file, and reports the progress. */
async function downloaded(url: string, size: number | undefined, signal: AbortSignal, tell: (p: Progress) => void): Promise<Blob> {
  const response = await fetch(url, { signal });
  if (!response.ok || !response.body) throw new Error(`${url} answered ${response.status} ${response.statusText}`);
  let done = 0;
  const counting = new TransformStream<Uint8Array, Uint8Array>({ transform(part, out) {
    done += part.length;
    tell({ done, total: size ?? 0 });
    out.enqueue(part);
  } });
  return new Response(response.body.pipeThrough(counting)).blob();
}

/** Returns one file at a URL: by ranges, or, if the server does not return ranges, as a whole. A `.metadata` is also
 *  downloaded as a whole, because it is read more than once. */
async function sourceOf({ url, name, size, ranges }: Remote, signal: AbortSignal, tell: (p: Progress) => void): Promise<Source> {
  if (ranges && (name !== ".metadata" || (size ?? 0) > MOST_WHOLE)) return { name, size: size ?? 0, url };
  const file = new File([await downloaded(url, size, signal, tell)], name);
  return { name, size: file.size, file };
}

/** Asks for the sizes of several files, a few at a time. Files that do not exist are left out. */
export async function sourcesAt(base: string, names: readonly string[], signal: AbortSignal): Promise<Source[]> {
  const found: Source[] = [], rest = [...names];
  const next = async (): Promise<void> => {
    for (let name = rest.shift(); name !== undefined; name = rest.shift()) {
      const { url, size, ranges } = await askUrl(new URL(name.split("/").map(encodeURIComponent).join("/"), base).href, signal).catch((e: unknown) => {
        signal.throwIfAborted();
        if (e instanceof NotThere) return { url: "", size: undefined, ranges: false };
        throw e;
      });
      if (url === "") continue;
      if (!ranges) throw new Error(`${new URL(url).host} does not send parts of ${name} (it answers 200 to a range request); download the checkpoint and drop it here instead`);
      found.push({ name, size: size ?? 0, url });
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, next));
  return found;
}

/** Opens the files that an index names, which are next to it. */
async function indexOpening(remote: Remote, signal: AbortSignal, tell: (p: Progress) => void): Promise<Opening> {
  const { url, name, size } = remote;
  if ((size ?? 0) > MOST_WHOLE) throw new Error(`${name} is too large for an index`);
  const file = new File([await downloaded(url, size, signal, tell)], name);
  const { weight_map: map } = JSON.parse(await file.text()) as { weight_map?: Readonly<Record<string, string>> };
  if (!map) throw new Error(`${name} has no weight_map, which an index must have`);
  const shards = await sourcesAt(url, [...new Set(Object.values(map))].sort(), signal);
  return { title: name, files: [{ name, size: file.size, file }, ...shards], primary: name, url };
}

/** Returns what a URL leads to: one file, or an index with its shards. The data files of a DCP are found after its
 *  `.metadata` was read. */
export async function openingOfRemote(remote: Remote, signal: AbortSignal, tell: (p: Progress) => void): Promise<Opening> {
  const { name, url } = remote;
  if (name.endsWith(".index.json")) return indexOpening(remote, signal, tell);
  const files = [await sourceOf(remote, signal, tell)];
  return name === ".metadata" ? { title: new URL(".", url).pathname.split("/").at(-2) || name, files, url } : { title: name, files, primary: name, url };
}

/** Returns the remote file to open for what a person typed. A repository of the hub has one file, or an index. */
export async function resolveUrl(text: string, signal: AbortSignal): Promise<Remote> {
  const hub = hubOf(text.trim());
  if (hub === undefined) {
    const url = urlOf(text.trim());
    // a directory is taken for a DCP
    return askUrl(url.pathname.endsWith("/") ? new URL(".metadata", url).href : url.href, signal);
  }
  for (const name of ["model.safetensors", "model.safetensors.index.json"]) {
    const remote = await askUrl(hub + name, signal).catch((e: unknown) => { if (e instanceof NotThere) return undefined; throw e; });
    if (remote) return remote;
  }
  throw new Error(`${text.trim()} has neither model.safetensors nor model.safetensors.index.json; give the URL of one of its files`);
}
