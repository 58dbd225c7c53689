/** What the overview says of a checkpoint besides its totals, in the worker: its modules, layers, step, learning rate and mesh,
 *  judged by names. */
import type { MappedCheckpoint } from "../../wasm/tessera.js";
import type { DocumentOf } from "./contents";
import type { Leaf } from "./entry_tree";
import type { About, Detail } from "./protocol";
import { isAsideTensor, isOptimizerName } from "./split";
import { objectText } from "./text";

const FEW = 3, MOST_READ = 64;
const STEPS: ReadonlySet<string> = new Set(["step", "global_step", "global_steps", "iteration", "iter", "epoch", "num_updates"]);
const isNumber = (text: string): boolean => /^-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text);

interface Module { readonly name: string; readonly leaves: Leaf[] }

function childrenOf({ name, leaves }: Module): Module[] {
  const groups = new Map<string, Module>(), from = name === "" ? 0 : name.length + 1;
  for (const leaf of leaves) {
    const end = leaf.fqn.indexOf(".", from), child = end < 0 ? leaf.fqn : leaf.fqn.slice(0, end), group = groups.get(child);
    if (group) group.leaves.push(leaf);
    else groups.set(child, { name: child, leaves: [leaf] });
  }
  return [...groups.values()];
}

const lastOf = (name: string): string => name.slice(name.lastIndexOf(".") + 1);
const isList = (modules: readonly Module[]): boolean => modules.length > 1 && modules.every((m) => /^\d+$/.test(lastOf(m.name)));
const elementsOf = ({ leaves }: Module): number => leaves.reduce((sum, l) => sum + l.elements, 0);

/** The modules at the top of the model. A module that holds almost all others is replaced by its children. */
function topModules(leaves: readonly Leaf[]): Module[] {
  let modules = childrenOf({ name: "", leaves: [...leaves] });
  while (modules.length < FEW) {
    const largest = modules.reduce<Module | undefined>((a, b) => a && elementsOf(a) >= elementsOf(b) ? a : b, undefined);
    const below = largest && largest.leaves.length > 1 && !largest.leaves.some((l) => l.fqn === largest.name) ? childrenOf(largest) : [];
    if (below.length === 0 || isList(below)) break;
    modules = modules.flatMap((m) => m === largest ? below : [m]);
  }
  return modules;
}

/** The longest numbered list of modules. */
function layersOf(leaves: readonly Leaf[]): About["layers"] {
  const lists = new Map<string, Set<string>>();
  for (const { fqn } of leaves) {
    const [, name, number] = /^(.*?)\.(\d+)\./.exec(`.${fqn}`) ?? [];
    if (name !== undefined && number !== undefined) lists.set(name, (lists.get(name) ?? new Set()).add(number));
  }
  const [name, numbers] = [...lists].sort(([, a], [, b]) => b.size - a.size)[0] ?? [];
  return name && numbers && numbers.size > 1 ? { name: name.slice(1), count: numbers.size } : undefined;
}

export function aboutOf(checkpoint: Pick<MappedCheckpoint, "document">, leaves: readonly Leaf[], count: number, objectOf: DocumentOf): About {
  const tensors = leaves.filter((l) => l.kind === "tensor"), model = tensors.filter((l) => !isOptimizerName(l.fqn));
  const textOf = ({ entry }: Leaf) => objectText(objectOf(entry) ?? "") ?? "";
  const objects = leaves.filter((l) => l.kind === "object"), named = (of: (name: string, depth: number) => boolean) => objects.filter(({ fqn }) => of(lastOf(fqn), fqn.split(".").length)).slice(0, MOST_READ);
  const steps = named((name, depth) => STEPS.has(name) && depth <= 2).map((leaf) => ({ name: leaf.fqn, value: textOf(leaf) })).filter(({ value }) => isNumber(value));
  const rates = [...new Set(named((name, depth) => name === "lr" && depth > 1).map(textOf).filter(isNumber))];
  const divided = tensors.reduce<Leaf | undefined>((a, b) => a && a.chunks >= b.chunks ? a : b, undefined); // others may be on a part of the mesh
  const { entries: [detail] } = divided ? JSON.parse(checkpoint.document("entry", { entry: divided.entry })) as { entries: Detail[] } : { entries: [] };
  const mesh = detail && "mesh" in detail ? detail.mesh : undefined, layers = layersOf(model);
  return {
    largest: [...tensors].sort((a, b) => b.bytes - a.bytes).slice(0, count).map(({ fqn, bytes }) => ({ fqn, bytes })),
    modules: topModules(model.filter((l) => l.elements > 0 && !isAsideTensor(lastOf(l.fqn), l.dtypes, l.shape.length))).map((m) => ({ name: m.name, elements: elementsOf(m), isGroup: m.leaves.length > 1 || m.leaves[0]?.fqn !== m.name })),
    steps, rates, ...(layers ? { layers } : {}), ...(mesh === undefined ? {} : { mesh }),
  };
}
