/** Separates parameters of a model from optimizer state and from other tensors, judged by names, dtypes and shapes. */
import type { Outline, Row } from "../../wasm/tessera.js";

export interface Amount { readonly elements: number; readonly bytes: number }
export interface Amounts {
  readonly optimizer: Amount;
  /** Undefined if their number cannot be told: weights are packed or scaled, or there are too many entries to look at. */
  readonly parameters: Amount | undefined;
}

const OPTIMIZER = /^(optim|optimizer|opt)(_?states?|s)?(_?\d+)?$/i;

/** Whether an entry is optimizer state, judged by the first two parts of its name. */
export const isOptimizerName = (fqn: string): boolean => fqn.split(".").slice(0, 2).some((part) => OPTIMIZER.test(part));

const PLAIN: ReadonlySet<string> = new Set(["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]);
/** Of batch normalization. */
const BUFFERS: ReadonlySet<string> = new Set(["running_mean", "running_var"]);
const MOST_ROWS = 20_000, MOST_PASSES = 64;

const isPlain = ({ dtypes }: Row): boolean => dtypes.every((d) => PLAIN.has(d));

/** Counters, indices, masks and states of random generators, which are not parameters. */
export const isAsideTensor = (name: string, dtypes: readonly string[], ndim: number): boolean =>
  BUFFERS.has(name) || dtypes.every((d) => d === "bool" || d === "int64") || (ndim < 2 && dtypes.every((d) => /^u?int/.test(d)));
const isAside = (row: Row): boolean => isAsideTensor(row.name, row.dtypes, row.entry === undefined ? 0 : row.shape.length);

const sum = (list: readonly Amount[]): Amount => ({ elements: list.reduce((n, { elements }) => n + elements, 0), bytes: list.reduce((n, { bytes }) => n + bytes, 0) });

/** Opens what has to be looked at one by one, closes the rest, and returns the rows with the number of rows that each stands
 *  for, and whether it is optimizer state. */
function rowsOf(outline: Outline): { readonly row: Row; readonly times: number; readonly isState: boolean }[] {
  outline.act(0, "close-all");
  for (const top of outline.rows(0, MOST_ROWS).reverse()) if (top.group && !OPTIMIZER.test(top.name)) outline.act(top.node, "open");
  const hasGroups = outline.rows(0, MOST_ROWS).some((r) => r.depth === 1 && r.name === "param_groups");
  for (let pass = 0; ; pass++) {
    const times = [1], states = [false];
    const rows = outline.rows(0, MOST_ROWS).map((row) => {
      const { depth, name } = row;
      times[depth] = (times[depth - 1] ?? 1) * (row.folded ? row.run : 1);
      states[depth] = states[depth - 1] === true || (depth <= 2 && OPTIMIZER.test(name)) || (depth === 1 && hasGroups && name === "state");
      return { row, times: times[depth] ?? 1, isState: states[depth] === true };
    });
    const mixed = rows.filter(({ row, isState }) => row.group && !row.open && !isState && !isPlain(row));
    if (mixed.length === 0 || pass === MOST_PASSES || rows.length === MOST_ROWS) return rows;
    for (const { row } of mixed.reverse()) outline.act(row.node, "open");
  }
}

/** Closes the outline. */
export function amountsOf(outline: Outline): Amounts {
  try {
    const rows = rowsOf(outline), seen = rows.filter(({ row }) => !row.group || !row.open);
    const of = (list: typeof rows) => sum(list.map(({ row: { elements, bytes }, times }) => ({ elements: elements * times, bytes: bytes * times })));
    const optimizer = of(seen.filter(({ isState }) => isState)), tensors = seen.filter(({ row, isState }) => !isState && row.elements > 0 && !isAside(row));
    const isCounted = rows.length < MOST_ROWS && tensors.every(({ row }) => isPlain(row)) && !rows.some(({ row, isState }) => !isState && row.group && row.entry !== undefined);
    return { optimizer, parameters: isCounted ? of(tensors) : undefined };
  } finally {
    outline.close();
  }
}

/** Names by which training scripts and trainers put a model next to other things. */
const MODEL = /^(model|module|network|net|ema)(_?states?(_?dicts?)?)?$|^state_dict$/i;
const MOST_TOP = 10_000, DEEPEST = 2;

interface Top { readonly path: string; readonly row: Row }

/** Returns the rows of this depth from a place on, until one that is not below the same row. */
const topsOf = (rows: readonly Row[], prefix: string, depth: number, after: number): Top[] => {
  const tops: Top[] = [];
  for (const row of rows.slice(after)) {
    if (row.depth < depth) break;
    if (row.depth === depth) tops.push({ path: prefix + row.name, row });
  }
  return tops;
};

/** Tells the weights of a model from what is stored next to them. A prefix that all names have is the model's own, as "model." is
 *  in many models of transformers, unless such a model is below it. Closes the outline. */
export function weightsOf(outline: Outline): { prefix: string; others: string[] } {
  try {
    outline.act(0, "close-all");
    let tops = topsOf(outline.rows(0, MOST_TOP), "", 1, 0);
    const others: string[] = [];
    for (let depth = 1; depth <= DEEPEST; depth++) {
      const isState = ({ row: { name, group } }: Top) => OPTIMIZER.test(name) || (group && (name === "param_groups" || (name === "state" && tops.some((t) => t.row.name === "param_groups"))));
      others.push(...tops.filter(isState).map(({ path, row }) => row.group ? `${path}.**` : path));
      const model = tops.filter((t) => t.row.group && MODEL.test(t.row.name) && t.row.elements > 0 && !isState(t)).sort((a, b) => b.row.bytes - a.row.bytes)[0];
      if (model && tops.length > 1 && !tops.some((t) => t !== model && !isState(t) && isWeight(t))) return { prefix: `${model.path}.`, others: [] };
      const [only] = tops;
      if (!only?.row.group || tops.length > 1) break;
      outline.act(only.row.node, "open");
      tops = topsOf(outline.rows(0, MOST_TOP), `${only.path}.`, depth + 1, outline.rows(0, MOST_TOP).findIndex((r) => r.node === only.row.node) + 1);
      if (MODEL.test(only.row.name) && tops.some(({ row: { name } }) => name === "model" || name === "lm_head")) return { prefix: `${only.path}.`, others: [] };
    }
    return { prefix: "", others };
  } finally {
    outline.close();
  }
}

/** Whether floating-point tensors are there: `lm_head.weight` next to `model` is a weight, and the state of a random generator is not. */
const isWeight = ({ row }: Top): boolean => row.elements > 1 && row.dtypes.some((d) => /float/.test(d));
