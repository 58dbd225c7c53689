/** The contents of a checkpoint as rows: the module's outline if they are in the checkpoint's own order, and otherwise a
 *  tree of the entries that the filter keeps, in the chosen order. */
import type { EntryRow, MappedCheckpoint, Outline } from "../../wasm/tessera.js";
import { elementsOf, EntryTree, OWN_ORDER, type Leaf, type Sort, type Totals } from "./entry_tree";
import { isDense, type Act, type Detail, type Row } from "./protocol";
import { shardingOf } from "./shardmap";
import { objectText, startOf } from "./text";

const ROWS = 4096;
/** If there are more entries, two checkpoints cannot be compared here, and groups have no totals while a filter is set. */
export const MOST_SORTED = 200_000;
/** If there are more entries, they are shown as the module's outline until they are sorted: listing them all would delay the
 *  first rows. */
const MOST_LISTED = 20_000;
/** A filter that keeps every entry, so that all entries become rows and none is folded. */
const EVERYTHING = "kind:";

type Listed = Pick<MappedCheckpoint, "outline" | "document">;

/** Returns what the document of an entry says of it. */
export const entryIn = (checkpoint: Pick<MappedCheckpoint, "document">, entry: number): Detail | undefined => (JSON.parse(checkpoint.document("entry", { entry })) as { entries: Detail[] }).entries[0];

/** The row of an entry that is a group, too, such as "weight" next to "weight.absmax", has the sums of the group in the
 *  outline. Returns it with the numbers of the entry. */
function ownRow<T extends Row>(row: T, checkpoint: Listed): T {
  const { entry } = row;
  if (!row.group || entry === undefined) return row;
  const detail = entryIn(checkpoint, entry);
  return isDense(detail) ? { ...row, dtypes: [detail.dtype], elements: elementsOf(detail.shape), bytes: detail.bytes } : { ...row, dtypes: [], elements: 0, bytes: 0 };
}

const MOST_VALUE = 60, MOST_READ = 4096, MOST_BOXES = 64;

/** Returns the document of an object, whose value may have to be read, or undefined if that costs too much. */
export type DocumentOf = (entry: number) => string | undefined;

/** Returns the value of an object as Python writes it, cut for a row. Undefined if it is not known or too long to read. */
export function valueInRow(document: string | undefined): string | undefined {
  const text = document !== undefined && document.length <= MOST_READ ? objectText(document)?.replace(/\s+/g, " ") : undefined;
  return text && startOf(text, MOST_VALUE);
}

/** Adds to the row of an entry what its other columns show: the value of an object, and how a tensor is divided. */
function describedRow(row: Row, checkpoint: Listed, objectOf: DocumentOf): Row {
  if (row.entry === undefined || (row.kind === "tensor" && row.chunks < 2)) return row;
  if (row.kind === "tensor") {
    const detail = entryIn(checkpoint, row.entry);
    return isDense(detail) ? { ...row, sharding: shardingOf(detail.shape, detail.chunks, MOST_BOXES) } : row;
  }
  const value = valueInRow(objectOf(row.entry));
  return value === undefined ? row : { ...row, value };
}

const leafOf = ({ entry, fqn, kind, shape, dtypes, elements, bytes, chunks, level }: EntryRow): Leaf =>
  ({ entry, fqn, kind, shape, dtypes, elements, bytes, chunks, level });

/** Yields the entries among the rows of a filtered outline. */
function* entryRows(outline: Outline): Generator<EntryRow> {
  for (let at = 0; at < outline.count; at += ROWS) {
    for (const row of outline.rows(at, ROWS)) if (row.entry !== undefined) yield row;
  }
}

const entriesOf = (outline: Outline, checkpoint: Listed): Leaf[] => [...entryRows(outline)].map((row) => leafOf(ownRow(row, checkpoint)));

/** Returns all entries of a checkpoint, or undefined if there are too many to list. */
export function leavesOf(checkpoint: Listed, most = MOST_SORTED): Leaf[] | undefined {
  const outline = checkpoint.outline();
  try {
    return outline.filter(EVERYTHING) > most ? undefined : entriesOf(outline, checkpoint);
  } finally {
    outline.close();
  }
}

/** Returns the names that a filter keeps, or the first of them. */
export function namesMatching(checkpoint: Listed, text: string, most = Infinity): string[] {
  const outline = checkpoint.outline(), names: string[] = [];
  try {
    outline.filter(text);
    for (const { fqn } of entryRows(outline)) if (names.push(fqn) >= most) break;
    return names;
  } finally {
    outline.close();
  }
}

interface Arranged { readonly kept: number; readonly rows: number; readonly totals: Totals | undefined }

export class Contents {
  #tree: EntryTree | undefined;

  constructor(readonly outline: Outline, private readonly checkpoint: Listed, private readonly objectOf: DocumentOf) {
    this.arrange("", OWN_ORDER);
  }

  get #source(): Outline | EntryTree { return this.#tree ?? this.outline; }
  get count(): number { return this.#source.count; }
  rows(first: number, count: number): Row[] {
    const rows = this.#tree?.rows(first, count) ?? this.outline.rows(first, count).map((row) => ownRow<Row>(row, this.checkpoint));
    return rows.map((row) => describedRow(row, this.checkpoint, this.objectOf));
  }
  act(node: number, act: Act): number { return this.#source.act(node, act); }
  reveal(entry: number): number | undefined { return this.#source.reveal(entry); }

  arrange(text: string, sort: Sort): Arranged {
    const isPlain = text.trim() === "", isOwnOrder = sort.key === OWN_ORDER.key;
    this.#tree = undefined;
    const kept = this.outline.filter(isPlain ? EVERYTHING : text);
    if (!isOwnOrder || kept <= (isPlain ? MOST_LISTED : MOST_SORTED)) this.#tree = new EntryTree(entriesOf(this.outline, this.checkpoint), sort, !isPlain);
    else if (isPlain) this.outline.filter("");
    return { kept, rows: this.count, totals: this.#tree?.totals };
  }
}
