/** Checks, in the worker, whether a checkpoint fits a module tree, a layout, an index, names, or another checkpoint. */
import { TesseraError, type Checkpoint, type Tessera, type ValidateOptions } from "../../wasm/tessera.js";
import type { Expectation, LoadFindings } from "./protocol";
import { suggested } from "./renames";
import { chosenOf, sourceFile } from "./sources";

const MISSING = "layout/missing-entry", UNEXPECTED = "layout/unexpected-entry";
const MISMATCHED: readonly string[] = ["layout/shape", "layout/dtype", "layout/kind", "layout/chunks", "layout/digest"];

type Against = NonNullable<ValidateOptions["against"]>;

function documentOf(text: string): Against {
  let document: unknown;
  try {
    document = JSON.parse(text);
  } catch (e) {
    throw new TesseraError(`the file is not JSON: ${e instanceof Error ? e.message : String(e)}`, "page", undefined);
  }
  return Array.isArray(document) && document.every((name) => typeof name === "string") ? document : text; // the text keeps large integers
}

function findingsFor(checkpoint: Checkpoint, against: Against, prefix: string, allow: string): LoadFindings {
  const { findings, summary } = checkpoint.validate({ against, ...(prefix ? { prefix } : {}), ...(allow ? { allow } : {}) });
  const of = (...rules: readonly string[]) => findings.filter((f) => rules.includes(f.rule)), names = (rule: string) => of(rule).map((f) => f.fqn ?? "");
  const unlisted = Object.entries(summary.unlisted ?? {}).filter(([rule]) => [MISSING, UNEXPECTED, ...MISMATCHED].includes(rule)).reduce((sum, [, n]) => sum + n, 0);
  return { missing: of(MISSING), unexpected: of(UNEXPECTED), mismatched: of(...MISMATCHED), unlisted, renames: suggested(names(MISSING), names(UNEXPECTED)) };
}

export function checkLoad(tessera: Tessera, checkpoint: Checkpoint, expected: Expectation, prefix: string, allow: string): LoadFindings {
  if ("text" in expected) return findingsFor(checkpoint, documentOf(expected.text), prefix, allow);
  const other = tessera.open(expected.opening.files.map(sourceFile), chosenOf(expected.opening));
  try {
    return findingsFor(checkpoint, other, prefix, allow);
  } finally {
    other.close();
  }
}
