/** Work that several workers share, each with its own module and its own hold of the files. Fetched when there is such work. */
import type { Diff, Kind, Opening, Requests } from "./protocol";

interface Member { call<K extends Kind>(kind: K, takes: Requests[K]["takes"]): Promise<Requests[K]["gives"]> }

const MOST_WORKERS = 4;
/** What a worker is started for, at least. */
const LEAST_BYTES = 32 << 20;
/** Beyond that many bytes, metadata takes much memory in each worker; what is not large beside it is not worth it, either. */
const MOST_METADATA = 4 << 20;
/** So that none waits long for the last one. */
const PARTS_EACH = 4;

/** How many workers share the reading of these checkpoints. Servers are asked by one. */
export function workersFor(openings: readonly Opening[], { hardwareConcurrency = 1, deviceMemory = 8 }: { hardwareConcurrency?: number; deviceMemory?: number }): number {
  const files = openings.flatMap((o) => o.files), bytes = files.reduce((sum, f) => sum + f.size, 0);
  const metadata = files.reduce((sum, f) => sum + (/(^|\/)\.metadata$|\.json$/.test(f.name) ? f.size : 0), 0);
  if (files.some((f) => "url" in f) || metadata > MOST_METADATA) return 1;
  return Math.max(1, Math.floor(Math.min(MOST_WORKERS, hardwareConcurrency, deviceMemory / 2, bytes / LEAST_BYTES)));
}

const statusOf = (e: unknown): unknown => (e as { trouble?: { status?: unknown } }).trouble?.status;
/** A worker that could not go on, which says nothing about the files. */
const isOwn = (e: unknown): boolean => ["broken", "out of memory", "page", "cancelled"].includes(String(statusOf(e)));

/** All parts, as `first` and those who join find them. Parts are taken in order, so that the failure that is reported is the first
 *  one's, as it is where one worker does all. */
async function inParts<T>(first: Member, join: () => Promise<Member>, workers: number, call: (member: Member, part: number, parts: number) => Promise<T>): Promise<T[]> {
  const parts = workers * PARTS_EACH, waiting = Array.from({ length: parts }, (_, i) => i), found = new Map<number, T>();
  let failed: { readonly part: number; readonly error: unknown } | undefined;
  const work = async (member: Member) => {
    for (let part = waiting.shift(); part !== undefined && (!failed || part < failed.part); part = waiting.shift()) {
      try {
        found.set(part, await call(member, part, parts));
      } catch (error) {
        if (member !== first && isOwn(error)) {
          waiting.push(part);
          waiting.sort((a, b) => a - b);
          return;
        }
        if (!failed || part < failed.part) failed = { part, error };
      }
    }
  };
  await Promise.all([work(first), ...Array.from({ length: workers - 1 }, () => join().then(work, () => undefined))]);
  await work(first); // what a worker that could not go on has left
  if (failed) throw failed.error;
  return Array.from({ length: parts }, (_, part) => found.get(part) as T);
}

export async function compareValues(first: Member, join: () => Promise<Member>, { canonical, openings }: { canonical: boolean; openings: readonly Opening[] }): Promise<Diff> {
  const workers = workersFor(openings, navigator), options = { values: true, layout: false, canonical };
  if (workers === 1) return first.call("diff", options);
  return first.call("diff", { ...options, found: await inParts(first, join, workers, (member, part, parts) => member.call("diffPart", { canonical, part, parts })) });
}
