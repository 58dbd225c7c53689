/** What was dropped or picked, as the files of one checkpoint. */
import type { Progress } from "./client";
import type { Opening, Source } from "./protocol";

/** A directory that holds several checkpoints: one of them must be chosen. */
export interface Choice { readonly title: string; readonly options: readonly Opening[] }

/** Finds the files of a checkpoint; the signal ends it. */
export type Prepare = (signal: AbortSignal, tell: (p: Progress) => void) => Promise<Opening | Choice>;

export interface Found { readonly path: string; readonly file: File }
/** Levels below what was dropped, so that checkpoints three levels down, and directories inside them, are found. */
const DEPTH = 5, LEVELS = 4, MOST_FILES = 100_000;

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
  if (found.length >= MOST_FILES) throw new Error(`'${path}' and what is next to it are more than ${MOST_FILES} files; drop the checkpoint's own directory`);
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

/** A directory or file that the browser lends, with what is below it. */
async function walkHandle(handle: FileSystemHandle, path: string, depth: number, found: Found[]): Promise<void> {
  if (found.length >= MOST_FILES) throw new Error(`'${path}' and what is next to it are more than ${MOST_FILES} files; choose the checkpoint's own directory`);
  if (handle.kind === "file") found.push({ path, file: await (handle as FileSystemFileHandle).getFile() });
  else if (depth < DEPTH) for await (const child of (handle as FileSystemDirectoryHandle & { values(): AsyncIterable<FileSystemHandle> }).values()) await walkHandle(child, `${path}/${child.name}`, depth + 1, found);
}

export async function filesOfHandles(handles: readonly FileSystemHandle[]): Promise<Found[]> {
  const found: Found[] = [];
  for (const handle of handles) await walkHandle(handle, handle.name, 0, found);
  return found;
}

/** What was dropped, as handles to remember; none where the browser lends none. Must be called while the event is handled. */
export function handlesOfDrop(transfer: DataTransfer): Promise<readonly FileSystemHandle[]> {
  const asked = [...transfer.items].filter((item) => item.kind === "file").map((item) => (item as DataTransferItem & { getAsFileSystemHandle?(): Promise<FileSystemHandle | null> }).getAsFileSystemHandle?.());
  return Promise.all(asked).then((handles) => handles.filter((h) => h !== undefined && h !== null), () => []);
}

export const filesOfPicker = (list: FileList): Found[] => [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));

/** A file that a checkpoint's own directory holds. */
const MARKS = /^(\.metadata|__\d+\.metadata|.*\.(distcp|safetensors|index\.json|pt|pth|bin|ckpt))$/;

const parentOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf("/")));

/** The topmost directories that hold files of a checkpoint, as paths. */
export function checkpointsIn(paths: readonly string[]): string[] {
  const directories = [...new Set(paths.filter((p) => MARKS.test(p.split("/").pop() ?? "")).map(parentOf))].sort();
  return directories.filter((d) => !directories.some((other) => other !== d && (other === "" || d.startsWith(`${other}/`))));
}

function filesBelow(found: readonly Found[], directory: string): Source[] {
  const prefix = directory === "" ? "" : `${directory}/`;
  return found.filter(({ path }) => path.startsWith(prefix)).map(({ path, file }) => ({ name: path.slice(prefix.length), size: file.size, file }))
    .filter(({ name }) => name.split("/").length <= LEVELS && !name.includes(".tessera-")); // not an output that is being written
}

/** The checkpoint that the files make: names are below its directory; one file that stands for a set is primary. Several
 *  checkpoints are a choice. */
export function openingOf(found: readonly Found[]): Opening | Choice {
  const [first] = found;
  if (!first) throw new Error("no files were dropped");
  const top = first.path.split("/")[0] ?? "";
  const isDirectory = found.every(({ path }) => path.startsWith(`${top}/`));
  if (!isDirectory) {
    const files = found.map(({ path, file }): Source => ({ name: path, size: file.size, file }));
    return found.length === 1 ? { title: first.file.name, files, primary: first.file.name } : { title: `${files.length} files`, files: files.filter(({ name }) => name.split("/").length <= 2 && !name.includes(".tessera-")) };
  }
  const directories = checkpointsIn(found.map((f) => f.path)).sort((a, b) => a.localeCompare(b, "en", { numeric: true })), [only] = directories;
  if (only === undefined) return { title: top, files: filesBelow(found, top) };
  const options = directories.map((d): Opening => ({ title: d, files: filesBelow(found, d) }));
  return directories.length === 1 ? { title: only === top ? top : only, files: filesBelow(found, only) } : { title: top, options };
}

export interface Sample { readonly name: string; readonly title: string; readonly files: readonly { readonly name: string; readonly size: number }[] }

export async function samplesHere(): Promise<Sample[]> {
  const response = await fetch(new URL("samples.json", document.baseURI));
  return response.ok ? await response.json() as Sample[] : [];
}

export async function openingOfSample(sample: Sample, signal: AbortSignal): Promise<Opening> {
  const files = await Promise.all(sample.files.map(async ({ name, size }): Promise<Source> => {
    const response = await fetch(new URL(`${sample.name}/${name}`, document.baseURI), { signal }).catch((e: unknown) => {
      signal.throwIfAborted();
      throw new Error(`cannot fetch the sample from ${location.host}: ${e instanceof Error ? e.message : String(e)}. Files on this computer can be opened without a network.`);
    });
    if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
    return { name, size, file: new File([await response.blob()], name) };
  }));
  return { title: sample.name, files, ...(files.length === 1 && files[0] ? { primary: files[0].name } : {}) };
}

/** Whether `tessera view` serves this page: its addresses are a token and nothing else. */
export const isServed = (): boolean => /^\/[0-9a-f]{32}\/$/.test(location.pathname);

interface Listing { readonly title: string; readonly primary?: string; readonly part?: string; readonly shards?: string; readonly files: readonly { readonly name: string; readonly size: number }[]; readonly other?: Listing }
export interface Served { readonly opening: Opening; readonly other?: Opening }

function openingListed({ title, primary, part, shards, files }: Listing, below: string): Opening {
  const address = (name: string) => new URL(`${below}/${name.split("/").map(encodeURIComponent).join("/")}`, document.baseURI).href;
  return { title, files: files.map(({ name, size }) => ({ name, size, url: address(name) })), ...(primary === undefined ? {} : { primary }), ...(part === undefined ? {} : { part }), ...(shards === undefined ? {} : { shards }) };
}

/** The checkpoint that `tessera view` serves beside the page, and the one to compare it with; undefined on any other host. */
export async function openingServed(): Promise<Served | undefined> {
  if (!isServed()) return undefined;
  const response = await fetch(new URL("checkpoint.json", document.baseURI));
  if (!response.ok) throw new Error(`the checkpoint is not served: ${response.status} ${response.statusText}`);
  const listing = await response.json() as Listing;
  return { opening: openingListed(listing, "checkpoint"), ...(listing.other ? { other: openingListed(listing.other, "other") } : {}) };
}
