/** Prints and parses floating-point numbers like C's printf and strtod. */

/** The digits of a positive number, rounded to `count`. Of two equally near results it chooses the even one, whereas
 *  JavaScript chooses the larger. */
function rounded(value, count) {
  const more = value.toExponential(count);
  if (!/5e/.test(more)) return value.toExponential(count - 1);
  const [mantissa, exponent] = value.toExponential(100).split("e"), digits = mantissa.replace(".", "");
  const isTie = /^50*$/.test(digits.slice(count)), isEven = Number(digits[count - 1]) % 2 === 0;
  return isTie && isEven ? `${digits[0]}.${digits.slice(1, count)}e${exponent}` : value.toExponential(count - 1);
}

/** Prints a finite number that is not negative as "%.*g" does. */
export function printReal(value, count) {
  const [mantissa, power] = rounded(value, count).split("e"), digits = mantissa.replace(".", "").replace(/(?!^)0+$/, ""), exponent = Number(power);
  if (exponent < -4 || exponent >= count) return `${digits[0]}${digits.length > 1 ? "." : ""}${digits.slice(1)}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  if (exponent < 0) return `0.${"0".repeat(-1 - exponent)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0"), rest = digits.slice(exponent + 1);
  return rest ? `${whole}.${rest}` : whole;
}

/** Parses the number at the beginning of a text. Returns { value, used }, where `used` is its length. */
export function parseReal(text) {
  const [all, sign = "", number] = /^[ \t-\r]*([+-]?)(0x[0-9a-f]+|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)/i.exec(text) ?? [];
  if (all === undefined) return { value: 0, used: 0 };
  const magnitude = /^i/i.test(number) ? Infinity : Number(number);
  return { value: sign === "-" ? -magnitude : magnitude, used: all.length };
}
