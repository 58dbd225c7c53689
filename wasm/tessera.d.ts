import type {
  ConvertDocument, DiffDocument, FindingsDocument, FqnDocument, InspectDocument, LayoutDocument, ManifestDocument, PlanDocument,
} from "./documents.js";
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

/** Selects the checkpoint, if it is not made of all files. */
export interface OpenOptions {
  /** The file that the user named, if it represents a set of files (an index). */
  readonly primary?: string | undefined;
  /** Opens only this part of a checkpoint that is made of parts (`inspect` lists them), with its prefix removed from
   *  names. */
  readonly part?: string | undefined;
  /** Opens this checkpoint of a directory that contains several: "latest", a name or path below it, or the number in its
   *  name. */
  readonly step?: string | undefined;
  /** How the plain tensors of several ranks are joined: tessera.shards/1, or "meta-llama", "megatron-gpt" or "vllm". Needs
   *  `prepare`. `convert({ to: "ranks" })` uses it to cut tensors. */
  readonly shards?: DocumentOrText | undefined;
}

/** A JSON document, as text or as the parsed object. An object loses integers above 2^53 and the order of number-like
 *  keys. */
export type DocumentOrText = string | object;

/** A copy of a tensor's elements, in row-major order. */
export interface TensorValues {
  readonly dtype: string;
  /** The shape of the tensor or slice. Dimensions in which the slice selects a single index are removed. */
  readonly shape: readonly number[];
  /** float16, bfloat16 and complex32 are in a Uint16Array; bool, float8 and smaller types in a Uint8Array. complex64 and
   *  complex128 are pairs of real and imaginary parts. 64-bit integers are bigints. */
  readonly data: Float64Array | Float32Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array | Int16Array | Uint16Array | Int8Array | Uint8Array;
}

export type OptimizerAction = "flatten" | "unflatten" | "to-fqn" | "to-id" | "unshard" | "shard";

/** The options of `tessera optim`. */
export interface OptimizerOptions extends Expansion {
  /** The size of the buffers: a number of bytes, or a text such as "64MiB". */
  readonly maxMem?: string | number | undefined;
  /** tessera.modules/1: names, frozen parameters and groups. Required by "to-fqn". */
  readonly modules?: DocumentOrText | undefined;
  /** tessera.flat-params/1: FSDP1's flat parameters. Required by "unshard" and "shard". */
  readonly flatParams?: DocumentOrText | undefined;
  /** "shard": the number of ranks; by default that of the document. */
  readonly worldSize?: number | undefined;
  /** The member that is the optimizer, if there are several. */
  readonly at?: string | undefined;
  /** "unshard": writes DTensors that are sharded by rows, one file per rank. */
  readonly sharded?: boolean | undefined;
  /** "unshard": the rank whose state is used where ranks differ in what FSDP does not shard. */
  readonly rank?: number | undefined;
}

/** Selects entries. A name that `exclude` matches is left out, whatever `include` states. */
export interface Names {
  readonly include?: readonly string[] | undefined;
  readonly exclude?: readonly string[] | undefined;
}

export interface Expansion {
  /** Accept tensors that repeat stored elements very often. */
  readonly allowExpansion?: boolean | undefined;
}

export interface Selection extends Names, Expansion {}

export interface Hashing { readonly hash?: "sha256" | "xxh3" | undefined }

/** tessera.target/1, or a mesh ("dp=4,tp=2") with its placements ("shard(0),replicate"). */
export interface TargetOptions {
  readonly target?: DocumentOrText | undefined;
  readonly mesh?: string | undefined;
  readonly placements?: string | undefined;
}

/** The form of the output. */
export interface OutputOptions {
  /** By default the format of the source. */
  readonly to?: "safetensors" | "torch" | "dcp" | "megatron-dist" | undefined;
  /** How values that are not tensors are treated. By default torch and dcp keep them, and safetensors refuses them; "sidecar"
   *  writes them as JSON. */
  readonly objects?: "keep" | "drop" | "sidecar" | "refuse" | undefined;
  /** The dtype to which floating-point tensors are cast. */
  readonly dtype?: string | undefined;
  /** Lets `dtype` cast quantized numbers and their scales as stored, without applying the scales. */
  readonly rawCast?: boolean | undefined;
}

export interface WritingOptions extends OutputOptions, Selection {}

/** Options for running a conversion. */
export interface RunOptions {
  /** torch, dcp: the version of PyTorch that must be able to load the output, "2.3" to "2.15". By default 2.4, or the
   *  oldest that can. */
  readonly forTorch?: string | undefined;
  /** The size of the buffers: a number of bytes, or a text such as "64MiB". */
  readonly maxMem?: string | number | undefined;
  /** Accept tensors whose bytes do not match the source's CRC-32. */
  readonly ignoreCrc?: boolean | undefined;
  /** Stops the conversion after the current step. The call then rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** Called after each step, with the numbers of bytes of tensors. */
  readonly onProgress?: ((progress: { readonly done: number; readonly total: number }) => void) | undefined;
}

/** The names and layouts of another model. */
export interface MapOptions {
  /** tessera.map/1, or the name of a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** Applies the map backwards. */
  readonly inverse?: boolean | undefined;
}

/** Options for the source of an output, a manifest or a comparison. */
export interface SourceOptions extends MapOptions {
  /** Multiplies float8, int8, MXFP4 and NVFP4 numbers by their scales. The result has the dtype `dtype`, if the call accepts
   *  it, or that of config.json, or bfloat16. */
  readonly dequantize?: boolean | undefined;
}

/** With a map, the plan contains the map's document, and `tessera exec` applies it to the source. */
export interface PlanOptions extends TargetOptions, OutputOptions, Names, MapOptions {
  /** Adds every read of every rank. */
  readonly items?: boolean | undefined;
  /** tessera.storage/1: the servers of a parallel file system, and on which of them files begin. */
  readonly storage?: DocumentOrText | undefined;
}

/** Float8 weights for inference, as `tessera convert --quantize` writes them. */
export interface QuantizeOptions {
  /** Quantizes linear weights to float8_e4m3fn in blocks of 128 x 128, each with NAME.weight_scale_inv. */
  readonly quantize?: "fp8-block" | undefined;
  /** With `quantize`: weights that are kept as they are. */
  readonly noQuantize?: readonly string[] | undefined;
}

/** Selects the findings or differences that count. */
export interface PolicyOptions {
  /** "ID=LEVEL". */
  readonly rule?: readonly string[] | undefined;
  /** An earlier result, whose findings or differences are left out. */
  readonly baseline?: DocumentOrText | undefined;
}

/** Forms of findings, as `--format` of the command line has them: tessera.findings/1, SARIF 2.1.0, JUnit XML, GitHub's workflow
 *  commands, and GitLab's Code Quality report. */
export type ReportFormat = "json" | "sarif" | "junit" | "github" | "gitlab";

export interface ComparingOptions extends PolicyOptions {
  /** Reports different chunks as a difference, too. */
  readonly layout?: boolean | undefined;
  /** Matches names without wrapper prefixes. */
  readonly canonical?: boolean | undefined;
  /** Lets values differ by this much. */
  readonly atol?: number | undefined;
  /** Lets values differ by this many times the other checkpoint's value. */
  readonly rtol?: number | undefined;
}

export interface DiffOptions extends ComparingOptions, SourceOptions, Expansion {}

export interface ConvertOptions extends Omit<WritingOptions, "to">, RunOptions, SourceOptions, QuantizeOptions {
  /** Throws before anything is written if the result would not load into this: a checkpoint, names, or a document (module
   *  tree, layout, index). */
  readonly against?: Checkpoint | readonly string[] | DocumentOrText | undefined;
  /** The directory of a PEFT LoRA adapter, opened as a checkpoint, which is folded into the base. */
  readonly lora?: Checkpoint | undefined;
  /** "ranks" writes one file per rank, cut by the map of shards that the checkpoint was opened with. */
  readonly to: "safetensors" | "torch" | "dcp" | "megatron-dist" | "deepspeed-universal" | "ranks";
  /** "ranks": the number of ranks of all pipeline stages together. By default as many as were joined. */
  readonly worldSize?: number | undefined;
  /** "FROM=TO": a literal prefix, or a pattern with one "*" on each side. */
  readonly rename?: readonly string[] | undefined;
  /** safetensors: the largest size of a file: a number of bytes, or a text such as "5GB". */
  readonly maxShardSize?: string | number | undefined;
}

export interface ReshardOptions extends TargetOptions, WritingOptions, RunOptions, SourceOptions, QuantizeOptions {}

export interface ValidateOptions extends PolicyOptions {
  /** Read all data. */
  readonly deep?: boolean | undefined;
  /** tessera.layout/1: check against this. With `deep`, its digests are checked, too. */
  readonly layout?: DocumentOrText | undefined;
  /** Check whether the checkpoint would load into this: a checkpoint, names, or a document (module tree, layout, index). */
  readonly against?: Checkpoint | readonly string[] | DocumentOrText | undefined;
  /** Words separated by commas: missing, extra, dtype, shape, chunks, value. */
  readonly allow?: string | undefined;
  /** With `against`: use only names with this prefix, and strip it. */
  readonly prefix?: string | undefined;
}

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
  inspect(options?: Selection & Hashing & { stats?: boolean | undefined }): InspectDocument;
  /** Returns the layout, like `tessera layout`; `chunks: false` leaves the chunks out. */
  layout(options?: Selection & Hashing & { chunks?: boolean | undefined }): LayoutDocument;
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
  manifest(options?: Selection & Hashing & SourceOptions): ManifestDocument;
  /** Compares all values with a manifest, like `tessera verify`. */
  verify(manifest: DocumentOrText, options?: SourceOptions & Expansion & { allow?: string | undefined }): FindingsDocument;
  /** Writes the checkpoint in another format, like `tessera convert`. Needs `Tessera.prepare`. */
  convert(options: ConvertOptions, sink: Sink): Promise<ConversionResult>;
  /** Writes the shards of each rank of a mesh, like `tessera reshard`. Needs `Tessera.prepare`. */
  reshard(options: ReshardOptions, sink: Sink): Promise<ConversionResult>;
  /** Returns the number of the entry with this name. */
  find(fqn: string): number | undefined;
  /** Reads the values of a tensor, or of `slice`: the text between the brackets of `tessera get` ("0:2,:,-1"). */
  read(fqn: string, slice?: string, options?: Expansion): TensorValues;
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
  canonicalize(options?: MapOptions & { prefix?: string | undefined }): FqnDocument;
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
  canonicalize(options?: { prefix?: string | undefined }): FqnDocument;
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
