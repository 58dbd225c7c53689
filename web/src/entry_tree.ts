/** A tree of entries that the page sorts and filters itself. Totals are those of the rows that are kept. Groups with only one
 *  child are joined with it, and numbered siblings that are alike are folded into one row, also while a filter is set and in
 *  comparisons. The module's own outline shows a checkpoint with very many entries in stored order. Pure. */
import { isFinitePair, type Act, type Compared, type Level, type Mark, type Row } from "./protocol";

export interface Leaf {
  readonly entry: number;
  readonly fqn: string;
  readonly kind: "tensor" | "object" | "opaque";
  readonly dtypes: readonly string[];
  readonly shape: readonly number[];
  readonly elements: number;
  readonly bytes: number;
  readonly chunks: number;
  readonly level: Level | undefined;
  readonly compared?: Compared;
}

export type SortKey = "stored" | "name" | "shape" | "dtype" | "size" | "shards" | "change" | "other" | "delta" | "relative" | "cosine";
export interface Sort { readonly key: SortKey; readonly descending: boolean }
/** The order in which the checkpoint stores its entries. */
export const OWN_ORDER: Sort = { key: "stored", descending: false };

export interface Totals { readonly entries: number; readonly tensors: number; readonly elements: number; readonly bytes: number }

interface Node {
  readonly number: number;
  readonly name: string;
  readonly depth: number;
  readonly parent: Node | undefined;
  children: Map<string, Node> | undefined;
  order: Node[];
  leaf: Leaf | undefined;
  open: boolean;
  entries: number;
  elements: number;
  bytes: number;
  chunks: number;
  differing: number;
  dtypes: readonly string[];
  level: Level | undefined;
  /** The largest relative error and the smallest cosine in it. NaN and infinite values are worse than any. */
  relative: number;
  cosine: number;
  /** A hash of everything below it except its own name. Siblings with equal ones are alike. */
  form: number;
  /** The siblings that are alike, on each of them. */
  run: Run | undefined;
  odd: boolean;
}

interface Run { readonly members: readonly Node[]; folded: boolean }

/** A row that is shown: a node, the name that it has together with the groups joined with it, and its depth among the rows. */
interface Shown { readonly node: Node; readonly name: string; readonly depth: number }

const SCREEN = 40, LEAST_ALIKE = 3;
const NONE: Node[] = [];
const LEVELS: readonly (Level | undefined)[] = [undefined, "note", "warning", "error"];
const worse = (a: Level | undefined, b: Level | undefined): Level | undefined => LEVELS.indexOf(a) >= LEVELS.indexOf(b) ? a : b;
export const elementsOf = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1);

/** Numbers inside names are compared as numbers: layer 10 comes after layer 9. */
const byName = new Intl.Collator("en", { numeric: true }).compare;

const MARKS: readonly Mark[] = ["match", "same", "renamed", "only-b", "only-a", "changed"];
/** The entry of a row: of a group with one child, it is the child's. */
function entryOf(node: Node): Leaf | undefined {
  let at = node;
  while (!at.leaf && at.order.length === 1 && at.order[0]) [at] = at.order as [Node];
  return at.leaf;
}
const markOf = (node: Node): number => MARKS.indexOf(entryOf(node)?.compared?.mark ?? "match");
const largest = (node: Node): number => { const most = entryOf(node)?.compared?.maxAbs; return most === undefined ? -1 : most === "nan" || most === 0 || most === "inf" ? Infinity : Number(most); };
const other = (node: Node): string => { const b = entryOf(node)?.compared?.b; return b ? `${b.dtype ?? b.kind} ${b.shape?.join() ?? ""}` : ""; };

/** What was not measured is better than any. */
function relativeOf({ compared }: Leaf): number {
  const measured = compared?.measured;
  if (!measured) return -1;
  return isFinitePair(measured) ? measured.relative || 0 : Infinity;
}
function cosineOf({ compared }: Leaf): number {
  const measured = compared?.measured;
  if (!measured) return 2;
  return isFinitePair(measured) ? Number.isNaN(measured.cosine) ? -2 : measured.cosine ?? 2 : -Infinity;
}
const byNumber = (a: number, b: number): number => a === b ? 0 : a - b; // Infinity − Infinity is NaN

const COMPARE: Record<SortKey, (a: Node, b: Node) => number> = {
  stored: () => 0,
  change: (a, b) => a.differing - b.differing || markOf(a) - markOf(b),
  other: (a, b) => byName(other(a), other(b)),
  delta: (a, b) => a.differing - b.differing || byNumber(largest(a), largest(b)),
  relative: (a, b) => byNumber(a.relative, b.relative),
  cosine: (a, b) => byNumber(a.cosine, b.cosine),
  name: (a, b) => byName(a.name, b.name),
  shape: (a, b) => a.elements - b.elements,
  dtype: (a, b) => byName(a.dtypes.join(), b.dtypes.join()),
  size: (a, b) => a.bytes - b.bytes,
  shards: (a, b) => a.chunks - b.chunks,
};

const union = (a: readonly string[], b: readonly string[]): readonly string[] => a === b || b.every((d) => a.includes(d)) ? a : a.length === 0 ? b : [...new Set([...a, ...b])];

const mix = (a: number, b: number): number => { const h = Math.imul(a ^ b, 0x9e3779b1); return (h ^ (h >>> 15)) >>> 0; };
function hashOf(text: string): number {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  return h >>> 0;
}
/** Two hashes of 26 bits make one number that a double holds exactly. */
const formOf = (form: number, text: string): number => (mix(Math.floor(form / 2 ** 26), hashOf(text)) & 0x3ffffff) * 2 ** 26 + (mix(form % 2 ** 26, hashOf(`${text}~`)) & 0x3ffffff);

export class EntryTree {
  readonly #nodes: Node[] = [];
  readonly #ofEntry = new Map<number, Node>();
  readonly #root: Node;
  #shown: Shown[] = [];

  constructor(leaves: readonly Leaf[], sort: Sort, allOpen: boolean) {
    const root = this.#root = this.#node("", undefined);
    for (const leaf of leaves) this.#add(root, leaf);
    this.#addUp();
    this.#sort(sort);
    for (const node of this.#nodes) if (node.order.length >= LEAST_ALIKE) findRuns(node.order);
    if (allOpen) for (const node of this.#nodes) node.open = true;
    else this.#openFirstLevels();
    this.#show();
  }

  get count(): number { return this.#shown.length; }

  get totals(): Totals {
    let entries = 0, tensors = 0;
    for (const { leaf } of this.#nodes) { entries += leaf ? 1 : 0; tensors += leaf?.kind === "tensor" ? 1 : 0; }
    return { entries, tensors, elements: this.#root.elements, bytes: this.#root.bytes };
  }

  rows(first: number, count: number): Row[] {
    return this.#shown.slice(first, first + count).map(rowOf);
  }

  act(number: number, act: Act): number {
    let node = this.#nodes[number];
    if (!node) return this.count;
    if (act === "open-all" || act === "close-all") this.#below(node, (n) => { n.open = act === "open-all"; });
    else if (act === "close") node.open = false;
    else if (act === "fold" || act === "unfold") { if (node.run) node.run.folded = act === "fold"; }
    else for (node.open = true; node.order.length === 1 && node.order[0];) (node = node.order[0]).open = true; // open chains of only children, too
    this.#show();
    return this.count;
  }

  /** Opens the parents of the entry and returns its row. */
  reveal(entry: number): number | undefined {
    const own = this.#ofEntry.get(entry);
    if (!own) return undefined;
    for (let node: Node | undefined = own; node; node = node.parent) {
      if (node !== own) node.open = true;
      if (node.run && node.run.members[0] !== node) node.run.folded = false;
    }
    this.#show();
    return this.#shown.findIndex(({ node }) => node === own);
  }

  #node(name: string, parent: Node | undefined): Node {
    const node: Node = { number: this.#nodes.length, name, depth: parent ? parent.depth + 1 : 0, parent, children: undefined, order: NONE, leaf: undefined, open: false,
      entries: 0, elements: 0, bytes: 0, chunks: 0, differing: 0, dtypes: [], level: undefined, relative: -1, cosine: 2, form: 0, run: undefined, odd: false };
    this.#nodes.push(node);
    if (parent) (parent.children ??= new Map()).set(name, node);
    return node;
  }

  #add(root: Node, leaf: Leaf): void {
    let node = root;
    for (const part of leaf.fqn.split(".")) node = node.children?.get(part) ?? this.#node(part, node);
    node.leaf = leaf;
    this.#ofEntry.set(leaf.entry, node);
  }

  /** Children come after their parents, so going backwards adds each sum when it is complete. */
  #addUp(): void {
    for (let i = this.#nodes.length - 1; i >= 0; i--) {
      const node = this.#nodes[i];
      if (!node) continue;
      const { leaf, parent } = node;
      if (leaf) {
        node.entries++;
        node.elements += leaf.elements;
        node.bytes += leaf.bytes;
        node.chunks += leaf.chunks;
        node.differing += leaf.compared && !["same", "match"].includes(leaf.compared.mark) ? 1 : 0;
        node.dtypes = union(node.dtypes, leaf.dtypes);
        node.level = worse(node.level, leaf.level);
        node.relative = Math.max(node.relative, relativeOf(leaf));
        node.cosine = Math.min(node.cosine, cosineOf(leaf));
        node.form = formOf(node.form, `${leaf.kind} ${leaf.dtypes.join()} ${leaf.shape.join()} ${leaf.compared?.mark ?? ""} ${leaf.compared?.what.join() ?? ""}`);
      }
      if (node.children) node.order = [...node.children.values()];
      node.children = undefined;
      if (!parent) continue;
      parent.entries += node.entries;
      parent.elements += node.elements;
      parent.bytes += node.bytes;
      parent.chunks += node.chunks;
      parent.differing += node.differing;
      parent.dtypes = union(parent.dtypes, node.dtypes);
      parent.level = worse(parent.level, node.level);
      parent.relative = Math.max(parent.relative, node.relative);
      parent.cosine = Math.min(parent.cosine, node.cosine);
      parent.form = formOf(parent.form, `${node.name} ${node.form}`);
    }
  }

  #sort({ key, descending }: Sort): void {
    if (key === OWN_ORDER.key) return;
    const compare = COMPARE[key], sign = descending ? -1 : 1;
    for (const node of this.#nodes) if (node.order.length > 1) node.order.sort((a, b) => sign * compare(a, b) || byName(a.name, b.name));
  }

  /** Opens as many whole levels as fit on a screen. */
  #openFirstLevels(): void {
    for (const node of this.#nodes) node.open = node.depth < 1;
    for (let depth = 1; ; depth++) {
      const level = this.#nodes.filter((n) => n.depth === depth && n.order !== NONE);
      if (level.length === 0) return;
      for (const node of level) node.open = true;
      this.#show();
      if (this.count <= SCREEN) continue;
      for (const node of level) node.open = false;
      return;
    }
  }

  #below(top: Node, body: (node: Node) => void): void {
    const rest = [top];
    for (let node = rest.pop(); node; node = rest.pop()) {
      body(node);
      for (const child of node.order) rest.push(child);
    }
  }

  #show(): void {
    this.#shown = [];
    const rest: { node: Node; depth: number }[] = [], below = (nodes: readonly Node[], depth: number) => { for (let i = nodes.length - 1; i >= 0; i--) rest.push({ node: nodes[i] as Node, depth }); };
    below(this.#root.order, 1);
    for (let next = rest.pop(); next; next = rest.pop()) {
      const { depth } = next;
      let { node } = next, { name } = node;
      if (node.run?.folded && node.run.members[0] !== node) continue;
      while (!node.leaf && !node.run && node.order.length === 1 && node.order[0]) name += `.${(node = node.order[0]).name}`;
      this.#shown.push({ node, name, depth });
      if (node.open) below(node.order, depth + 1);
    }
  }
}

/** Finds numbered siblings that follow each other and are alike. Other numbered ones among them are then odd. */
function findRuns(siblings: readonly Node[]): void {
  const isNumbered = (n: Node) => n.order.length > 0 && /^\d+$/.test(n.name);
  let members: Node[] = [], any = false;
  const end = () => {
    if (members.length < LEAST_ALIKE) return;
    any = true;
    const run: Run = { members, folded: true };
    for (const node of members) node.run = run;
  };
  for (const node of siblings) {
    if (members[0] && isNumbered(node) && node.form === members[0].form) { members.push(node); continue; }
    end();
    members = isNumbered(node) ? [node] : [];
  }
  end();
  if (any) for (const node of siblings) node.odd = !node.run && /^\d+$/.test(node.name);
}

function rowOf({ node, name, depth }: Shown): Row {
  const { number, open, entries, elements, bytes, leaf, level, differing, chunks, run, odd, order } = node, first = run?.members[0] === node ? run : undefined;
  const base = { node: number, name, depth, group: order.length > 0, open, run: first?.members.length ?? 0, folded: first?.folded ?? false, odd, level, entries, elements, bytes, chunks, dtypes: node.dtypes, differing, isTotal: true };
  const last = first?.folded ? { last: first.members.at(-1)?.name } : {};
  return leaf ? { ...base, ...last, ...leaf, level } : { ...base, ...last };
}
