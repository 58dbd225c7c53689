/** Comparisons, and reports in every format, are those of the command line. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { check, errorOf, same, test } from "../support/harness.mjs";

const FORMATS = ["json", "sarif", "junit", "github", "gitlab"];

export function testReports({ tessera, native, samples, withOpened }) {
  const printed = (...args) => spawnSync(native, args, { encoding: "utf8", maxBuffer: 1 << 28 }).stdout;

  test("a diff across formats is the diff of the command line", () => {
    for (const [a, b] of [["dcp_fsdp2", "dcp_hsdp"], ["safetensors_model", "safetensors_consolidated"], ["torch_plain", "torch_plain"]]) {
      const [pa, pb] = [path.join(samples, a), path.join(samples, b)];
      const p = spawnSync(native, ["diff", pa, pb, "--values", "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
      withOpened(pa, (A) => withOpened(pb, (B) => {
        const diff = A.diff(B);
        while (diff.step());
        same(p.stdout, diff.document(pa, pb), `diffs of ${a} and ${b}`);
      }));
    }
  });

  test("reports are those of the command line", () => {
    const rule = ["values/*=error", "layout/hole=note"];
    for (const name of ["broken_dcp_hole", "broken_dcp_byte_flipped", "broken_torch_call", "broken_index_missing_key", "dcp_fsdp2", "dcp_rank_local", "safetensors_names"]) {
      const target = path.join(samples, name);
      for (const format of FORMATS) {
        withOpened(target, (opened) => {
          same(printed("validate", target, "--format", format), opened.document("findings", { path: target, format }), `${format} of ${name}`);
          same(printed("validate", target, "--deep", "--format", format), opened.document("findings-deep", { path: target, format }), `${format} of ${name}, --deep`);
          const judged = tessera.report(opened.validate({ deep: true, rule }), { path: target, format });
          if (format !== "json") same(printed("validate", target, "--deep", ...rule.flatMap((r) => ["--rule", r]), "--format", format), judged, `${format} of ${name}, --rule`);
        });
      }
      withOpened(target, (opened) => same(opened.document("findings", { path: target, format: "sarif" }), opened.document("sarif", { path: target }), `the kind sarif of ${name}`));
    }
  });

  test("reports of a comparison are those of the command line", () => {
    const [a, b] = ["dcp_fsdp2", "broken_dcp_hole"].map((name) => path.join(samples, name)), rule = ["diff/added=warning"];
    for (const format of FORMATS) {
      withOpened(a, (A) => withOpened(b, (B) => {
        const plain = A.diff(B), judged = A.diff(B, { rule });
        while (plain.step());
        same(printed("diff", a, b, "--values", "--format", format), plain.document(a, b, { format }), `${format} of a comparison`);
        same(printed("diff", a, b, "--rule", rule[0], "--format", format), judged.document(a, b, { format }), `${format} of a comparison with --rule`);
      }));
    }
  });

  test("reports of values that differ from their manifest are those of the command line", () => {
    const [target, other] = ["dcp_fsdp2", "dcp_v2_15_fsdp2"].map((name) => path.join(samples, name)), directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-wasm-"));
    try {
      const file = path.join(directory, "manifest.json"), manifest = printed("manifest", other);
      fs.writeFileSync(file, manifest);
      for (const format of FORMATS.slice(1)) {
        const wanted = printed("verify", target, file, "--format", format);
        check(wanted.includes("layout/missing-entry"), `${format} has no finding`);
        withOpened(target, (opened) => same(wanted, tessera.report(opened.verify(manifest), { path: target, format }), `${format} of verify`));
      }
    } finally {
      fs.rmSync(directory, { recursive: true });
    }
  });

  test("a wrong format, and a document without findings, are refused", () => {
    withOpened(path.join(samples, "dcp_fsdp2"), (opened) => {
      const wrong = errorOf(() => opened.document("findings", { format: "xml" }));
      check(wrong.status === "usage" && wrong.message === "format expects json, sarif, junit, github or gitlab, not 'xml'", wrong.message);
      const other = errorOf(() => opened.document("overview", { format: "sarif" }));
      check(other.status === "malformed" && other.message.includes("a report is made of a tessera.findings/1 document"), other.message);
      check(errorOf(() => opened.document("findings", { format: 1 })) instanceof TypeError, "a number is accepted as a format");
      check(errorOf(() => tessera.report(opened.validate(), { form: "sarif" })) instanceof TypeError, "an unknown option is accepted");
    });
  });
}
