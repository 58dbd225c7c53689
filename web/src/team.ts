/** Shares work between several workers, each with its own module and its own access to the files. Fetched when there is such
 *  work. */
import type { Diff, DiffOptions, Findings, Kind, Measured, Opening, PairOfNames, Requests } from "./protocol";

interface Member { call<K extends Kind>(kind: K, takes: Requests[K]["takes"]): Promise<Requests[K]["gives"]> }

const MOST_WORKERS = 4;
/** While one worker waits for the browser to read, another one computes. The browser also reads with less processor time if more workers ask. */
const WORKERS_PER_CORE = 2;
/** The least number of bytes for which a worker is started. */
const LEAST_BYTES = 32 << 20;
/** Larger metadata take much memory in each worker, so only one worker is used. */
const MOST_METADATA = 4 << 20;
/** More than one part per worker, so that no worker waits long for the last one. */
const PARTS_EACH = 4;

/** Returns how many workers share the reading of these checkpoints. Only one worker reads from servers. */
export function workersFor(openings: readonly Opening[], { hardwareConcurrency = 1, deviceMemory = 8 }: { hardwareConcurrency?: number; deviceMemory?: number }): number {
  const files = openings.flatMap((o) => o.files), bytes = files.reduce((sum, f) => sum + f.size, 0);
  const metadata = files.reduce((sum, f) => sum + (/(^|\/)\.metadata$|\.json$/.test(f.name) ? f.size : 0), 0);
  if (files.some((f) => "url" in f) || metadata > MOST_METADATA) return 1;
  return Math.max(1, Math.floor(Math.min(MOST_WORKERS, hardwareConcurrency * WORKERS_PER_CORE, deviceMemory / 2, bytes / LEAST_BYTES)));
}

const statusOf = (e: unknown): unknown => (e as { trouble?: { status?: unknown } }).trouble?.status;
/** Whether the worker itself failed, which says nothing about the files. */
const isOwn = (e: unknown): boolean => ["broken", "out of memory", "page", "cancelled"].includes(String(statusOf(e)));

/** Takes the part after `last`, of which the worker has read some bytes ahead. If that is taken, takes the middle of the longest
 *  run of waiting parts, and leaves the first half to the worker that comes to it. `waiting` is sorted. */
function takeNext(waiting: number[], last: number): number | undefined {
  const behind = waiting.indexOf(last + 1);
  let from = 0, longest = 0;
  for (let at = 0, start = 0; at < waiting.length; at++) {
    if (at > 0 && waiting[at] !== (waiting[at - 1] ?? 0) + 1) start = at;
    if (at - start >= longest) [from, longest] = [start, at + 1 - start];
  }
  return waiting.splice(behind >= 0 ? behind : from + (longest >> 1), 1)[0];
}

/** Computes all parts, by `first` and the workers that join. After a failure, only the parts before it are computed, so that
 *  the reported failure is that of the first part, as with a single worker. */
async function inParts<T>(first: Member, join: () => Promise<Member>, workers: number, call: (member: Member, part: number, parts: number) => Promise<T>): Promise<T[]> {
  const parts = workers * PARTS_EACH, found = new Map<number, T>();
  let waiting = Array.from({ length: parts }, (_, i) => i);
  let failed: { readonly part: number; readonly error: unknown } | undefined;
  const work = async (member: Member) => {
    let part: number | undefined = member === first ? -1 : parts;
    while ((part = takeNext(waiting, part)) !== undefined) {
      try {
        found.set(part, await call(member, part, parts));
      } catch (error) {
        if (member !== first && isOwn(error)) {
          if (!failed || part < failed.part) waiting.push(part);
          waiting.sort((a, b) => a - b);
          return;
        }
        if (!failed || part < failed.part) failed = { part, error };
        waiting = waiting.filter((p) => p < (failed?.part ?? p));
      }
    }
  };
  await Promise.all([work(first), ...Array.from({ length: workers - 1 }, () => join().then(work, () => undefined))]);
  await work(first); // parts that a failed worker has left
  if (failed) throw failed.error;
  return Array.from({ length: parts }, (_, part) => found.get(part) as T);
}

export async function checkBytes(first: Member, join: () => Promise<Member>, opening: Opening): Promise<Findings> {
  const workers = workersFor([opening], navigator);
  return first.call("deepFindings", workers === 1 ? {} : { found: await inParts(first, join, workers, (member, part, parts) => member.call("deepPart", { part, parts })) });
}

export async function compareValues(first: Member, join: () => Promise<Member>, { canonical, map, atol, rtol, openings }: Pick<DiffOptions, "canonical" | "map" | "atol" | "rtol"> & { readonly openings: readonly Opening[] }): Promise<Diff> {
  const workers = workersFor(openings, navigator), options = { values: true, layout: false, canonical, map, atol, rtol };
  if (workers === 1) return first.call("diff", options);
  return first.call("diff", { ...options, found: await inParts(first, join, workers, (member, part, parts) => member.call("diffPart", { canonical, map, atol, rtol, part, parts })) });
}

export async function measure(first: Member, join: () => Promise<Member>, { pairs, map, openings }: Pick<DiffOptions, "map"> & { readonly pairs: readonly PairOfNames[]; readonly openings: readonly Opening[] }): Promise<readonly Measured[]> {
  const workers = workersFor(openings, navigator);
  if (workers === 1) return first.call("measure", { pairs, map });
  return (await inParts(first, join, workers, (member, part, parts) => member.call("measure", { map, pairs: pairs.filter((_, i) => i % parts === part) }))).flat();
}
