/** The documents of every sample, and a plan, are those of the command line. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { check, errorOf, same, test } from "../support/harness.mjs";

/** Each kind of document, with the arguments of the command that prints it. */
const DOCUMENTS = [
  ["inspect", (t) => ["inspect", t, "--json"]],
  ["findings", (t) => ["validate", t, "--format", "json"]],
  ["findings-deep", (t) => ["validate", "--deep", t, "--format", "json"]],
];

export function testDocuments({ tessera, native, root, samples, targets, withOpened }) {
  for (const target of targets) {
    for (const [kind, args] of DOCUMENTS) {
      test(`${path.relative(root, target)} ${kind}`, () => {
        const p = spawnSync(native, args(target), { encoding: "utf8", maxBuffer: 1 << 28 });
        check(p.error === undefined, `${native} does not run: ${p.error}`);
        let ours, refusal;
        try {
          ours = withOpened(target, (opened) => opened.document(kind, { path: target }));
        } catch (e) {
          refusal = e.message;
        }
        if (p.status === 2) {
          check(refusal !== undefined, `native refuses (${p.stderr.trim()}), wasm does not`);
          check(p.stderr.includes(refusal), `the refusals differ: native ${p.stderr.trim()}, wasm ${refusal}`);
        } else {
          check(refusal === undefined, `wasm refuses: ${refusal}`);
          same(p.stdout, ours, "documents");
        }
      });
    }
  }

  test("an interrupted save is opened and judged, and listed nowhere", () => {
    const target = path.join(root, "samples/checkpoints/broken_dcp_no_metadata");
    const refused = spawnSync(native, ["inspect", target], { encoding: "utf8" });
    check(refused.status === 2, refused.stderr);
    withOpened(target, (opened) => {
      check(JSON.parse(opened.document("findings")).findings.some((f) => f.rule === "parts/incomplete-save"), "no finding says so");
      for (const body of [() => opened.document("inspect"), () => opened.document("overview"), () => opened.document("layout"), () => opened.outline(), () => opened.document("optimizer")])
        check(refused.stderr.includes(errorOf(body).message), `${body} says ${errorOf(body).message}`);
      check(opened.find("w") === undefined, "a name is found");
    });
  });

  test("a plan of the module is carried out by the command line", () => {
    const target = path.join(samples, "dcp_fsdp2"), directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-wasm-"));
    const text = JSON.stringify({ schema: "tessera.target/1", mesh: { shape: [3], dim_names: ["dp"] }, rules: [], default: ["shard(0)"] });
    try {
      const plan = path.join(directory, "plan.json"), out = path.join(directory, "out");
      withOpened(target, (opened) => fs.writeFileSync(plan, opened.document("plan", { target: text, path: target })));
      for (const args of [["exec", plan, out], ["diff", target, out, "--values"]]) {
        const p = spawnSync(native, args, { encoding: "utf8" });
        check(p.status === 0, `${args[0]}: ${p.stdout}${p.stderr}`);
      }
    } finally {
      fs.rmSync(directory, { recursive: true });
    }
  });

  test("rules explain themselves", () => {
    check(/shard was lost/.test(tessera.ruleHelp("layout/hole")) && tessera.ruleHelp("no/rule") === "", tessera.ruleHelp("layout/hole"));
  });
}
