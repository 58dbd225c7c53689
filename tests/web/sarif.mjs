/** Compares SARIF, as the page and the command line write it, with the published types of SARIF 2.1.0: an unknown or missing
 *  property, or a wrong word, does not compile. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { root, samples } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";

const tessera = path.join(root, "build/release/bin/tessera");
const at = (name) => path.join(samples, name);
const reports = [["validate", at("broken_dcp_hole")], ["validate", "--deep", at("broken_dcp_byte_flipped")], ["validate", at("dcp_fsdp2")], ["diff", at("dcp_fsdp2"), at("dcp_tp_fsdp2")]];

/** In the types, words are unions of literals, so the document must be a literal in the source. */
function compiles(text) {
  const directory = fs.mkdtempSync(path.join(root, "web/node_modules/.sarif-"));
  const file = path.join(directory, "log.ts");
  try {
    fs.writeFileSync(file, `import type { Log } from "sarif";\nexport const log: Log = ${text};\n`);
    return spawnSync(path.join(root, "web/node_modules/.bin/tsc"), ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler", "--types", "sarif", file], { cwd: path.join(root, "web"), encoding: "utf8" });
  } finally {
    fs.rmSync(directory, { recursive: true });
  }
}

export async function testSarif() {
  for (const args of reports) {
    await test(`SARIF of ${args.map((a) => path.basename(a)).join(" ")}`, () => {
      const { stdout } = spawnSync(tessera, [...args, "--format", "sarif"], { encoding: "utf8", maxBuffer: 1 << 26 });
      const p = compiles(stdout);
      check(p.status === 0, p.stdout.slice(0, 800));
    });
  }
  await test("a document that is no SARIF does not compile", () => check(compiles('{"version": "2.1.0", "runs": [{"tool": {"driver": {"nam": "x"}}}]}').status !== 0, "it does"));
}
