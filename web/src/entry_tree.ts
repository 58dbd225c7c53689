/** A tree of entries that the page sorts and filters itself. Totals are those of the rows that are kept. The module's own
 *  outline shows a checkpoint in its own order; this tree is for all other orders, and for comparisons. Pure. */
import type { Act, Compared, Level, Row } from "./protocol";

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

export type SortKey = "name" | "shape" | "dtype" | "size" | "shards";
export interface Sort { readonly key: SortKey; readonly descending: boolean }
/** The checkpoint's own order. */
export const OWN_ORDER: Sort = { key: "name", descending: false };

export interface Totals { readonly entries: number; readonly tensors: number; readonly elements: number; readonly bytes: number }

interface Node {
  readonly number: number;
  readonly name: string;
  readonly depth: number;
  readonly parent: Node | undefined;
  readonly children: Map<string, Node>;
  order: Node[];
  leaf: Leaf | undefined;
  open: boolean;
  entries: number;
  elements: number;
  bytes: number;
  chunks: number;
  differing: number;
  dtypes: Set<string>;
  level: Level | undefined;
}

const SCREEN = 40;
const LEVELS: readonly (Level | undefined)[] = [undefined, "note", "warning", "error"];
const worse = (a: Level | undefined, b: Level | undefined): Level | undefined => LEVELS.indexOf(a) >= LEVELS.indexOf(b) ? a : b;
export const elementsOf = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1);

/** Numbers inside names are compared as numbers: layer 10 comes after layer 9. */
const byName = new Intl.Collator("en", { numeric: true }).compare;

const COMPARE: Record<SortKey, (a: Node, b: Node) => number> = {
  name: (a, b) => byName(a.name, b.name),
  shape: (a, b) => elementsOf(a.leaf?.shape ?? [0]) - elementsOf(b.leaf?.shape ?? [0]),
  dtype: (a, b) => byName([...a.dtypes].join(), [...b.dtypes].join()),
  size: (a, b) => a.bytes - b.bytes,
  shards: (a, b) => a.chunks - b.chunks,
};

export class EntryTree {
  readonly #nodes: Node[] = [];
  readonly #ofEntry = new Map<number, Node>();
  #shown: Node[] = [];

  constructor(leaves: readonly Leaf[], sort: Sort, allOpen: boolean) {
    const root = this.#node("", undefined);
    for (const leaf of leaves) this.#add(root, leaf);
    this.#addUp();
    this.#sort(sort);
    if (allOpen) for (const node of this.#nodes) node.open = true;
    else this.#openFirstLevels();
    this.#show();
  }

  get count(): number { return this.#shown.length; }

  get totals(): Totals {
    const leaves = this.#nodes.filter((n) => n.leaf), [root] = this.#nodes;
    return { entries: leaves.length, tensors: leaves.filter((n) => n.leaf?.kind === "tensor").length, elements: root?.elements ?? 0, bytes: root?.bytes ?? 0 };
  }

  rows(first: number, count: number): Row[] {
    return this.#shown.slice(first, first + count).map(rowOf);
  }

  act(number: number, act: Act): number {
    let node = this.#nodes[number];
    if (!node) return this.count;
    if (act === "open-all" || act === "close-all") this.#below(node, (n) => { n.open = act === "open-all"; });
    else if (act === "close") node.open = false;
    else if (act === "open") {
      for (node.open = true; node.order.length === 1 && node.order[0];) (node = node.order[0]).open = true; // open chains of only children, too
    }
    this.#show();
    return this.count;
  }

  /** Opens the parents of the entry and returns its row. */
  reveal(entry: number): number | undefined {
    const own = this.#ofEntry.get(entry);
    if (!own) return undefined;
    for (let node = own.parent; node; node = node.parent) node.open = true;
    this.#show();
    return this.#shown.indexOf(own);
  }

  #node(name: string, parent: Node | undefined): Node {
    const node: Node = { number: this.#nodes.length, name, depth: parent ? parent.depth + 1 : 0, parent, children: new Map(), order: [], leaf: undefined, open: false,
      entries: 0, elements: 0, bytes: 0, chunks: 0, differing: 0, dtypes: new Set(), level: undefined };
    this.#nodes.push(node);
    parent?.children.set(name, node);
    return node;
  }

  #add(root: Node, leaf: Leaf): void {
    let node = root;
    for (const part of leaf.fqn.split(".")) node = node.children.get(part) ?? this.#node(part, node);
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
        leaf.dtypes.forEach((d) => node.dtypes.add(d));
        node.level = worse(node.level, leaf.level);
      }
      node.order = [...node.children.values()];
      if (!parent) continue;
      parent.entries += node.entries;
      parent.elements += node.elements;
      parent.bytes += node.bytes;
      parent.chunks += node.chunks;
      parent.differing += node.differing;
      node.dtypes.forEach((d) => parent.dtypes.add(d));
      parent.level = worse(parent.level, node.level);
    }
  }

  #sort({ key, descending }: Sort): void {
    if (key === OWN_ORDER.key && !descending) return;
    const compare = COMPARE[key], sign = descending ? -1 : 1;
    for (const node of this.#nodes) node.order.sort((a, b) => sign * compare(a, b) || byName(a.name, b.name));
  }

  #openFirstLevels(): void {
    const sizes: number[] = [];
    for (const { depth } of this.#nodes) sizes[depth] = (sizes[depth] ?? 0) + 1;
    let rows = 0, deepest = 0;
    while (deepest + 1 < sizes.length && (rows += sizes[deepest + 1] ?? 0) <= SCREEN) deepest++;
    for (const node of this.#nodes) node.open = node.depth < Math.max(1, deepest);
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
    const rest = [...this.#nodes[0]?.order ?? []].reverse();
    for (let node = rest.pop(); node; node = rest.pop()) {
      this.#shown.push(node);
      if (node.open) for (let i = node.order.length - 1; i >= 0; i--) rest.push(node.order[i] as Node);
    }
  }
}

function rowOf(node: Node): Row {
  const { number, name, depth, open, entries, elements, bytes, leaf, level, differing, chunks } = node;
  const base = { node: number, name, depth, group: node.order.length > 0, open, run: 0, folded: false, odd: false, level, entries, elements, bytes, chunks, dtypes: [...node.dtypes], differing, isTotal: true };
  return leaf ? { ...base, ...leaf, level } : base;
}
