/** Renames that would give unexpected entries the names of missing ones, judged by names alone. Pure. */
export interface Rename {
  /** As `--rename` of convert takes it. */
  readonly rule: string;
  /** Names that it would make fit, and names that it would change. */
  readonly fits: number;
  readonly changes: number;
  readonly example: readonly [from: string, to: string];
}

const MOST = 8;

/** Ends of a name at dots, the longest first. */
function* endsOf(name: string): Generator<string> {
  yield name;
  for (let dot = name.indexOf("."); dot >= 0; dot = name.indexOf(".", dot + 1)) yield name.slice(dot + 1);
}

/** The missing name that shares the longest end with this one, where there is only one such. */
function partner(name: string, byEnd: ReadonlyMap<string, readonly string[]>): [from: string, to: string] | undefined {
  for (const end of endsOf(name)) {
    const names = byEnd.get(end);
    if (!names) continue;
    return names.length === 1 && names[0] !== undefined ? [name.slice(0, name.length - end.length), names[0].slice(0, names[0].length - end.length)] : undefined;
  }
  return undefined;
}

/** A rule takes the first name's beginning for the second's; an empty beginning is every name. */
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
