/** Compares the numbers that JavaScript prints and parses for the module with Python's "%.*g" and float(), which behave like
 *  C's. */
import { spawnSync } from "node:child_process";
import { parseReal, printReal } from "../../wasm/reals.js";
import { check, test } from "../support/harness.mjs";

/** Doubles of all magnitudes, halves of the last digit (ties), subnormal and largest ones: their bits, the digits, and the
 *  printed text. */
const PRINTED = `
import random, struct
draw = random.Random(7)
values = [0.0, 0.5, 2.5, 1 + 2 ** -17, 1e-4, 1e-5, 9.9999e-5, 99999.5, 123456.5, 1e15, 1e16, 1e17, 1e21, 1e22, 5e-324, 2 ** -1022, 1.7976931348623157e308]
values += [struct.unpack("<d", struct.pack("<Q", draw.getrandbits(63)))[0] for _ in range(20000)]
values += [draw.randrange(1, 2 ** draw.randrange(2, 54)) / 2 ** draw.randrange(0, 60) for _ in range(20000)]
values += [float(draw.randrange(10 ** draw.randrange(1, 18))) for _ in range(5000)]
for v in values:
    if v == v and v != float("inf"):
        for d in {1, 15, 16, 17, draw.randrange(1, 18)}:
            print(struct.pack(">d", v).hex(), d, "%.*g" % (d, v), repr(v))
`;
const TEXTS = ["0", "-0", "+1.5", "1.", ".5", ".", "", "-", "1e5", "1e", "1e+", "1.5e-3x", "  12 ", "\t-7", "infinity", "-inf", "info", "nan", "1_0", "0x1f", "0x", "64MiB", "1,5", "12345678901234567890123", "1e400", "-1e-400"];
const READ = [[0, 1], [-0, 2], [1.5, 4], [1, 2], [0.5, 2], [0, 0], [0, 0], [0, 0], [1e5, 3], [1, 1], [1, 1], [0.0015, 6], [12, 4], [-7, 3], [Infinity, 8], [-Infinity, 4], [Infinity, 3], [NaN, 3], [1, 1], [31, 4], [0, 1], [64, 2], [1, 1], [12345678901234567890123, 23], [Infinity, 5], [-0, 7]];

export function testReals() {
  test("numbers are printed and read as C does", () => {
    const python = spawnSync("python3", ["-c", PRINTED], { encoding: "utf8", maxBuffer: 1 << 28 }), lines = python.stdout.trim().split("\n");
    check(python.status === 0 && lines.length > 100_000, python.stderr);
    for (const line of lines) {
      const [hex, digits, text, exact] = line.split(" "), value = Buffer.from(hex, "hex").readDoubleBE();
      check(printReal(value, Number(digits)) === text, `${line}: ${printReal(value, Number(digits))}`);
      check(parseReal(exact).value === value && parseReal(exact).used === exact.length, line);
      check(parseReal(text).value === Number(text) && parseReal(`-${text}`).value === -Number(text), line);
    }
  });
  test("the number that a text begins with is read as strtod does", () => TEXTS.forEach((text, i) => {
    const { value, used } = parseReal(text);
    check(Object.is(value, READ[i][0]) && used === READ[i][1], `'${text}': ${value}, ${used}`);
  }));
}
