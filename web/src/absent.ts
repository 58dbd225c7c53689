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
}

/** Opening a checkpoint examines the items of some tensors. Until it is open, an absent file reads as zeros, which are not an item; items that
 *  cannot be read are reported only when their tensor is read. Once the checkpoint is open, reading the file is an error. */
const standIn = (name: string, isOpen: () => boolean): SourceFile => ({ name, size: STAND_IN_BYTES, read: (_, into) => {
  if (isOpen()) throw new Error(`${name} is absent`);
  into.fill(0);
} });

/** Of items that cannot be read: they may be compressed, and zstd is in the second file of the module. */
const ITEM = "dcp/item";

const missingIn = (document: FindingsDocument, known: ReadonlyMap<string, Finding>): Finding[] =>
  document.findings.filter((f) => f.rule === RULE && f.file !== undefined && !known.has(f.file));

const findingsDocument = (checkpoint: Checkpoint, path: string) => JSON.parse(checkpoint.document("findings", { path })) as FindingsDocument;

/** Opens the files, and then again with a placeholder for every file that is missing, until none is. Throws if only the second
 *  file of the module can read them. */
export function openFiles(tessera: Tessera, files: readonly SourceFile[], options: OpenOptions, path: string): OpenedFiles {
  let checkpoint = tessera.open(files, options), isOpen = false;
  try {
    checkpoint.check(); // Raw optimizer states of several ranks can be opened, but are not one checkpoint that can be shown.
    const first = findingsDocument(checkpoint, path);
    if (!tessera.isPrepared && first.findings.some((f) => f.rule === ITEM)) throw new Error("items are judged with the second file of the module");
    const missing = new Map<string, Finding>();
    let latest = first;
    for (let pass = 0; pass < MOST_PASSES; pass++) {
      const more = missingIn(latest, missing);
      if (more.length === 0) break;
      for (const f of more) if (f.file !== undefined) missing.set(f.file, f);
      checkpoint.close();
      checkpoint = tessera.open([...files, ...[...missing.keys()].map((name) => standIn(name, () => isOpen))], options);
      latest = findingsDocument(checkpoint, path);
    }
    isOpen = true;
    return { checkpoint, absent: [...missing.keys()], found: withMissing(first, [...missing.values()]) };
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
