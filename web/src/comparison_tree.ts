/** Shows the names of two checkpoints as one tree, with what a diff states about each and what both contain. Pure. */
import { EntryTree, type Leaf, type Sort, type Totals } from "./entry_tree";
import { termsOf, type IS } from "./filter";
import type { Act, Compared, Diff, DiffSide, Mark, Measured, Row, Side } from "./protocol";

const SELECTED: Readonly<Record<(typeof IS)[number], readonly Mark[]>> = {
  different: ["changed", "only-a", "only-b", "renamed"], changed: ["changed"], "only-a": ["only-a"], "only-b": ["only-b"], renamed: ["renamed"], same: ["same", "match"],
};

const sideOf = (leaf: Leaf | undefined): DiffSide | undefined => leaf && { kind: leaf.kind, ...(leaf.kind === "tensor" ? { dtype: leaf.dtypes[0] ?? "", shape: leaf.shape } : {}) };

interface Sides {
  readonly a: readonly Leaf[];
  readonly b: readonly Leaf[];
  /** The name by which entries are matched. */
  readonly keyOf: (fqn: string) => string;
  /** The names in A and in B that a filter of contents keeps. */
  readonly matching: (text: string) => readonly string[];
  /** The value of an object of one side. */
  readonly valueOf: (side: Side, fqn: string) => string | undefined;
}

/** Adds the values of objects, which a diff states only where they differ. */
function withValues(row: Row, { valueOf }: Sides): Row {
  const { compared } = row;
  if (!compared || row.entry === undefined) return row;
  const { fqn } = row;
  const valued = (side: Side, name: string): DiffSide | undefined => {
    const own = compared[side], repr = own?.kind === "object" && own.repr === undefined ? valueOf(side, name) : undefined;
    return own && repr !== undefined ? { ...own, repr } : own;
  };
  return { ...row, compared: { ...compared, a: valued("a", fqn), b: valued("b", compared.other ?? fqn) } };
}

/** One leaf per name: first those of A, then those that only B has. Entries of B are numbered after those of A. */
function leavesOf({ a, b, keyOf }: Sides, diff: Diff, measures: readonly Measured[]): Leaf[] {
  const ofB = new Map(b.map((leaf) => [keyOf(leaf.fqn), leaf])), changed = new Map(diff.changed.map((c) => [c.fqn, c])), measureOf = new Map(measures.map((m) => [m.fqn, m]));
  const removed = new Set(diff.removed), added = new Set(diff.added), renamed = new Map(diff.renamed.map((r) => [r.a, r])), taken = new Set(diff.renamed.map((r) => r.b));
  const isSame: Mark = diff.summary.values_compared ? "same" : "match";
  const comparedOf = (leaf: Leaf): Compared => {
    const key = keyOf(leaf.fqn), change = changed.get(leaf.fqn) ?? changed.get(key), a = sideOf(leaf), name = renamed.get(leaf.fqn) ?? renamed.get(key);
    const inB = change?.fqn_b ?? ofB.get(key)?.fqn, other = inB === undefined || inB === leaf.fqn ? {} : { other: inB };
    const measure = measureOf.get(leaf.fqn), measured = measure ? { measured: measure } : {};
    if (change) return { mark: "changed", what: change.what, a: change.a, b: change.b, ...other, ...(change.differing === undefined ? {} : { differing: change.differing }), ...(change.max_abs === undefined ? {} : { maxAbs: change.max_abs }), ...measured };
    if (name) return { mark: "renamed", what: [], a, b: sideOf(ofB.get(name.b)), other: name.b, ...(name.differing === undefined ? {} : { differing: name.differing }), ...measured };
    if (removed.has(leaf.fqn) || removed.has(key)) return { mark: "only-a", what: [], a, b: undefined };
    return { mark: leaf.kind === "object" ? "same" : isSame, what: [], a, b: sideOf(ofB.get(key)), ...other }; // objects are always compared
  };
  const onlyB = b.filter((leaf) => (added.has(leaf.fqn) || added.has(keyOf(leaf.fqn))) && !taken.has(leaf.fqn) && !taken.has(keyOf(leaf.fqn)));
  return [
    ...a.map((leaf) => ({ ...leaf, level: undefined, compared: comparedOf(leaf) })),
    ...onlyB.map((leaf, i) => ({ ...leaf, entry: a.length + i, level: undefined, compared: { mark: "only-b" as const, what: [], a: undefined, b: sideOf(leaf) } })),
  ];
}

/** Selects leaves by the terms that concern the comparison, "is:", and by those that concern the entry in A or in B. */
function kept(leaves: readonly Leaf[], text: string, { keyOf, matching }: Sides): readonly Leaf[] {
  const isTerm = /^-?is:/, terms = termsOf(text), of = terms.filter((t) => !isTerm.test(t)), keys = of.length ? new Set(matching(of.join(" ")).map(keyOf)) : undefined;
  const marks = terms.filter((t) => isTerm.test(t)).map((t) => [SELECTED[t.replace(isTerm, "") as keyof typeof SELECTED] ?? [], t.startsWith("-")] as const);
  return leaves.filter(({ fqn, compared: { mark, other = fqn } = {} }) => marks.every(([list, isNot]) => mark && list.includes(mark) !== isNot) && (!keys || keys.has(keyOf(fqn)) || keys.has(keyOf(other))));
}

export class ComparisonTree {
  readonly #leaves: readonly Leaf[];
  #tree: EntryTree;

  constructor(private readonly sides: Sides, diff: Diff, measures: readonly Measured[], sort: Sort, text: string) {
    this.#leaves = leavesOf(sides, diff, measures);
    this.#tree = this.#treeOf(text, sort);
  }

  get count(): number { return this.#tree.count; }
  rows(first: number, count: number): Row[] { return this.#tree.rows(first, count).map((row) => withValues(row, this.sides)); }
  act(node: number, act: Act): number { return this.#tree.act(node, act); }
  find({ fqn, isOnlyInB }: { fqn: string; isOnlyInB: boolean }): { entry: number; compared: Compared } | undefined {
    const leaf = this.#leaves.find((l) => l.fqn === fqn && (l.compared?.mark === "only-b") === isOnlyInB);
    return leaf?.compared && { entry: leaf.entry, compared: leaf.compared };
  }
  reveal(entry: number): number | undefined { return this.#tree.reveal(entry); }

  arrange(text: string, sort: Sort): { kept: number; rows: number; totals: Totals } {
    this.#tree = this.#treeOf(text, sort);
    return { kept: this.#tree.totals.entries, rows: this.count, totals: this.#tree.totals };
  }

  #treeOf(text: string, sort: Sort): EntryTree {
    return new EntryTree(kept(this.#leaves, text, this.sides), sort, text.trim() !== "");
  }
}
