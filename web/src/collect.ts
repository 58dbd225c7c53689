/** What was dropped or picked, as the files of one checkpoint. */
import type { Progress } from "./client";
import type { Opening, Source } from "./protocol";

/** Finds the files of a checkpoint; the signal ends it. */
export type Prepare = (signal: AbortSignal, tell: (p: Progress) => void) => Promise<Opening>;

interface Found { readonly path: string; readonly file: File }
const DEPTH = 3; // the folder, one level below it, and one more so that a folder of checkpoints can be told

const fileOf = (entry: FileSystemFileEntry) => new Promise<File>((resolve, reject) => entry.file(resolve, reject));

async function childrenOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader(), all: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return all;
    all.push(...some);
  }
}

async function walk(entry: FileSystemEntry, path: string, depth: number, found: Found[]): Promise<void> {
  if (entry.isFile) found.push({ path, file: await fileOf(entry as FileSystemFileEntry) });
  else if (depth < DEPTH) for (const child of await childrenOf(entry as FileSystemDirectoryEntry)) await walk(child, `${path}/${child.name}`, depth + 1, found);
}

/** Entries must be taken from the event at once; the rest may wait. */
export function filesOfDrop(transfer: DataTransfer): Promise<Found[]> {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter((e) => e !== null);
  const plain = [...transfer.files];
  return (async () => {
    const found: Found[] = [];
    for (const entry of entries) await walk(entry, entry.name, 0, found);
    return entries.length ? found : plain.map((file) => ({ path: file.name, file }));
  })();
}

export const filesOfPicker = (list: FileList): Found[] => [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));

/** The checkpoint that the files make: of one folder, names are below it; one file that stands for a set is primary. */
export function openingOf(found: readonly Found[]): Opening {
  const [first] = found;
  if (!first) throw new Error("there are no files in what was dropped");
  const top = first.path.split("/")[0] ?? "";
  const isFolder = found.every(({ path }) => path.startsWith(`${top}/`));
  const files: Source[] = found.map(({ path, file }) => ({ name: isFolder ? path.slice(top.length + 1) : path, size: file.size, file }))
    .filter(({ name }) => name.split("/").length <= 2 && (found.length === 1 || !name.includes(".tessera-"))); // an output that is being written
  if (found.length === 1 && !isFolder) return { title: first.file.name, files, primary: first.file.name };
  return { title: isFolder ? top : plainTitle(files), files };
}

const plainTitle = (files: readonly Source[]): string => files.length === 1 ? files[0]?.name ?? "" : `${files.length} files`;

export interface Sample { readonly name: string; readonly title: string; readonly files: readonly { readonly name: string; readonly size: number }[] }

export async function samplesHere(): Promise<Sample[]> {
  const response = await fetch(new URL("samples.json", document.baseURI));
  return response.ok ? await response.json() as Sample[] : [];
}

export async function openingOfSample(sample: Sample, signal: AbortSignal): Promise<Opening> {
  const files = await Promise.all(sample.files.map(async ({ name, size }): Promise<Source> => {
    const response = await fetch(new URL(`${sample.name}/${name}`, document.baseURI), { signal }).catch((e: unknown) => {
      signal.throwIfAborted();
      throw new Error(`the sample cannot be fetched from ${location.host}: ${e instanceof Error ? e.message : String(e)}. Files on this computer can be opened without a network.`);
    });
    if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
    return { name, size, file: new File([await response.blob()], name) };
  }));
  return { title: sample.name, files, ...(files.length === 1 && files[0] ? { primary: files[0].name } : {}) };
}

/** Whether `tessera view` serves this page: its addresses are a token and nothing else. */
export const isServed = (): boolean => /^\/[0-9a-f]{32}\/$/.test(location.pathname);

interface Listing { readonly title: string; readonly primary?: string; readonly files: readonly { readonly name: string; readonly size: number }[]; readonly other?: Listing }
export interface Served { readonly opening: Opening; readonly other?: Opening }

function openingListed({ title, primary, files }: Listing, below: string): Opening {
  const address = (name: string) => new URL(`${below}/${name.split("/").map(encodeURIComponent).join("/")}`, document.baseURI).href;
  return { title, files: files.map(({ name, size }) => ({ name, size, url: address(name) })), ...(primary === undefined ? {} : { primary }) };
}

/** The checkpoint that `tessera view` serves beside the page, and the one to compare it with; undefined on any other host. */
export async function openingServed(): Promise<Served | undefined> {
  if (!isServed()) return undefined;
  const response = await fetch(new URL("checkpoint.json", document.baseURI));
  if (!response.ok) throw new Error(`the checkpoint is not served: ${response.status} ${response.statusText}`);
  const listing = await response.json() as Listing;
  return { opening: openingListed(listing, "checkpoint"), ...(listing.other ? { other: openingListed(listing.other, "other") } : {}) };
}

/** Whether this page's policy lets it read from other servers; remote.html's does. */
export const mayReadOthers = (): boolean => /connect-src [^;]*https:/.test(document.querySelector('meta[http-equiv="Content-Security-Policy"]')?.getAttribute("content") ?? "");
export const isElsewhere = (text: string): boolean => URL.canParse(text, document.baseURI) && new URL(text, document.baseURI).origin !== location.origin;

export interface Remote {
  readonly url: string;
  readonly name: string;
  readonly size: number | undefined;
  /** The server gives parts of the file. */
  readonly ranges: boolean;
}

function urlOf(text: string): URL {
  if (!URL.canParse(text, document.baseURI)) throw new Error(`'${text}' is no URL`);
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

/** Asks the server for one byte. */
export async function askUrl(text: string, signal: AbortSignal): Promise<Remote> {
  const url = urlOf(text);
  const response = await fetch(url, { headers: { Range: "bytes=0-0" }, signal }).catch(() => {
    signal.throwIfAborted();
    throw new Error(`${url.host} cannot be reached from this page: the server must answer, and allow other sites to read it (CORS). Download the file and drop it here instead.`);
  });
  await response.body?.cancel();
  if (!response.ok) throw new Error(`${url.host} answered ${response.status} ${response.statusText}`);
  const ranges = response.status === 206;
  const total = ranges ? /\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "")?.[1] : response.headers.get("Content-Length");
  if (ranges && !total) throw new Error(`${url.host} does not say how long the file is: it must allow other sites to see Content-Range. Download the file and drop it here instead.`);
  return { url: url.href, name: nameOf(url), size: total ? Number(total) : undefined, ranges };
}

/** All of a file, telling how far it is. */
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

/** One file behind a URL: by ranges, or, where the server gives none, all of it. */
export async function openingOfUrl({ url, name, size, ranges }: Remote, signal: AbortSignal, tell: (p: Progress) => void): Promise<Opening> {
  if (ranges) return { title: name, files: [{ name, size: size ?? 0, url }], primary: name };
  const file = new File([await downloaded(url, size, signal, tell)], name);
  return { title: name, files: [{ name, size: file.size, file }], primary: name };
}
