/** Opens after a reload what the tab had open before. The tab keeps the number of the recent checkpoint, and how it was opened. */
import { onlyOne } from "./collect";
import type { Model } from "./model";
import type { Opening } from "./protocol";

const OPEN = "open";
type Kept = Pick<Opening, "title" | "part" | "shards" | "salvage" | "recent">;

let latest: Opening | undefined;

/** Keeps what is open, or forgets what was. A browser that keeps nothing for the tab opens nothing again. */
export function keepOpen(opening: Opening | undefined): void {
  if (latest === opening) return;
  latest = opening;
  try {
    if (opening?.recent === undefined) return sessionStorage.removeItem(OPEN);
    const { title, part, shards, salvage, recent } = opening;
    sessionStorage.setItem(OPEN, JSON.stringify({ title, part, shards, salvage, recent }));
  } catch { /* as it says above */ }
}

function kept(): Kept | undefined {
  try {
    return JSON.parse(sessionStorage.getItem(OPEN) ?? "null") as Kept | null ?? undefined;
  } catch {
    return undefined;
  }
}

/** If the browser lets the page read it, opens it, and otherwise offers that, unless something else is opened first. `then` follows. */
export async function reopen(model: Model, then: () => Promise<void>): Promise<void> {
  const last = kept(), { client } = model; // another one answers as soon as something is being opened
  if (!last) return;
  const { isPermitted, openingOfRecent, recents } = await import("./recent"), recent = (await recents().catch(() => [])).find(({ id }) => id === last.recent);
  const mayRead = recent !== undefined && await isPermitted(recent);
  if (!recent || model.client !== client) return;
  const open = async () => {
    const isOpen = await model.open(async () => {
      const found = await openingOfRecent(recent), { title, ...how } = last;
      return { ...("options" in found ? found.options.find((o) => o.title === title) ?? onlyOne(found) : found), ...how };
    });
    if (isOpen) await then();
  };
  if (mayRead) return open();
  model.offerAgain({ title: last.title, open });
}
