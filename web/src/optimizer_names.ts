/** Finds optimizer state by the names of entries: the states of parameters, if there are no param groups, and the
 *  hyper-parameters of the groups. Pure. */
import type { Leaf } from "./entry_tree";
import type { Optimizer, ParamGroup } from "./protocol";

/** `optim.state.layers.0.weight.exp_avg`: prefix, parameter, state. */
const STATE = /^((?:.*\.)?(?:optim\w*\.)?)state\.(.+)\.([^.]+)$/;
/** `optim.param_groups.0.lr`, or with the name of a parameter instead of the number. */
const GROUP = /^((?:.*\.)?)param_groups\.(.+)\.([^.]+)$/;

const withoutDot = (prefix: string): string => prefix.replace(/\.$/, "");

/** Returns the entry of a model that an optimizer calls `parameter`. */
function valuesOf(parameter: string, byName: ReadonlyMap<string, Leaf>, models: readonly string[]): Leaf | undefined {
  for (const prefix of models) {
    const leaf = byName.get(prefix + parameter);
    if (leaf) return leaf;
  }
  return undefined;
}

/** Returns the optimizers that have states but no param groups. */
export function optimizersByName(leaves: readonly Leaf[]): Optimizer[] {
  const found = new Map<string, Map<string, Map<string, Leaf>>>(), others: Leaf[] = [];
  for (const leaf of leaves) {
    const [, prefix, parameter, state] = STATE.exec(leaf.fqn) ?? [];
    if (prefix === undefined || parameter === undefined || state === undefined || leaf.kind !== "tensor") { others.push(leaf); continue; }
    const parameters = found.get(prefix) ?? new Map<string, Map<string, Leaf>>();
    found.set(prefix, parameters);
    parameters.set(parameter, (parameters.get(parameter) ?? new Map<string, Leaf>()).set(state, leaf));
  }
  const byName = new Map(others.map((l) => [l.fqn, l])), models = ["", ...new Set(others.map((l) => `${l.fqn.split(".")[0] ?? ""}.`))];
  return [...found].map(([prefix, parameters]): Optimizer => {
    const names = [...new Set([...parameters.values()].flatMap((states) => [...states.keys()]))].sort();
    const entryOf = (leaf: Leaf | undefined) => leaf ? { fqn: leaf.fqn, dtype: leaf.dtypes[0] ?? "", shape: leaf.shape } : null;
    return { optimizer: withoutDot(prefix), names, hasGroups: false, groups: [], parameters: [...parameters].map(([parameter, states]) => ({
      parameter, in_group: true, values: entryOf(valuesOf(parameter, byName, models)), states: names.map((name) => entryOf(states.get(name))),
    })) };
  });
}

/** Returns the entries of an optimizer's param groups, with the group and the hyper-parameter of each. */
export function groupEntries(optimizer: string, leaves: readonly Leaf[]): { readonly group: string; readonly key: string; readonly leaf: Leaf }[] {
  return leaves.flatMap((leaf) => {
    const [, prefix, group, key] = GROUP.exec(leaf.fqn) ?? [];
    return prefix !== undefined && group !== undefined && key !== undefined && withoutDot(prefix) === optimizer ? [{ group, key, leaf }] : [];
  });
}

/** Groups with equal hyper-parameters are one row. */
export function mergedGroups(values: readonly { readonly group: string; readonly key: string; readonly text: string }[]): ParamGroup[] {
  const groups = new Map<string, Record<string, string>>();
  for (const { group, key, text } of values) groups.set(group, { ...groups.get(group), [key]: text });
  const merged = new Map<string, ParamGroup & { readonly members: string[] }>();
  for (const [name, hyper] of groups) {
    const key = JSON.stringify(hyper);
    if (merged.has(key)) merged.get(key)?.members.push(name);
    else merged.set(key, { members: [name], values: hyper });
  }
  return [...merged.values()];
}
