/** The npm package: its types and options, and that it installs and runs. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { OPTIONS } from "../../wasm/commands.js";
import { check, test } from "../support/harness.mjs";

export function testPackage({ native, root }) {
  test("the types of documents are those of the schemas", () => {
    const p = spawnSync(process.execPath, [path.join(root, "wasm/types.mjs"), "--check"], { encoding: "utf8" });
    check(p.status === 0, p.stderr);
  });

  test("the options of calls are those of the table of commands", () => {
    const p = spawnSync(process.execPath, [path.join(root, "wasm/commands.mjs"), native, "--check"], { encoding: "utf8" });
    check(p.status === 0, p.stderr);
  });

  test("every option of a call is used by the package", () => {
    const textsOf = (directory, isWanted) => fs.readdirSync(path.join(root, directory)).filter(isWanted).map((n) => fs.readFileSync(path.join(root, directory, n), "utf8")).join("\n");
    const script = textsOf("wasm", (n) => n.endsWith(".js") && n !== "commands.js"), table = textsOf("core/commands", (n) => n === "table.c");
    const code = textsOf("wasm", (n) => n.endsWith(".c")) + textsOf("core/commands", (n) => n.endsWith(".c") && n !== "table.c" && n !== "options.c");
    const fields = new Map([...table.matchAll(/OPTION\(\s*\w+, \w+, (\w+)[\w.]*, "([\w-]+)"/g)].map(([, field, long]) => [long, field]));
    check(fields.size > 60, `${fields.size} options are found in the table`);
    for (const [call, options] of Object.entries(OPTIONS))
      for (const name of Object.keys(options)) {
        const long = name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
        check(new RegExp(`[.>]${fields.get(long)}\\b`).test(code) || new RegExp(`\\b${name}\\b`).test(script), `neither core/commands nor wasm reads option ${name} of ${call}; implement it, or state in core/commands/table.c why it is not in the package`);
      }
  });

  test("the npm package installs, runs under Node and has the types that it says", () => {
    const p = spawnSync(path.join(root, "tests/wasm/package.sh"), { encoding: "utf8" });
    check(p.status === 0, p.stdout + p.stderr);
  });
}
