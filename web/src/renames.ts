/** Suggests renames that would give unexpected entries the names of missing ones, judged by names alone. Pure. */
export interface Rename {
  /** The value for `--rename` of convert. */
  readonly rule: string;
  /** The number of names that would then fit, and of names that would change. */
  readonly fits: number;
  readonly changes: number;
  readonly example: readonly [from: string, to: string];
}

const MOST = 8;

/** Yields the ends of a name at its dots, the longest first. */
function* endsOf(name: string): Generator<string> {
  yield name;
  for (let dot = name.indexOf("."); dot >= 0; dot = name.indexOf(".", dot + 1)) yield name.slice(dot + 1);
}

/** Returns the missing name that shares the longest end with this one, if there is only one such name. */
function partner(name: string, byEnd: ReadonlyMap<string, readonly string[]>): [from: string, to: string] | undefined {
  for (const end of endsOf(name)) {
    const names = byEnd.get(end);
    if (!names) continue;
    return names.length === 1 && names[0] !== undefined ? [name.slice(0, name.length - end.length), names[0].slice(0, names[0].length - end.length)] : undefined;
  }
  return undefined;
}

/** A rule replaces the beginning of the first name by that of the second. An empty beginning applies to every name. */
const ruleOf = (from: string, to: string): string => from ? `${from}=${to}` : `*=${to}*`;

export function suggested(missing: readonly string[], unexpected: readonly string[]): Rename[] {
  const byEnd = new Map<string, string[]>(), wanted = new Set(missing), rules = new Map<string, [from: string, to: string]>();
  for (const name of missing) for (const end of endsOf(name)) byEnd.set(end, [...byEnd.get(end) ?? [], name]);
  for (const name of unexpected) {
    const pair = partner(name, byEnd);
    if (pair && pair[0] !== pair[1]) rules.set(ruleOf(...pair), pair);
  }
  const renames = [...rules].map(([rule, [from, to]]): Rename => {
    const changed = unexpected.filter((name) => name.startsWith(from)), results = changed.map((name) => to + name.slice(from.length));
    const first = results.findIndex((name) => wanted.has(name));
    return { rule, fits: results.filter((name) => wanted.has(name)).length, changes: changed.length, example: [changed[first] ?? "", results[first] ?? ""] };
  });
  return renames.sort((a, b) => b.fits - a.fits || a.changes - b.changes).slice(0, MOST);
}
