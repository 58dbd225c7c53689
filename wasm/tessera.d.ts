import type {
  CanonicalizeOptions, ConvertOptions, DiffOptions, InspectOptions, LayoutOptions, ManifestOptions, OpenOptions, OptimizerOptions, PlanOptions,
  ReadOptions, ReshardOptions, ValidateOptions, VerifyOptions,
} from "./commands.js";
import type {
  ConvertDocument, DiffDocument, FindingsDocument, FqnDocument, InspectDocument, LayoutDocument, ManifestDocument, PlanDocument,
} from "./documents.js";
export type * from "./commands.js";
export type * from "./documents.js";

/** A file of a checkpoint. `read` fills `into` with the bytes from `offset` on, synchronously, or throws. If it returns a
 *  number, as fs.readSync does, a number below the size of `into` is an error. */
export interface SourceFile {
  /** The path below the checkpoint's directory, with "/" between components. */
  readonly name: string;
  readonly size: number;
  /** The time of the last modification, in seconds since 1970 with nine decimals. A plan states it. */
  readonly modified?: string | undefined;
  /** Set this if each read is a request. If `prepare` was called before `open`, the header before each record of a
   *  torch.save file is then read and checked together with the record's first values, and not when the file is opened. This
   *  saves one request per record. */
  readonly remote?: boolean | undefined;
  read(offset: number, into: Uint8Array): void;
  /** Called before `read` by calls that return promises, if the engine has JavaScript Promise Integration. If it returns a
   *  promise, the call waits for it, and `read` is expected to find the bytes then. Meanwhile, other calls of the same Tessera
   *  that may read throw an error. */
  fetch?(offset: number, size: number): Promise<void> | undefined;
  /** Called by the same calls with ranges that will be read soon, such as both ends of items of a DCP, before many small reads
   *  that depend on each other. If it returns a promise, the call waits for it. It need not fetch them. */
  prefetch?(ranges: readonly { readonly offset: number; readonly size: number }[]): Promise<void> | undefined;
}

/** An error of the core, with the name of its status ("malformed", "unsupported", …) and the byte position, if there is
 *  one. */
export class TesseraError extends Error {
  constructor(message: string, status: string, position: number | undefined);
  readonly status: string;
  readonly position: number | undefined;
}

export class Tessera {
  private constructor();
  /** Loads the first file of the module from a URL, a response, the bytes of tessera.wasm, or a compiled module. */
  static load(source: string | URL | Response | BufferSource | WebAssembly.Module): Promise<Tessera>;
  /** Loads the second file of the module, once. It is needed for documents with options (`inspect`, `layout`, `validate`,
   *  `plan`, `manifest`, `verify`), `canonicalize`, `twins`, `optimizer`, `convert`, `reshard`, digests, items compressed by
   *  zstd, `map` and `shards`. It is also needed to open checkpoints of training frameworks (DeepSpeed, Megatron-Core,
   *  accelerate, Lightning, Trainer, verl, ranks with plain tensors) and pickles that name unknown classes; `open` rejects
   *  these until it is loaded. By default it is fetched from the directory of this file. If it is elsewhere, pass its
   *  address, its bytes or a compiled module. `load` of the Node entry calls this. */
  prepare(source?: string | URL | Response | BufferSource | WebAssembly.Module): Promise<void>;
  /** Whether the second file is loaded. */
  readonly isPrepared: boolean;
  /** Opens the checkpoint that the files make. Files with the same name, from nodes that wrote to local disks, must have the
   *  same bytes. An interrupted save can be opened, too: its findings state what is missing, and calls that need the names or
   *  the tensors throw. Files with ranks' raw optimizer states can be opened whatever they are called. If files are not one
   *  checkpoint, all calls throw except `optimizer("unshard", …)`, which learns the order of the ranks from
   *  `flatParams.files`. */
  open(files: readonly SourceFile[], options?: OpenOptions): Checkpoint;
  /** Returns the names of the built-in maps, like `tessera map list`. Needs `prepare`. */
  mapList(): string[];
  /** Returns the text of a built-in map, like `tessera map show NAME`. Needs `prepare`. */
  mapShow(name: string): string;
  /** Returns the canonical names of a model's parameters, buffers and extra states, or of the given raw names, like
   *  `tessera fqn MODULES.json [NAME…]`. Needs `prepare`. */
  canonicalize(modules: DocumentOrText, names?: readonly string[]): FqnDocument;
  /** Returns the explanation of a rule ("layout/hole") and how to fix what it finds; empty for unknown ids. */
  ruleHelp(rule: string): string;
  /** Returns findings, such as those of `validate` and `verify`, in another form, like `--format` of the command line. `path` is the
   *  name of what was checked. Needs `prepare`. */
  report(findings: DocumentOrText, options: { format: ReportFormat; path?: string | undefined }): string;
  /** The number of bytes read from source files. */
  readonly bytesRead: number;
  /** The size of the module's memory. */
  readonly memoryBytes: number;
  /** The number of open handles; for tests. */
  readonly openCount: number;
  /** Called after each read (of at most 4 MiB), even during `open` and other long calls. */
  set onRead(listener: ((bytesRead: number, file: string) => void) | undefined);
}

/** A JSON document, as text or as the parsed object. An object loses integers above 2^53 and the order of number-like
 *  keys. */
export type DocumentOrText = string | object;

/** A copy of a tensor's elements, in row-major order. */
export interface TensorValues {
  readonly dtype: string;
  /** The shape of the tensor or slice. Dimensions in which the slice selects a single index are removed. */
  readonly shape: readonly number[];
  /** float16, bfloat16, complex32 and bcomplex32 are in a Uint16Array; bool, float8 and smaller types in a Uint8Array. complex64 and
   *  complex128 are pairs of real and imaginary parts. 64-bit integers are bigints. */
  readonly data: Float64Array | Float32Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array | Int16Array | Uint16Array | Int8Array | Uint8Array;
}

export type OptimizerAction = "flatten" | "unflatten" | "to-fqn" | "to-id" | "unshard" | "shard";

export type Names = Pick<InspectOptions, "include" | "exclude">;

/** The names and layouts of another model. */
export type MapOptions = Pick<DiffOptions, "map" | "inverse">;

/** Options for running a conversion. */
export type RunOptions = Pick<ConvertOptions, "forTorch" | "maxMem" | "ignoreCrc" | "signal" | "onProgress">;

export type ComparingOptions = Omit<DiffOptions, "map" | "inverse" | "dequantize" | "allowExpansion">;

/** Forms of findings, as `--format` of the command line has them: tessera.findings/1, SARIF 2.1.0, JUnit XML, GitHub's workflow
 *  commands, and GitLab's Code Quality report. */
export type ReportFormat = "json" | "sarif" | "junit" | "github" | "gitlab";

/** Receives the files of a conversion. Methods may return promises, which are awaited between steps of about 16 MiB. `bytes`
 *  is only valid during the call. A single file has the name "", and the name of a file next to it begins with a dot. */
export interface Sink {
  /** Creates a file of `size` bytes. */
  create(name: string, size: number): void | Promise<void>;
  /** Writes `bytes` at a byte offset of a file. Offsets come in any order. */
  write(name: string, offset: number, bytes: Uint8Array): void | Promise<void>;
  /** Called when all bytes of a file have been written. */
  finish(name: string): void | Promise<void>;
  /** Called after every file is finished. */
  done?(): void | Promise<void>;
  /** Called after an error or an abort. No other method is called after it. */
  abort?(error: unknown): void | Promise<void>;
}

/** tessera.convert/1 without the members that only have a meaning on the command line. */
export type ConversionResult = Omit<ConvertDocument, "dry_run" | "map" | "dropped" | "published" | "work"> & { readonly warnings: readonly string[] };

export type Level = "note" | "warning" | "error";
export type EntryKind = "tensor" | "object" | "opaque";

export class Checkpoint {
  private constructor();
  /** Returns a JSON document: tessera.inspect/1, findings/1 and layout/1 like the command line, or overview/1. "entry"
   *  (inspect/1 of a single entry) and "preview" (preview/1) are about one entry. "findings-deep" reads all data;
   *  "optimizer" states which state each parameter has (tessera.optimizer/1). */
  document(kind: "inspect" | "layout" | "overview" | "optimizer", options?: { path?: string }): string;
  /** With `format`, returns the findings in that form, like `tessera validate --format`. Needs `Tessera.prepare`. */
  document(kind: "findings" | "findings-deep", options?: { path?: string; format?: ReportFormat | undefined }): string;
  /** The same as "findings" with the format "sarif". */
  document(kind: "sarif", options?: { path?: string }): string;
  document(kind: "entry" | "preview", options: { entry: number; path?: string }): string;
  /** Returns the text of `plan`, with a path. Needs `Tessera.prepare`. */
  document(kind: "plan", options: PlanOptions & { path?: string | undefined }): string;
  /** Lists the entries, like `tessera inspect`. */
  inspect(options?: InspectOptions): InspectDocument;
  /** Returns the layout, like `tessera layout`; `chunks: false` leaves the chunks out. */
  layout(options?: LayoutOptions): LayoutDocument;
  /** Several workers, each with its own Tessera, can share a check of all data. Returns what part `number` of `count` found.
   *  Needs `Tessera.prepare`. */
  checkPart(number: number, count: number): Uint8Array;
  /** Does the same, and waits for sources that have `fetch`. */
  checkPartAsync(number: number, count: number): Promise<Uint8Array>;
  /** Ends such a check in one of the workers, with the results of all `count` parts, one after another. `document("findings")`
   *  then returns what "findings-deep" would return. */
  checkJoin(found: Uint8Array, count: number): void;
  /** Returns the findings, like `tessera validate`. */
  validate(options?: ValidateOptions): FindingsDocument;
  /** Previews what each rank of a reshard would read, hold and send, like `tessera plan`. */
  plan(options: PlanOptions): PlanDocument;
  /** Returns checksums of all values, which do not depend on sharding or format, like `tessera manifest`. */
  manifest(options?: ManifestOptions): ManifestDocument;
  /** Compares all values with a manifest, like `tessera verify`. */
  verify(manifest: DocumentOrText, options?: VerifyOptions): FindingsDocument;
  /** Writes the checkpoint in another format, like `tessera convert`. Needs `Tessera.prepare`. */
  convert(options: ConvertOptions, sink: Sink): Promise<ConversionResult>;
  /** Writes the shards of each rank of a mesh, like `tessera reshard`. Needs `Tessera.prepare`. */
  reshard(options: ReshardOptions, sink: Sink): Promise<ConversionResult>;
  /** Returns the number of the entry with this name. */
  find(fqn: string): number | undefined;
  /** Reads the values of a tensor, or of `slice`: the text between the brackets of `tessera get` ("0:2,:,-1"). */
  read(fqn: string, slice?: string, options?: ReadOptions): TensorValues;
  /** Makes an outline of all entries, or of those that are not tensors. */
  outline(options?: { objectsOnly?: boolean }): Outline;
  /** Computes statistics and a histogram of a tensor, in steps. */
  tally(entry: number): Tally;
  /** Finds tensors with equal bytes, in steps. */
  twins(): Twins;
  /** Compares this checkpoint with `other`. `layout` also reports different chunks; `canonical` ignores wrapper prefixes in
   *  names; values may differ by `atol` plus `rtol` times the other value. A map is applied to this checkpoint. With `rule`
   *  or `baseline`, the result contains only the differences that these leave. */
  diff(other: Checkpoint, options?: DiffOptions): Diff;
  /** Returns the canonical names of the keys, judged by their text alone, like `tessera fqn --checkpoint PATH`. `prefix`:
   *  use only keys with this prefix, and strip it. */
  canonicalize(options?: CanonicalizeOptions): FqnDocument;
  /** Returns this checkpoint with the names and layouts of a map, for calls that list, read and compare it. It is closed with
   *  this one. Needs `Tessera.prepare`. */
  mapped(options: MapOptions & { map: DocumentOrText }): MappedCheckpoint;
  /** Returns what `tessera optim WHAT` would write, as a checkpoint. Its tensors are read from this one on request, and the
   *  positions of its chunks are not those in a written file. Needs `Tessera.prepare`. */
  optimizer(what: OptimizerAction, options?: OptimizerOptions): Checkpoint;
  /** The warnings that the command line prints when it writes the result of `optimizer`, or because the option `shards` of
   *  `open` has no effect. */
  readonly warnings: readonly string[];
  /** Throws if listing the checkpoint would throw, because the files are not one checkpoint (see `open`). */
  check(): void;
  /** Frees the checkpoint and everything made from it, including checkpoints. */
  close(): void;
}

/** What `Checkpoint.mapped` returns. Its calls are those of the checkpoint, for the entries that the map makes. */
export interface MappedCheckpoint {
  document(kind: "entry" | "preview", options: { entry: number; path?: string }): string;
  find(fqn: string): number | undefined;
  read(fqn: string, slice?: string): TensorValues;
  outline(options?: { objectsOnly?: boolean }): Outline;
  tally(entry: number): Tally;
  /** Compares with `other`. The comparison is closed with this object. */
  diff(other: Checkpoint, options?: ComparingOptions): Diff;
  canonicalize(options?: Pick<CanonicalizeOptions, "prefix">): FqnDocument;
  close(): void;
}

export interface RowBase {
  /** The node to pass to `act`. */
  readonly node: number;
  /** The last component of the name. */
  readonly name: string;
  readonly depth: number;
  /** Whether there is something below it. */
  readonly group: boolean;
  readonly open: boolean;
  /** The number of similar siblings of which this row is the first (0: none), and whether it currently represents all of
   *  them. */
  readonly run: number;
  readonly folded: boolean;
  /** A numbered sibling that differs from the others. */
  readonly odd: boolean;
  readonly level: Level | undefined;
  /** The number of entries in this row and below it. */
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

/** The names as a tree: the visible rows, opening and closing, and a filter. */
export class Outline {
  private constructor();
  /** The number of visible rows. */
  readonly count: number;
  /** Returns at most `count` visible rows, from row `first` on. */
  rows(first: number, count: number): Row[];
  /** Returns the new number of visible rows. */
  act(node: number, act: "open" | "close" | "fold" | "unfold" | "open-all" | "close-all"): number;
  /** Shows the entries that satisfy all terms, which are separated by spaces: text, a glob, dtype:, shape:4096x*, file:,
   *  kind:, >1GB, -term. Returns the number of these entries; an empty text shows all. */
  filter(text: string): number;
  /** Opens the parents of the entry and returns its row, unless the filter hides it. */
  reveal(entry: number): number | undefined;
  /** Sets the `level` of the entry's row and of its parents, unless it is higher already. */
  mark(entry: number, level: Level): void;
  close(): void;
}

/** Statistics and a histogram of a tensor, computed in steps. */
export class Tally {
  private constructor();
  /** Reads about this many bytes. Returns true while there is more. */
  step(bytes: number): boolean;
  /** Returns tessera.tally/1 of what was read so far. */
  document(): string;
  close(): void;
}

/** The search for tensors with equal bytes, in steps. */
export class Twins {
  private constructor();
  /** Reads one more tensor. Returns true while there is more. */
  step(): boolean;
  /** Returns tessera.twins/1 after the last step. */
  document(): string;
  close(): void;
}

/** A comparison of two checkpoints, whose values are compared in steps. */
export class Diff {
  private constructor();
  /** Compares the values of one more tensor. Returns true while there is more. */
  step(): boolean;
  /** Does the same, and waits for sources that have `fetch`. */
  stepAsync(): Promise<boolean>;
  /** Restricts the following steps to part `number` of `count`, so that several workers, each with its own Tessera, can
   *  share a comparison. */
  part(number: number, count: number): void;
  /** Returns the results of a part, which `take` adds to another worker's comparison of the same files. */
  found(number: number, count: number): Uint8Array;
  /** Adds the results of part `number` of `count`, which another worker's `found` returned. */
  take(number: number, count: number, found: Uint8Array): void;
  /** Returns tessera.diff/1: with values after the last step, and without them before the first. */
  result(): DiffDocument;
  /** Returns the text of `result`. With `format`, returns the differences in that form, like `tessera diff --format`, which needs
   *  `Tessera.prepare`. */
  document(pathA?: string, pathB?: string, options?: { format?: ReportFormat | undefined }): string;
  close(): void;
}
