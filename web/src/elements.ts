/** Elements of a tensor as numbers and texts, and as .npy and CSV files. Pure. */
export interface Elements { readonly dtype: string; readonly shape: readonly number[]; readonly buffer: ArrayBuffer }

/** Returns a float of so many bits. One without infinities is NaN only where all bits but the sign are set. */
function floatOf(bits: number, width: 8 | 16, exponentBits: number, hasInfinity = true): number {
  const mantissaBits = width - 1 - exponentBits, bias = 2 ** (exponentBits - 1) - 1, most = 2 ** (width - 1) - 1;
  const sign = bits > most ? -1 : 1, exponent = (bits & most) >> mantissaBits, mantissa = bits & (2 ** mantissaBits - 1);
  if (hasInfinity && exponent === 2 ** exponentBits - 1) return mantissa ? NaN : sign * Infinity;
  if (!hasInfinity && (bits & most) === most) return NaN;
  return exponent ? sign * 2 ** (exponent - bias) * (1 + mantissa / 2 ** mantissaBits) : sign * 2 ** (1 - bias) * mantissa / 2 ** mantissaBits;
}

const halvesOf = (buffer: ArrayBuffer, exponentBits: number): Float32Array => Float32Array.from(new Uint16Array(buffer), (b) => floatOf(b, 16, exponentBits));

/** Real and imaginary parts, one after the other. */
function partsOf({ dtype, buffer }: Elements): ArrayLike<number> | undefined {
  if (dtype === "complex64") return new Float32Array(buffer);
  if (dtype === "complex128") return new Float64Array(buffer);
  const exponentBits = dtype === "complex32" ? 5 : dtype === "bcomplex32" ? 8 : undefined;
  return exponentBits && halvesOf(buffer, exponentBits);
}

/** Returns one number per element. Returns undefined for dtypes that are not drawn: complex ones, and those smaller than a byte. */
export function numbersOf({ dtype, buffer }: Elements): ArrayLike<number> | undefined {
  switch (dtype) {
    case "float64": return new Float64Array(buffer);
    case "float32": return new Float32Array(buffer);
    case "float16": return halvesOf(buffer, 5);
    case "bfloat16": return halvesOf(buffer, 8);
    case "int64": return Float64Array.from(new BigInt64Array(buffer), Number);
    case "uint64": return Float64Array.from(new BigUint64Array(buffer), Number);
    case "int32": return new Int32Array(buffer);
    case "uint32": return new Uint32Array(buffer);
    case "int16": return new Int16Array(buffer);
    case "uint16": return new Uint16Array(buffer);
    case "int8": return new Int8Array(buffer);
    case "uint8": case "bool": return new Uint8Array(buffer);
    case "float8_e5m2": return Float32Array.from(new Uint8Array(buffer), (b) => floatOf(b, 8, 5));
    case "float8_e4m3fn": return Float32Array.from(new Uint8Array(buffer), (b) => floatOf(b, 8, 4, false));
    default: return undefined;
  }
}

const PYTHON: Readonly<Record<string, string>> = { NaN: "nan", Infinity: "inf", "-Infinity": "-inf" };

/** Returns exact texts: 64-bit integers keep all digits. */
export function textsOf(elements: Elements): string[] | undefined {
  const { dtype, buffer } = elements;
  if (dtype === "int64") return Array.from(new BigInt64Array(buffer), String);
  if (dtype === "uint64") return Array.from(new BigUint64Array(buffer), String);
  if (dtype === "bool") return Array.from(new Uint8Array(buffer), (b) => b ? "True" : "False");
  const parts = partsOf(elements), numbers = parts ?? numbersOf(elements);
  const digits = dtype === "float32" || dtype === "complex64" ? 9 : dtype === "float64" || dtype === "complex128" || !/float|complex/.test(dtype) ? undefined : 5;
  const texts = numbers && Array.from(numbers, (n) => !Number.isFinite(n) ? PYTHON[String(n)] ?? "" : digits ? String(Number(n.toPrecision(digits))) : String(n));
  if (!parts || !texts) return texts;
  return Array.from({ length: texts.length / 2 }, (_, i) => { const im = texts[2 * i + 1] ?? ""; return `${texts[2 * i]}${/^-/.test(im) ? "" : "+"}${im}j`; });
}

const LARGE = 1e7;
/** A number with four significant digits, for tables. Integers, and what is short already, stay as they are. */
export function shortText(exact: string): string {
  return /^[-+]?\d+$/.test(exact) ? exact : exact.replace(/-?\d+(\.\d+)?(e[-+]?\d+)?/g, (text) => {
    const short = Number(Number(text).toPrecision(4)), plain = Math.abs(short) < LARGE ? String(short) : short.toExponential();
    return plain.length <= text.length ? plain : text;
  });
}

export interface Statistics { readonly min: number; readonly max: number; readonly mean: number; readonly std: number; readonly zeros: number; readonly nan: number; readonly inf: number }

/** Returns statistics of the finite numbers, and how many are not finite. `std` divides by one less than their number, as in the
 *  statistics of the whole tensor and in torch.std. */
export function statisticsOf(numbers: ArrayLike<number>): Statistics | undefined {
  let min = Infinity, max = -Infinity, sum = 0, count = 0, zeros = 0, nan = 0, inf = 0, squares = 0;
  for (let i = 0; i < numbers.length; i++) {
    const n = numbers[i] ?? 0;
    if (Number.isNaN(n)) nan++;
    else if (!Number.isFinite(n)) inf++;
    else { min = Math.min(min, n); max = Math.max(max, n); sum += n; count++; zeros += n === 0 ? 1 : 0; }
  }
  const mean = sum / count;
  for (let i = 0; i < numbers.length; i++) { const n = numbers[i] ?? 0; if (Number.isFinite(n)) squares += (n - mean) ** 2; }
  return numbers.length ? { min, max, mean, std: count > 1 ? Math.sqrt(squares / (count - 1)) : 0, zeros, nan, inf } : undefined;
}

const DESCR: Readonly<Record<string, string>> = {
  float64: "<f8", float32: "<f4", float16: "<f2", int64: "<i8", uint64: "<u8", int32: "<i4", uint32: "<u4", int16: "<i2", uint16: "<u2", int8: "|i1", uint8: "|u1", bool: "|b1", complex64: "<c8", complex128: "<c16",
};
const NPY_ALIGNMENT = 64;

/** Writes NumPy's format 1.0. Returns undefined for dtypes that NumPy does not have. */
export function npyOf({ dtype, shape, buffer }: Elements): Blob | undefined {
  const descr = DESCR[dtype];
  if (descr === undefined) return undefined;
  const dict = `{'descr': '${descr}', 'fortran_order': False, 'shape': (${shape.join(", ")}${shape.length === 1 ? "," : ""}), }`;
  const size = Math.ceil((10 + dict.length + 1) / NPY_ALIGNMENT) * NPY_ALIGNMENT - 10;
  const head = new Uint8Array([0x93, ...new TextEncoder().encode("NUMPY"), 1, 0, size & 255, size >> 8]);
  return new Blob([head, `${dict.padEnd(size - 1)}\n`, buffer]);
}

/** Each row of the CSV is a row along the last dimension. */
export function csvOf(elements: Elements): Blob | undefined {
  const texts = textsOf(elements), columns = elements.shape.at(-1) ?? 1;
  if (!texts) return undefined;
  const rows: string[] = [];
  for (let i = 0; i < texts.length; i += columns) rows.push(`${texts.slice(i, i + columns).join(",")}\n`);
  return new Blob(rows, { type: "text/csv" });
}
