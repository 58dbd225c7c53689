/** A file of a checkpoint. `read` fills `into` from `offset`, synchronously, or throws. */
export interface SourceFile {
  /** Path below the checkpoint's folder, with "/" between components. */
  readonly name: string;
  readonly size: number;
  read(offset: number, into: Uint8Array): void;
}

/** What the core refused, with its status word ("malformed", "unsupported", …) and the byte where there is one. */
export class TesseraError extends Error {
  constructor(message: string, status: string, position: number | undefined);
  readonly status: string;
  readonly position: number | undefined;
}

export class Tessera {
  private constructor();
  /** From a URL, a response, the bytes of tessera.wasm, or a module compiled before. */
  static load(source: string | URL | Response | BufferSource | WebAssembly.Module): Promise<Tessera>;
  /** Opens what the files make together, an interrupted save too: its findings say what is missing, and what needs the names or
   *  the tensors is refused then. `primary`: the one that was named, where it stands for a set (an index file). */
  open(files: readonly SourceFile[], options?: { primary?: string }): Checkpoint;
  /** Cause and cure of what a rule ("layout/hole") finds; empty for unknown ids. */
  ruleHelp(rule: string): string;
  readonly bytesRead: number;
  readonly memoryBytes: number;
  /** Handles that are not closed: for tests. */
  readonly openCount: number;
  /** Called after each read (of 4 MiB at most), also in the middle of `open` and other long calls. */
  set onRead(listener: ((bytesRead: number, file: string) => void) | undefined);
}

export type Level = "note" | "warning" | "error";
export type EntryKind = "tensor" | "object" | "opaque";

export class Checkpoint {
  private constructor();
  /** A JSON document: tessera.inspect/1, findings/1, layout/1 as the command line has them, overview/1; and those about
   *  one entry: "entry" (inspect/1 of it alone) and preview/1. "findings-deep" reads every byte; "sarif" is SARIF
   *  2.1.0 of what was found until then; "optimizer" says which state each parameter has (tessera.optimizer/1). */
  document(kind: "inspect" | "findings" | "findings-deep" | "sarif" | "layout" | "overview" | "optimizer", options?: { path?: string }): string;
  document(kind: "entry" | "preview", options: { entry: number; path?: string }): string;
  /** tessera.plan/1: what resharding for `target` (the text of a tessera.target/1 document) would read, hold and send. */
  plan(target: string, path?: string): string;
  /** The number of the entry with this name. */
  find(fqn: string): number | undefined;
  /** Of all entries, or of those that are no tensors. */
  outline(options?: { objectsOnly?: boolean }): Outline;
  /** Statistics and histogram of a tensor, in steps. */
  tally(entry: number): Tally;
  /** Looks for tensors that hold equal bytes, in steps. */
  twins(): Twins;
  diff(other: Checkpoint, options?: { layout?: boolean }): Diff;
  /** Frees it and everything made from it. */
  close(): void;
}

export interface RowBase {
  /** For `act`. */
  readonly node: number;
  /** The last component. */
  readonly name: string;
  readonly depth: number;
  /** Has something below it. */
  readonly group: boolean;
  readonly open: boolean;
  /** Alike siblings that this row is the first of (0: none), and whether it stands for all of them now. */
  readonly run: number;
  readonly folded: boolean;
  /** A numbered sibling that is not like the others. */
  readonly odd: boolean;
  readonly level: Level | undefined;
  /** Below and itself. */
  readonly entries: number;
  readonly elements: number;
  readonly bytes: number;
  readonly dtypes: readonly string[];
}

export interface GroupRow extends RowBase { readonly entry?: undefined }

export interface EntryRow extends RowBase {
  readonly entry: number;
  readonly fqn: string;
  readonly kind: EntryKind;
  readonly shape: readonly number[];
  readonly chunks: number;
}

export type Row = GroupRow | EntryRow;

/** The names as a tree: rows that are visible, what opens and closes them, a filter. */
export class Outline {
  private constructor();
  readonly count: number;
  rows(first: number, count: number): Row[];
  /** Returns how many rows are visible then. */
  act(node: number, act: "open" | "close" | "fold" | "unfold" | "open-all" | "close-all"): number;
  /** Terms between spaces, all of which must hold: text, a glob, dtype:, shape:4096x*, file:, kind:, >1GB, -term. Returns
   *  how many entries are kept; an empty text shows all. */
  filter(text: string): number;
  /** Opens what the entry is in and returns its row, unless the filter hides it. */
  reveal(entry: number): number | undefined;
  mark(entry: number, level: Level): void;
  close(): void;
}

export class Tally {
  private constructor();
  /** Reads about so many bytes; true while there is more. */
  step(bytes: number): boolean;
  /** tessera.tally/1 of what was read so far. */
  document(): string;
  close(): void;
}

export class Twins {
  private constructor();
  /** Reads one more tensor; true while there is more. */
  step(): boolean;
  /** tessera.twins/1 when all steps were done. */
  document(): string;
  close(): void;
}

export class Diff {
  private constructor();
  /** Compares the values of one more tensor; true while there is more. */
  step(): boolean;
  /** tessera.diff/1; with values when all steps were done. */
  document(pathA?: string, pathB?: string): string;
  close(): void;
}
