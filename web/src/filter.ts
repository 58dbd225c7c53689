/** The text of the filter: its terms, their meaning, and their errors. Pure. */
const KEYS: readonly string[] = ["dtype", "shape", "file", "kind"];
const KINDS: readonly string[] = ["tensor", "object", "opaque"];
/** What "is:" can select in a comparison. */
export const IS = ["different", "changed", "only-a", "only-b", "renamed", "same"] as const;
/** One size of a shape or several, as a glob of digits. */
const SHAPE = /^(\d|[*?]|\[[!^]?[\d-]+\])+(x(\d|[*?]|\[[!^]?[\d-]+\])+)*$/;
const SIZE = /^[<>]=?\d*\.?\d+(e[+-]?\d+)?([kmgt]i?)?b?$/i;

const globOf = (name: string): string => name.replace(/[\s*?[\]]/g, "?");

/** Returns a term that the entries below a module, or of a part, match. */
export const belowTerm = (module: string): string => `${globOf(module)}.**`;

/** Returns a term that only the entries of this file match. */
export function fileTerm(name: string): string {
  const glob = globOf(name);
  return `file:${glob.includes("?") ? glob : `${glob.slice(0, -1)}?`}`;
}

export const termsOf = (text: string): string[] => text.split(" ").filter(Boolean);

/** Adds a term, or removes it if it is there. */
export function toggled(text: string, term: string): string {
  const terms = termsOf(text);
  return (terms.includes(term) ? terms.filter((t) => t !== term) : [...terms, term]).join(" ");
}

function faultOfTerm(term: string, dtypes: readonly string[], isComparison: boolean): string | undefined {
  const plain = term.length > 1 ? term.replace(/^-/, "") : term;
  if (/^[<>]/.test(plain)) return SIZE.test(plain) ? undefined : `'${plain.replace(/^[<>]=?/, "")}' is not a size; write sizes like 500MB or 1.5GiB`;
  const [, key, value = ""] = /^([a-z]+):(.*)$/.exec(plain) ?? [];
  if (key === undefined) return undefined;
  if (key === "is" && isComparison) return (IS as readonly string[]).includes(value) ? undefined : `'${value}' is not a result of a comparison; use ${IS.join(", ")}`;
  if (!KEYS.includes(key)) return `'${key}:' is not a filter; use ${KEYS.map((k) => `${k}:`).join(", ")}, or *${key}:* to look for it in names`;
  if (value === "") return `'${key}:' needs a value`;
  if (key === "kind" && !KINDS.includes(value)) return `'${value}' is not a kind; use ${KINDS.join(", ")}`;
  if (key === "shape" && !SHAPE.test(value)) return `'${value}' is not a shape; write shapes like 4096x4096 or 4096x*`;
  if (key === "dtype" && /^\w+$/.test(value) && !dtypes.some((d) => d.includes(value))) return `no tensor here is '${value}'; there are ${dtypes.join(", ") || "no tensors"}`;
  return undefined;
}

/** Returns what is wrong with a filter of entries that have these dtypes, of one checkpoint or of two that are compared. */
export function faultOf(text: string, dtypes: readonly string[], isComparison = false): string | undefined {
  for (const term of termsOf(text)) {
    const fault = faultOfTerm(term, dtypes, isComparison);
    if (fault) return fault;
  }
  return undefined;
}

/** Returns the texts that names contain because of a filter: its words and the longest part of each glob. */
export function wordsOf(text: string): string[] {
  return termsOf(text).filter((t) => !/^[-<>]|^[a-z]+:/.test(t)).map((t) => t.split(/[*?[\]]+/).reduce((a, b) => b.length > a.length ? b : a, "").replace(/^\.|\.$/g, "")).filter(Boolean);
}
