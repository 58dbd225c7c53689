/** Opens checkpoints without some of their data files. Placeholders replace the absent files, so that each chunk keeps the
 *  name of its file. Their bytes can never be read. */
import type { Checkpoint, OpenOptions, SourceFile, Tessera } from "../../wasm/tessera.js";
import type { Finding } from "./protocol";

const RULE = "dcp/missing-file";
/** The size of a placeholder: no chunk of a real file ends beyond it. */
const STAND_IN_BYTES = 2 ** 50;
/** Each pass learns at most a thousand names, because the findings of one rule are limited. */
const MOST_PASSES = 100;

export interface FindingsDocument {
  readonly schema: string;
  readonly findings: readonly Finding[];
  readonly summary: { readonly paths: number; readonly errors: number; readonly warnings: number; readonly notes: number; readonly unlisted?: Readonly<Record<string, number>> };
}

export interface OpenedFiles {
  readonly checkpoint: Checkpoint;
  /** The names of data files that the metadata needs and that were not opened. */
  readonly absent: readonly string[];
  /** The findings without placeholders. */
  readonly found: FindingsDocument;
  readonly sarif: string;
}

const standIn = (name: string): SourceFile => ({ name, size: STAND_IN_BYTES, read: () => { throw new Error(`${name} is absent`); } });

/** Of items that cannot be read: they may be compressed, and zstd is in the second file of the module. */
const ITEM = "dcp/item";

const missingIn = (document: FindingsDocument, known: ReadonlyMap<string, Finding>): Finding[] =>
  document.findings.filter((f) => f.rule === RULE && f.file !== undefined && !known.has(f.file));

const findingsDocument = (checkpoint: Checkpoint, path: string) => JSON.parse(checkpoint.document("findings", { path })) as FindingsDocument;

/** Opens the files, and then again with a placeholder for every file that is missing, until none is. Throws if only the second
 *  file of the module can read them. */
export function openFiles(tessera: Tessera, files: readonly SourceFile[], options: OpenOptions, path: string): OpenedFiles {
  let checkpoint = tessera.open(files, options);
  try {
    checkpoint.check(); // Raw optimizer states of several ranks can be opened, but are not one checkpoint that can be shown.
    const first = findingsDocument(checkpoint, path), sarif = checkpoint.document("sarif", { path });
    if (!tessera.isPrepared && first.findings.some((f) => f.rule === ITEM)) throw new Error("items are judged with the second file of the module");
    const missing = new Map<string, Finding>();
    let latest = first;
    for (let pass = 0; pass < MOST_PASSES; pass++) {
      const more = missingIn(latest, missing);
      if (more.length === 0) break;
      for (const f of more) if (f.file !== undefined) missing.set(f.file, f);
      checkpoint.close();
      checkpoint = tessera.open([...files, ...[...missing.keys()].map(standIn)], options);
      latest = findingsDocument(checkpoint, path);
    }
    return { checkpoint, absent: [...missing.keys()], found: withMissing(first, [...missing.values()]), sarif: sarifWith(sarif, first, [...missing.values()]) };
  } catch (e) {
    checkpoint.close();
    throw e;
  }
}

/** Adds all missing files to the findings, although a list of findings has a limit. */
export function withMissing(document: FindingsDocument, missing: readonly Finding[]): FindingsDocument {
  const named = new Set(document.findings.map((f) => f.rule === RULE ? f.file : undefined));
  const rest = missing.filter((f) => !named.has(f.file));
  if (rest.length === 0) return document;
  const { unlisted = {}, ...summary } = document.summary;
  const left = Object.entries(unlisted).map(([rule, n]) => [rule, rule === RULE ? n - rest.length : n] as const).filter(([, n]) => n > 0);
  return { ...document, findings: [...document.findings, ...rest], summary: left.length ? { ...summary, unlisted: Object.fromEntries(left) } : summary };
}

interface SarifResult { readonly ruleId: string; readonly partialFingerprints?: unknown; readonly locations?: readonly { readonly physicalLocation?: { readonly artifactLocation?: { readonly uri: string } } }[] }
interface SarifLog { readonly runs: readonly { readonly results: readonly SarifResult[] }[] }

/** The same for SARIF 2.1.0: an existing result serves as the pattern for those that were not listed. */
function sarifWith(text: string, first: FindingsDocument, missing: readonly Finding[]): string {
  const rest = withMissing(first, missing).findings.slice(first.findings.length);
  if (rest.length === 0) return text;
  const log = JSON.parse(text) as SarifLog, [run] = log.runs;
  const pattern = run?.results.find((r) => r.ruleId === RULE), at = first.findings.find((f) => f.rule === RULE)?.file ?? "";
  if (!run || !pattern) return text;
  const { partialFingerprints: _, ...plain } = pattern;
  const added = rest.map((f) => ({ ...plain, message: { text: f.message }, locations: [{
    physicalLocation: { artifactLocation: { uri: (pattern.locations?.[0]?.physicalLocation?.artifactLocation?.uri ?? at).replace(at, f.file ?? "") } },
    ...(f.fqn === undefined ? {} : { logicalLocations: [{ fullyQualifiedName: f.fqn }] }),
  }] }));
  return JSON.stringify({ ...log, runs: [{ ...run, results: [...run.results, ...added] }] }, null, 1);
}
