/** Checkpoints that were opened earlier, as handles that the browser stores for this page. Loaded on demand. There are none
 *  if the browser provides no handles. */
import { checkpointsOf, filesOf, type Choice } from "./collect";
import type { Opening } from "./protocol";

const DATABASE = "tessera", STORE = "recent", MOST = 8;

export interface Recent { readonly id: number; readonly title: string; readonly when: number; readonly handles: readonly FileSystemHandle[] }
type Kept = Omit<Recent, "id">;
interface Asks { queryPermission?(options: { mode: "read" }): Promise<PermissionState>; requestPermission?(options: { mode: "read" }): Promise<PermissionState> }
type Permitted = FileSystemHandle & Asks;

const result = <T>(request: IDBRequest<T>) => new Promise<T>((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error ?? new Error("the browser's storage failed"));
});

function opened(): Promise<IDBDatabase> {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => { request.result.createObjectStore(STORE, { keyPath: "id", autoIncrement: true }); };
  return result(request);
}

async function inStore<T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const database = await opened();
  try {
    return await result(act(database.transaction(STORE, mode).objectStore(STORE)));
  } finally {
    database.close();
  }
}

/** Lists the latest first. */
export const recents = async (): Promise<Recent[]> => (await inStore<Recent[]>("readonly", (store) => store.getAll())).sort((a, b) => b.when - a.when);

export const forget = (id: number): Promise<undefined> => inStore("readwrite", (store) => store.delete(id));

async function areSame(a: readonly FileSystemHandle[], b: readonly FileSystemHandle[]): Promise<boolean> {
  if (a.length !== b.length) return false;
  for (const [i, handle] of a.entries()) if (!b[i] || !await handle.isSameEntry(b[i])) return false;
  return true;
}

/** Puts a checkpoint first. The same one is not listed twice, and the oldest ones are removed. Returns its number. */
export async function remember(title: string, handles: readonly FileSystemHandle[]): Promise<number> {
  const list = await recents(), kept: Kept = { title, when: Date.now(), handles };
  for (const [i, old] of list.entries()) if (i >= MOST - 1 || await areSame(old.handles, handles)) await forget(old.id);
  return Number(await inStore("readwrite", (store) => store.add(kept)));
}

/** Whether the browser lets the page read it without asking. */
export async function isPermitted({ handles }: Recent): Promise<boolean> {
  const states = await Promise.all((handles as readonly Permitted[]).map((handle) => handle.queryPermission?.({ mode: "read" }) ?? "granted"));
  return states.every((state) => state === "granted");
}

/** Returns the checkpoint that the files make now, or a choice. Asks for permission, which requires a click unless it was given. */
export async function openingOfRecent(recent: Recent): Promise<Opening | Choice> {
  await permit(recent);
  return checkpointsOf(await filesOf(recent.handles).catch((e: unknown) => {
    throw e instanceof DOMException && e.name === "NotFoundError" ? new Error(`'${recent.title}', or a file of it, was moved or removed; choose it again`) : e;
  }));
}

/** Asks for permission again, which requires a click. */
async function permit({ title, handles }: Recent): Promise<void> {
  for (const handle of handles as readonly Permitted[]) {
    if (handle.requestPermission && await handle.requestPermission({ mode: "read" }) !== "granted") throw new Error(`the browser does not allow this page to read '${title}'; choose it again`);
  }
}
