/** Makes the names and dtypes of A those of B. Pure. */
import type { Diff, DiffOptions } from "./protocol";

/** A prefix that only one side's names have, and the casts to B's dtypes, by the names that A then has. */
export interface Fit { readonly prefix?: { readonly side: "a" | "b"; readonly text: string }; readonly casts: readonly { readonly fqn: string; readonly dtype: string }[] }
const FLOAT = /^(b?float(16|32|64))$/, MOST_RULES = 5000;

/** Returns the map that does this, as a document. The first rule that matches a name counts. */
export function mapOfFit({ prefix, casts }: Fit): DiffOptions["map"] {
  if (!prefix && casts.length === 0) return {};
  const P = prefix?.text ?? "", before = (fqn: string) => !prefix ? [fqn] : prefix.side === "a" ? [P + fqn, fqn] : fqn.startsWith(P) ? [fqn.slice(P.length)] : [fqn];
  const rules = casts.flatMap(({ fqn, dtype }) => before(fqn).map((from) => ({ from: [from], to: [fqn], do: [{ cast: dtype }] })));
  const strip = prefix && (prefix.side === "a" ? { from: [`${P}{rest...}`], to: ["{rest...}"] } : { from: ["{rest...}"], to: [`${P}{rest...}`] });
  return { map: JSON.stringify({ schema: "tessera.map/1", unmatched: "keep", rules: [...rules, ...(strip ? [strip] : [])] }) };
}

/** Returns the prefix without which most of the names that one side lacks would match, if there is one. */
export function prefixOf({ added, removed }: Pick<Diff, "added" | "removed">): { side: "a" | "b"; text: string; matches: number } | undefined {
  const best = (longer: readonly string[], shorter: readonly string[], side: "a" | "b") => {
    const others = new Set(shorter), counts = new Map<string, number>();
    for (const name of longer) for (let at = name.indexOf("."); at > 0; at = name.indexOf(".", at + 1)) if (others.has(name.slice(at + 1))) counts.set(name.slice(0, at + 1), (counts.get(name.slice(0, at + 1)) ?? 0) + 1);
    const [first] = [...counts].sort(([, x], [, y]) => y - x);
    return first && first[1] * 2 > shorter.length ? { side, text: first[0], matches: first[1] } : undefined;
  };
  return best(removed, added, "a") ?? best(added, removed, "b");
}

/** Returns the entries whose dtypes differ between two floating-point types, which a cast can compare. */
export const castsOf = ({ changed }: Diff): Fit["casts"] =>
  changed.flatMap(({ fqn, what, a, b }) => what.includes("dtype") && !what.includes("shape") && FLOAT.test(a.dtype ?? "") && FLOAT.test(b.dtype ?? "") && b.dtype ? [{ fqn, dtype: b.dtype }] : []).slice(0, MOST_RULES);
