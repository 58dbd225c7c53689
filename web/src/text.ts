/** Numbers and names for people to read. */
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytesText(bytes: number): string {
  let value = bytes, unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) { value /= 1000; unit++; }
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(value >= 9.995 ? 1 : 2)} ${UNITS[unit] ?? ""}`;
}

const SCALES: readonly (readonly [number, string])[] = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"], [1e3, "thousand"]];

/** "7.24 billion", for parameters and elements. Unit letters are only used for bytes. */
export function countText(count: number): string {
  for (const [scale, word] of SCALES) {
    if (count >= 0.9995 * scale) return `${Number((count / scale).toPrecision(3))} ${word}`;
  }
  return String(count);
}

export const exactText = (count: number): string => count.toLocaleString("en-US").replaceAll(",", "\u202f");
export const shapeText = (shape: readonly number[]): string => shape.length ? shape.join(" × ") : "scalar";
export const plural = (n: number, one: string, many = `${one}s`): string => `${exactText(n)} ${n === 1 ? one : many}`;

/** Names may contain anything, so characters that are not visible, that look like a space, or that reorder a text, are shown as
 *  escapes. */
export function visible(name: string): string {
  return name.replace(/(?! )[\p{C}\p{Z}\p{DI}\u2800]/gu, (c) => {
    const code = c.codePointAt(0)?.toString(16) ?? "";
    return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  }) || "(empty name)";
}

export function realText(value: number | string): string {
  if (typeof value === "string") return value;
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(4) : String(Number(value.toPrecision(6)));
}
