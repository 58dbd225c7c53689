/** Asks where to write: the browser's dialogs, or the origin's private file system for a download. Loaded on demand. */
import { saveBlob } from "./download";
import type { Place, Written } from "./protocol";

declare global {
  interface Window {
    showDirectoryPicker?(options: { mode: "readwrite" | "read"; id?: string }): Promise<FileSystemDirectoryHandle>;
    showSaveFilePicker?(options: { suggestedName: string }): Promise<FileSystemFileHandle>;
  }
}

export interface Chosen {
  readonly place: Place;
  readonly title: string;
  /** Removes what was begun, so that no incomplete file remains under the final name. */
  discard(): Promise<void>;
  /** Downloads what was written. */
  deliver?(written: Written): void;
}

interface Wish {
  /** The name of the new directory. */
  readonly name: string;
  /** The name of the only file, if there is only one. */
  readonly base: string | undefined;
  /** Whether another file is written next to it. */
  readonly hasSidecar: boolean;
}

/** Browsers refuse these, too, but do not say why, and a zip must not contain them. */
const UNUSABLE = /[/\\]|^\.{1,2}$/;
const SAVED = "tessera-saved", TRIES = 50, WAIT_MS = 100;

/** The writer may take a moment to release a file. */
async function removed(remove: () => Promise<void>): Promise<void> {
  for (let n = 1; ; n++) {
    try {
      return await remove();
    } catch (e) {
      if (e instanceof DOMException && e.name === "NotFoundError") return undefined;
      if (n === TRIES) throw e;
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
    }
  }
}

async function isThere(directory: FileSystemDirectoryHandle, name: string): Promise<boolean> {
  try {
    await directory.getDirectoryHandle(name);
    return true;
  } catch (e) {
    if (e instanceof DOMException && e.name === "NotFoundError") return false;
    if (e instanceof DOMException && e.name === "TypeMismatchError") return true;
    throw e;
  }
}

async function newDirectory(parent: FileSystemDirectoryHandle, { name, base }: Wish): Promise<Chosen> {
  if (await isThere(parent, name)) throw new Error(`'${name}' exists in '${parent.name}'; choose another name`);
  const directory = await parent.getDirectoryHandle(name, { create: true });
  return { place: { kind: "directory", directory, ...(base === undefined ? {} : { base }) }, title: `${parent.name}/${name}`, discard: () => removed(() => parent.removeEntry(name, { recursive: true })) };
}

/** Removes a file that the dialog created for this. A file that already had content stays. */
async function discardEmpty(file: FileSystemFileHandle & { remove?(): Promise<void> }): Promise<void> {
  if ((await file.getFile()).size === 0) await removed(async () => file.remove?.());
}

const isFull = (e: unknown): boolean => e instanceof DOMException && e.name === "QuotaExceededError";

const deliver = ({ download }: Written): void => { if (download) saveBlob(download.name, download.blob); };

async function ownDirectory({ name, base }: Wish): Promise<Chosen> {
  if (!isSecureContext) throw new Error("the browser gives no storage to a page that another machine serves over plain HTTP; open the page over HTTPS, or use the command below");
  const own = await navigator.storage.getDirectory().catch((e: unknown) => {
    throw e instanceof DOMException && e.name === "SecurityError" ? new Error("the browser's settings allow this page no storage, which a download needs; allow this site to save data, or use the command below") : e;
  });
  const saved = await own.getDirectoryHandle(SAVED, { create: true }), id = crypto.randomUUID();
  await new Promise<void>((resolve) => void navigator.locks.request(id, () => { resolve(); return new Promise(() => undefined); })); // held until this page is closed
  const directory = await saved.getDirectoryHandle(id, { create: true });
  return { place: { kind: "download", directory, name, ...(base === undefined ? {} : { base }) }, title: "a download", deliver, discard: () => removed(() => saved.removeEntry(id, { recursive: true })) };
}

/** States where a file goes, or several. */
export function placeText(isFile: boolean): string {
  if (!window.showDirectoryPicker || !window.showSaveFilePicker) return `This browser cannot write into directories, so ${isFile ? "the file" : "an uncompressed zip"} is downloaded.`;
  return isFile ? "The browser asks where to put the file." : "The browser asks for a directory. A new directory with this name is made in it.";
}

/** Asks where to write. Returns undefined if the dialog was dismissed. Must be called by a click. */
export async function choosePlace(wish: Wish): Promise<Chosen | undefined> {
  if (UNUSABLE.test(wish.name.trim())) throw new Error(`'${wish.name}' cannot be the name of a file or directory; choose another name`);
  const { showDirectoryPicker: pickDirectory, showSaveFilePicker: pickFile } = window;
  try {
    if (!pickDirectory || !pickFile) return await ownDirectory(wish);
    if (wish.base === undefined || wish.hasSidecar) return await newDirectory(await pickDirectory.call(window, { mode: "readwrite", id: "tessera" }), wish);
    const file = await pickFile.call(window, { suggestedName: wish.base });
    return { place: { kind: "file", file }, title: file.name, discard: () => discardEmpty(file) };
  } catch (e) {
    if (e instanceof DOMException && e.name === "AbortError") return undefined;
    throw isFull(e) ? new Error("there is not enough space in the browser's storage; free some, or use the command below") : e;
  }
}

/** Removes what pages that are now closed left for their downloads. A page holds the lock of what is its own. */
export async function removeLeftovers(): Promise<void> {
  const saved = await (await navigator.storage.getDirectory()).getDirectoryHandle(SAVED).catch(() => undefined);
  if (!saved) return;
  const remove = (name: string) => navigator.locks.request(name, { ifAvailable: true }, async (lock) => { if (lock) await saved.removeEntry(name, { recursive: true }); });
  for await (const name of (saved as FileSystemDirectoryHandle & { keys(): AsyncIterable<string> }).keys()) await remove(name);
}
