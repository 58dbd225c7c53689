/** The rows that the page has fetched: of the contents, and of the comparison. The worker opens, filters and sorts; the page
 *  shows the result of the latest request. */
import type { Client } from "./client";
import { OWN_ORDER, type Sort, type SortKey, type Totals } from "./entry_tree";
import { faultOf } from "./filter";
import type { Act, OutlineName, Row, Trouble } from "./protocol";
import { troubleOf } from "./trouble";

const PAGE = 64, MOST_PAGES = 200;

export interface Listing {
  count: number;
  filter: string;
  sort: Sort;
  /** The number of entries that the filter keeps; undefined without a filter. */
  kept: number | undefined;
  totals: Totals | undefined;
  /** Whether rows, and totals, are still those of an earlier filter. */
  isArranging: boolean;
  trouble: Trouble | undefined;
  cursor: number;
  /** A row to scroll to. */
  goTo: number | undefined;
  /** The cursor moved, and must be visible. */
  follow: boolean;
  pages: Map<number, Row[]>;
  generation: number;
}

const newListing = (count: number): Listing => ({ count, filter: "", sort: OWN_ORDER, kept: undefined, totals: undefined, isArranging: false, trouble: undefined, cursor: 0, goTo: undefined, follow: false, pages: new Map(), generation: 0 });

export class Lists {
  readonly #of: Record<OutlineName, Listing> = { all: newListing(0), compare: newListing(0) };
  #asked: Record<OutlineName, Promise<void>> = { all: Promise.resolve(), compare: Promise.resolve() };
  /** The dtypes of the checkpoint, and those of both that are compared. Filters are checked against them. */
  readonly dtypes: Record<OutlineName, readonly string[]> = { all: [], compare: [] };

  constructor(private readonly client: () => Client, private readonly changed: () => void) {}

  get(outline: OutlineName): Listing { return this.#of[outline]; }

  reset(outline: OutlineName, count: number): void {
    this.#of[outline].generation++; // Drops rows that are still being fetched.
    this.#of[outline] = newListing(count);
    this.changed();
  }

  /** Remembers work on rows until it is done, whether it succeeds or fails. */
  track<T>(outline: OutlineName, work: Promise<T>): Promise<T> {
    const before = this.#asked[outline];
    this.#asked[outline] = Promise.allSettled([before, work]).then(() => undefined);
    return work;
  }

  /** Resolves when all requested rows, and all changes to them, have arrived. */
  async settled(outline: OutlineName): Promise<void> {
    for (let seen: Promise<void> | undefined; seen !== this.#asked[outline];) await (seen = this.#asked[outline]);
  }

  /** Returns the row after all earlier requests are done; undefined if there is none. */
  async rowAt(outline: OutlineName, index: number): Promise<Row | undefined> {
    await this.settled(outline);
    if (this.row(outline, index)) return this.row(outline, index);
    await this.settled(outline);
    return this.row(outline, index);
  }

  /** Returns the row of the parent of a row. */
  parentOf(outline: OutlineName, row: number): Promise<number> {
    return this.client().call("parent", { outline, row });
  }

  /** Returns a row, or undefined while it is being fetched. */
  row(outline: OutlineName, index: number): Row | undefined {
    const listing = this.#of[outline], number = Math.floor(index / PAGE);
    const page = listing.pages.get(number);
    if (page) return page[index - number * PAGE];
    listing.pages.set(number, []);
    // A failure means that the checkpoint was closed in the meantime.
    void this.track(outline, this.#fetch(outline, listing, number)).catch(() => undefined);
    return undefined;
  }

  async #fetch(outline: OutlineName, listing: Listing, number: number): Promise<void> {
    const { generation } = listing;
    const rows = await this.client().call("rows", { outline, first: number * PAGE, count: PAGE });
    if (listing.generation !== generation) return;
    listing.pages.set(number, rows);
    if (listing.pages.size > MOST_PAGES) listing.pages.delete(listing.pages.keys().next().value ?? 0);
    this.changed();
  }

  /** Replaces the rows after a change. The visible rows are fetched before the old ones are removed, so that nothing
   *  flickers. The cursor stays, or moves to a row that is then scrolled to. */
  async renew(outline: OutlineName, count: number, goTo?: number): Promise<void> {
    const listing = this.#of[outline], inSight = goTo ?? listing.cursor;
    const first = Math.max(0, Math.floor(Math.min(inSight, count - 1) / PAGE) - 1);
    const generation = ++listing.generation;
    const rows = await this.client().call("rows", { outline, first: first * PAGE, count: PAGE * 3 });
    if (listing.generation !== generation) return;
    listing.count = count;
    listing.pages = new Map([0, 1, 2].map((i) => [first + i, rows.slice(i * PAGE, (i + 1) * PAGE)]));
    listing.cursor = Math.min(goTo ?? listing.cursor, Math.max(0, count - 1));
    if (goTo !== undefined) listing.goTo = listing.cursor;
    this.changed();
  }

  act(outline: OutlineName, node: number, act: Act): Promise<void> {
    return this.track(outline, this.#act(outline, node, act));
  }

  /** What arrives for a list that has been replaced is dropped, also the error of a worker that was ended. */
  async #act(outline: OutlineName, node: number, act: Act): Promise<void> {
    const listing = this.#of[outline], isThere = () => this.#of[outline] === listing;
    try {
      const count = await this.client().call("act", { outline, node, act });
      if (isThere()) await this.renew(outline, count);
    } catch (e) {
      const trouble = troubleOf(e);
      if (isThere() && trouble.status !== "cancelled") listing.trouble = trouble;
      this.changed();
    }
  }

  setCursor(outline: OutlineName, index: number): void {
    const listing = this.#of[outline];
    listing.cursor = Math.max(0, Math.min(index, listing.count - 1));
    listing.follow = true;
    this.changed();
  }

  filter(outline: OutlineName, text: string): Promise<void> {
    this.#of[outline].filter = text;
    return this.track(outline, this.#arrange(outline));
  }

  /** Sorts by a column. The same column again reverses the order, and a third time returns to the stored order. Amounts begin
   *  with the largest, cosines with the smallest. */
  sortBy(outline: OutlineName, key: SortKey): Promise<void> {
    const { sort } = this.#of[outline], first = !["name", "dtype", "other", "cosine"].includes(key);
    this.#of[outline].sort = sort.key !== key ? { key, descending: first } : sort.descending === first ? { key, descending: !first } : OWN_ORDER;
    return this.track(outline, this.#arrange(outline));
  }

  storedOrder(outline: OutlineName): Promise<void> {
    this.#of[outline].sort = OWN_ORDER;
    return this.track(outline, this.#arrange(outline));
  }

  async #arrange(outline: OutlineName): Promise<void> {
    const listing = this.#of[outline], { filter, sort } = listing;
    const isLast = () => this.#of[outline] === listing && listing.filter === filter && listing.sort === sort;
    const fault = faultOf(filter, this.dtypes[outline], outline === "compare");
    listing.trouble = fault === undefined ? undefined : { message: fault, status: "page" };
    if (fault !== undefined) listing.kept = listing.totals = undefined;
    listing.isArranging = fault === undefined;
    this.changed();
    if (fault !== undefined) return;
    try {
      const arranged = await this.client().call("arrange", { outline, text: filter, sort });
      if (!isLast()) return;
      await this.renew(outline, arranged.rows, 0);
      if (!isLast()) return;
      listing.kept = filter.trim() ? arranged.kept : undefined;
      listing.totals = arranged.totals;
    } catch (e) {
      const trouble = troubleOf(e);
      if (isLast() && trouble.status !== "cancelled") listing.trouble = trouble;
    }
    if (isLast()) listing.isArranging = false;
    this.changed();
  }
}
