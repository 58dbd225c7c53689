/** Members of every length that the module's CRC-32 treats differently (wasm/platform/crc32_sliced.c) are checked against the
 *  CRC-32 that zlib computes. */
import { check, test } from "../support/harness.mjs";
import { expandedFile } from "./torch_files.mjs";

const LENGTHS = [4, 20, 4796, 4800, 9596, 9600, 9604, 14684, 14688, 14692, 19196, 19200, 19204, 21884, 21888, 21892, 24988, 131068, 131072, 131076, 393220];

export function testChecksums({ tessera }) {
  const findingsOf = (bytes) => {
    const opened = tessera.open([{ name: "x.pt", size: bytes.length, read: (at, into) => { bytes.copy(into, 0, at, at + into.length); } }]);
    try {
      return opened.validate({ deep: true }).findings.map((f) => f.rule);
    } finally {
      opened.close();
    }
  };
  for (const length of LENGTHS) {
    test(`the CRC-32 of ${length} bytes is that of zlib`, () => {
      const storage = Buffer.from(Array.from({ length }, (_, i) => (i * 2654435761) >>> 24 & 63)), file = expandedFile(2, { storage }), at = file.indexOf(storage);
      check(!findingsOf(file).includes("zip/crc"), "an undamaged member was reported");
      for (const damaged of new Set([0, length >> 1, length - 1, Math.max(0, length - 2401)])) {
        const wrong = Buffer.from(file);
        wrong[at + damaged] ^= 1;
        check(findingsOf(wrong).includes("zip/crc"), `damage at byte ${damaged} was not reported`);
      }
    });
  }
}
