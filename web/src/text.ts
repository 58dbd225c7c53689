/** Numbers and names for people to read. */
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** The same text as the command's. */
export function bytesText(bytes: number): string {
  let value = bytes, unit = 0;
  while (value >= (unit ? 1023.95 : 1024) && unit < UNITS.length - 1) { value /= 1024; unit++; } // not "1024.0 KiB"
  return `${unit ? value.toFixed(1) : value} ${UNITS[unit] ?? ""}`;
}

const SCALES: readonly (readonly [number, string])[] = [[1e15, "quadrillion"], [1e12, "trillion"], [1e9, "billion"], [1e6, "million"], [1e3, "thousand"]];

/** "7.24 billion", for parameters and elements, as the command writes it. Unit letters are only used for bytes. */
export function countText(count: number): string {
  for (const [scale, word] of SCALES) {
    if (count >= 0.9995 * scale) return `${Number((count / scale).toPrecision(3))} ${word}`;
  }
  return String(count);
}

/** "7.24 billion elements". */
export const amountText = (count: number, one: string): string => `${countText(count)} ${count === 1 ? one : `${one}s`}`;

/** "300,000", as the command writes it. */
export const exactText = (count: number): string => count.toLocaleString("en-US");

/** "1.2 KiB (1,234 bytes)"; a size below 1 KiB is exact already. */
export const fullBytesText = (bytes: number): string => bytes < 1024 ? bytesText(bytes) : `${bytesText(bytes)} (${exactText(bytes)} bytes)`;
export const shapeText = (shape: readonly number[]): string => shape.length ? shape.join(" × ") : "scalar";
export const plural = (n: number, one: string, many = `${one}s`): string => `${exactText(n)} ${n === 1 ? one : many}`;

/** "12 objects" and "1 opaque entry", as far as there are any. */
export const objectTexts = ({ objects, opaque }: { readonly objects: number; readonly opaque: number }): string[] =>
  [...(objects ? [plural(objects, "object")] : []), ...(opaque ? [plural(opaque, "opaque entry", "opaque entries")] : [])];

export const absentText = (files: number): string => `${plural(files, "data file")} ${files === 1 ? "is" : "are"} absent`;
export const missingText = (chunks: number): string => `${plural(chunks, "chunk")} ${chunks === 1 ? "is" : "are"} missing`;

/** Names may contain anything, so characters that are not visible, that look like a space, or that reorder a text, are shown as
 *  escapes. */
export function visible(name: string): string {
  return name.replace(/(?! )[\p{C}\p{Z}\p{DI}\u2800]/gu, (c) => {
    const code = c.codePointAt(0)?.toString(16) ?? "";
    return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  }) || "(empty name)";
}

/** The beginning of a long text, which says that it goes on. */
export const startOf = (text: string, most: number): string => text.length > most ? `${text.slice(0, most - 1)}…` : text;

/** A long name without its middle. */
export const shortName = (name: string, most = 72): string => name.length <= most ? name : `${name.slice(0, Math.ceil(most / 2) - 1)}…${name.slice(name.length - Math.floor(most / 2))}`;

const PYTHON: Readonly<Record<string, string>> = { null: "None", true: "True", false: "False" };
const quoted = (json: string): string => `'${json.slice(1, -1).replace(/\\.|'/g, (c) => c === '\\"' ? '"' : c === "'" ? "\\'" : c)}'`;

const TOKEN = /"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:]+/g;

/** Converts JSON to the same value as Python writes it, on several lines if it is to be read as a whole. Works on the text,
 *  because JavaScript's numbers are neither exact for large integers nor distinguish 1.0 from 1. */
export function pythonText(json: string, isWide = false): string {
  const tokens = json.match(TOKEN) ?? [];
  let depth = 0, text = "";
  const line = () => isWide ? `\n${"  ".repeat(depth)}` : "";
  tokens.forEach((token, i) => {
    if (/^[[{]$/.test(token)) text += token + (++depth, /^[\]}]$/.test(tokens[i + 1] ?? "") ? "" : line());
    else if (/^[\]}]$/.test(token)) text += (depth--, /^[[{]$/.test(tokens[i - 1] ?? "") ? "" : line()) + token;
    else text += token === "," ? `,${line() || " "}` : token === ":" ? ": " : token.startsWith('"') ? quoted(token) : PYTHON[token] ?? token;
  });
  return text;
}

/** Returns the JSON text of a member of an entry, from tessera.inspect/1 of that entry alone. */
function memberOfEntry(document: string, name: string): string | undefined {
  const inEntry = 3; // the document, its entries, the entry
  let depth = 0, before = "", key = "", found: string[] | undefined;
  for (const [token] of document.matchAll(TOKEN)) {
    const isEntries = key === '"entries"';
    if (found && depth === inEntry && /^[,}]$/.test(token)) return found.join("");
    found?.push(token);
    if (/^[[{]$/.test(token)) depth++;
    else if (/^[\]}]$/.test(token)) depth--;
    else if (token === ":" && depth === 1 && isEntries) return undefined;
    else if (token === ":" && depth === 1) key = before;
    else if (token === ":" && depth === inEntry && isEntries && before === `"${name}"`) found ??= [];
    before = token;
  }
  return undefined;
}

/** Returns the value of an object as Python writes it, from tessera.inspect/1 of that entry alone. */
export function objectText(document: string, isWide = false): string | undefined {
  const value = memberOfEntry(document, "value"), repr = value ?? memberOfEntry(document, "repr");
  return value === undefined ? repr && JSON.parse(repr) as string : pythonText(value, isWide);
}

export function realText(value: number | string, digits = 6): string {
  if (typeof value === "string") return value;
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(Math.min(4, digits - 1)) : String(Number(value.toPrecision(digits)));
}
