/** Turns what was dropped or picked into the files of one checkpoint. */
import type { Progress } from "./client";
import type { Opening, Source } from "./protocol";
import { exactText } from "./text";

/** Several checkpoints, one of which must be chosen, unless they are to be compared: two that were dropped or picked together are, if
 *  nothing else was. `others` are the names of what else was. */
export interface Choice { readonly title: string; readonly options: readonly Opening[]; readonly areCompared?: boolean; readonly others?: readonly string[] }

/** Returns the checkpoint for a caller that cannot offer a choice, and throws if there are several. */
export function onlyOne(found: Opening | Choice): Opening {
  if (!("options" in found)) return found;
  const { title, options } = found;
  throw new Error(`'${title}' holds ${exactText(options.length)} checkpoints (${options.slice(0, 3).map((o) => o.title).join(", ")}${options.length > 3 ? " …" : ""}); drop one of them`);
}

/** Finds the files of a checkpoint. The signal stops it. */
export type Prepare = (signal: AbortSignal, tell: (p: Progress) => void) => Promise<Opening | Choice>;

export interface Found { readonly path: string; readonly file: File }
/** The levels searched below what was dropped: checkpoints three levels down, and directories inside them, are found. */
const DEPTH = 5, LEVELS = 4, MOST_FILES = 100_000;

/** A file or a directory, as a drop or as a picker gives it. */
type FileNode = FileSystemEntry | FileSystemHandle;
const isEntry = (node: FileNode): node is FileSystemEntry => "isFile" in node;
const isFile = (node: FileNode): boolean => isEntry(node) ? node.isFile : node.kind === "file";

const fileOf = (file: FileNode): Promise<File> => isEntry(file) ? new Promise((resolve, reject) => (file as FileSystemFileEntry).file(resolve, reject)) : (file as FileSystemFileHandle).getFile();

async function childrenOf(directory: FileNode): Promise<FileNode[]> {
  const all: FileNode[] = [];
  if (!isEntry(directory)) {
    for await (const child of (directory as FileSystemDirectoryHandle & { values(): AsyncIterable<FileSystemHandle> }).values()) all.push(child);
    return all;
  }
  const reader = (directory as FileSystemDirectoryEntry).createReader();
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return all;
    all.push(...some);
  }
}

/** Returns the files, and everything below the directories. Throws if that is no file of a checkpoint, and there may be one further down. */
export async function filesOf(tops: readonly FileNode[]): Promise<Found[]> {
  const found: Found[] = [];
  let deeper: string | undefined;
  const walk = async (node: FileNode, path: string, depth: number): Promise<void> => { // asking for many files together takes Chromium longer
    if (found.length >= MOST_FILES) throw new Error(`'${path}' and what is next to it are more than ${exactText(MOST_FILES)} files; open the checkpoint's own directory`);
    if (isFile(node)) found.push({ path, file: await fileOf(node) });
    else if (depth === DEPTH) deeper = path;
    else for (const child of await childrenOf(node)) await walk(child, `${path}/${child.name}`, depth + 1);
  };
  for (const top of tops) await walk(top, top.name, 0);
  if (deeper !== undefined && !found.some(({ path }) => isMark(path))) throw new Error(`no checkpoint was found, and '${deeper}' is too far down to be searched; open the checkpoint's own directory`);
  return found;
}

/** The entries must be taken from the event immediately. Everything else can happen later. */
export function filesOfDrop(transfer: DataTransfer): Promise<Found[]> {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter((e) => e !== null);
  return entries.length ? filesOf(entries) : Promise.resolve([...transfer.files].map((file) => ({ path: file.name, file })));
}

const REMEMBER = "tessera-remember-drops";
/** Returns undefined if the browser lets this page store nothing. */
export const remembersDrops = (): boolean | undefined => { try { return localStorage.getItem(REMEMBER) !== null; } catch { return undefined; } };

/** Returns what is true afterwards: a full storage keeps no choice. */
export function rememberDrops(isOn: boolean): boolean {
  try {
    if (isOn) localStorage.setItem(REMEMBER, "");
    else localStorage.removeItem(REMEMBER);
  } catch { /* as it says above */ }
  return remembersDrops() === true;
}

/** Returns handles of what was dropped, to remember them; none if the browser does not provide them or nobody wants that. For a
 *  handle the browser may ask a question, or refuse a directory with a message that must be dismissed first. Must be called
 *  while the event is handled. */
export function handlesOfDrop(transfer: DataTransfer): Promise<readonly FileSystemHandle[]> {
  if (!remembersDrops()) return Promise.resolve([]);
  const asked = [...transfer.items].filter((item) => item.kind === "file").map((item) => (item as DataTransferItem & { getAsFileSystemHandle?(): Promise<FileSystemHandle | null> }).getAsFileSystemHandle?.());
  return Promise.all(asked).then((handles) => handles.filter((h) => h !== undefined && h !== null), () => []);
}

export const filesOfPicker = (list: FileList): Found[] => [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));

/** Files that the directory of a checkpoint contains. */
const MARKS = /^(\.metadata|__\d+\.metadata|.*\.(distcp|safetensors|index\.json|pt|pth|bin|ckpt))$/;
const isMark = (path: string): boolean => MARKS.test(path.split("/").pop() ?? "");

const parentOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf("/")));

/** Returns the paths of the topmost directories that contain files of a checkpoint. */
function checkpointsIn(paths: readonly string[]): string[] {
  const directories = [...new Set(paths.filter(isMark).map(parentOf))].sort();
  return directories.filter((d) => !directories.some((other) => other !== d && (other === "" || d.startsWith(`${other}/`))));
}

const sourceOf = ({ path, file }: Found, prefix = ""): Source => ({ name: path.slice(prefix.length), size: file.size, file });

function filesBelow(found: readonly Found[], directory: string): Source[] {
  const prefix = directory === "" ? "" : `${directory}/`;
  return found.filter(({ path }) => path.startsWith(prefix)).map((one) => sourceOf(one, prefix))
    .filter(({ name }) => name.split("/").length <= LEVELS && !name.includes(".tessera-")); // skip unfinished outputs
}

/** Returns the checkpoint that the files make. Names are relative to its directory; a single file is primary. If there are
 *  several checkpoints, returns a choice. */
function openingOf(found: readonly Found[]): Opening | Choice {
  const [first] = found;
  if (!first) throw new Error("no files were dropped");
  const top = first.path.split("/")[0] ?? "";
  const isDirectory = found.every(({ path }) => path.startsWith(`${top}/`));
  const directories = checkpointsIn(found.map((f) => f.path)).sort((a, b) => a.localeCompare(b, "en", { numeric: true })), [only] = directories;
  if (found.length === 1 && !isDirectory) return { title: first.file.name, files: [sourceOf(first)], primary: first.file.name };
  // Files next to one directory are what a training framework puts there. Otherwise they are no part of what is in the directories.
  if (!isDirectory && directories.length < 2 && !only?.includes("/")) return { title: `${found.length} files`, files: filesBelow(found, "") };
  if (only === undefined) return { title: top, files: filesBelow(found, top) };
  if (directories.length === 1) return { title: only, files: filesBelow(found, only) };
  return choiceOf(directories.map((d) => ({ title: d, files: filesBelow(found, d) })), isDirectory ? [] : found.filter(({ path }) => !directories.some((d) => path.startsWith(`${d}/`))), isDirectory ? top : undefined);
}

/** The checkpoints in one directory, or those that were dropped together and are compared if they are two. */
const choiceOf = (options: readonly Opening[], others: readonly Found[], directory?: string): Choice =>
  ({ title: directory ?? "What was dropped", options, areCompared: directory === undefined && options.length === 2 && others.length === 0, others: [...new Set(others.map(({ path }) => path.split("/")[0] ?? ""))] });

const WEIGHTS = /\.(safetensors|pt|pth|bin|ckpt)$/, BESIDES = /optim|sched|scaler|rng|random|training_args/i, MOST_HEADER = 100 << 20;

/** Returns the names in a safetensors file, or undefined if it is not one. */
async function namesIn(file: File): Promise<string[] | undefined> {
  try {
    const length = Number(new DataView(await file.slice(0, 8).arrayBuffer()).getBigUint64(0, true));
    return length > MOST_HEADER ? undefined : Object.keys(JSON.parse(await file.slice(8, 8 + length).text()) as object).filter((name) => name !== "__metadata__");
  } catch {
    return undefined;
  }
}

/** Whether a file may be a checkpoint of its own, and not what is next to one. */
const isWeights = ({ name }: File): boolean => WEIGHTS.test(name) && !BESIDES.test(name);

/** Whether two files are two checkpoints. Shards of one have different names inside, and files of ranks have numbers. */
async function areSeparate(a: File, b: File): Promise<boolean> {
  if (![a, b].every(isWeights)) return false;
  const [x, y] = await Promise.all([namesIn(a), namesIn(b)]), ofB = new Set(y);
  if (x && y) return x.some((name) => ofB.has(name));
  const [p, q] = [a, b].map(({ name }) => name.replace(/\d+/g, "0"));
  return p !== q || /(step|epoch|iter)[-_=]?0/i.test(p ?? "");
}

/** Whether each of several files is a checkpoint of its own. */
async function areAllSeparate([first, ...others]: readonly File[]): Promise<boolean> {
  let before = first;
  for (const file of others) {
    if (before && !await areSeparate(before, file)) return false;
    before = file;
  }
  return true;
}

/** Returns what was dropped or picked: one checkpoint, or a choice. Of several things that are a checkpoint each, two are a pair. */
export async function checkpointsOf(found: readonly Found[]): Promise<Opening | Choice> {
  const groups = new Map<string, Found[]>(), files = found.filter(({ path }) => !path.includes("/")).map(({ file }) => file);
  for (const one of found) {
    const top = one.path.split("/")[0] ?? "", group = groups.get(top) ?? [];
    if (group.push(one) === 1) groups.set(top, group);
  }
  const directories = [...groups.values()].filter(([first]) => first?.path.includes("/")), holding = directories.filter((group) => checkpointsIn(group.map(({ path }) => path)).length > 0);
  if (groups.size < 2 || files.length === 0) return openingOf(found);
  const areSingle = await areAllSeparate(files), singles = found.filter(({ path }) => !path.includes("/"));
  if (!(directories.length === 0 ? areSingle : holding.length > 0 && files.every(isWeights))) return openingOf(found);
  const options = [...holding, ...areSingle ? singles.map((one) => [one]) : [singles]].map(openingOf).flatMap((one) => "options" in one ? one.options : [one]);
  return choiceOf(options, directories.filter((group) => !holding.includes(group)).flat());
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

/** Whether `tessera view` serves this page: the path is then only a token. */
export const isServed = (): boolean => /^\/[0-9a-f]{32}\/$/.test(location.pathname);

interface Listing { readonly title: string; readonly primary?: string; readonly part?: string; readonly shards?: string; readonly salvage?: boolean; readonly files: readonly { readonly name: string; readonly size: number }[]; readonly other?: Listing }

function openingListed({ title, files, other: _, ...chosen }: Listing, below: string): Opening {
  const address = (name: string) => new URL(`${below}/${name.split("/").map(encodeURIComponent).join("/")}`, document.baseURI).href;
  return { title, files: files.map(({ name, size }) => ({ name, size, url: address(name) })), ...chosen };
}

/** Returns the checkpoint that `tessera view` serves with the page, or the two that it compares. Returns undefined on any other
 *  host. */
export async function openingServed(): Promise<Opening | Choice | undefined> {
  if (!isServed()) return undefined;
  const response = await fetch(new URL("checkpoint.json", document.baseURI));
  if (!response.ok) throw new Error(`the checkpoint is not served: ${response.status} ${response.statusText}`);
  const listing = await response.json() as Listing;
  const opening = openingListed(listing, "checkpoint");
  return listing.other ? { title: opening.title, options: [opening, openingListed(listing.other, "other")], areCompared: true } : opening;
}
