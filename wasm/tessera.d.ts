import type {
  ConvertDocument, DiffDocument, FindingsDocument, FqnDocument, InspectDocument, LayoutDocument, PlanDocument,
} from "./documents.js";
export type * from "./documents.js";

/** A file of a checkpoint. `read` fills `into` from `offset`, synchronously, or throws. Where it returns a number, as fs.readSync does,
 *  fewer bytes than asked for are an error. */
export interface SourceFile {
  /** Path below the checkpoint's folder, with "/" between components. */
  readonly name: string;
  readonly size: number;
  /** When it was written: seconds since 1970 with nine decimals. A plan states it. */
  readonly modified?: string | undefined;
  /** Each read is a request. Where `prepare` was called before `open`, what stands before each record of a torch.save file is read and
   *  checked with the record's first values, not when the file is opened: a request less for each record. */
  readonly remote?: boolean | undefined;
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
  /** Loads the second file of the module, once. What needs it: documents with options (`inspect`, `layout`, `validate`, `plan`,
   *  `manifest`, `verify`), `canonicalize`, `twins`, `optimizer`, `convert`, `reshard`, digests, items compressed by zstd, `map`
   *  and `shards`, and opening what training frameworks write (DeepSpeed, Megatron-Core, accelerate, Lightning, Trainer, verl,
   *  ranks with plain tensors) or a pickle that names unknown classes: `open` of such a checkpoint is refused until then.
   *  By default it is fetched from next to this file; give its address, its bytes or a compiled module where it is elsewhere.
   *  The Node entry's `load` has done this. */
  prepare(source?: string | URL | Response | BufferSource | WebAssembly.Module): Promise<void>;
  /** Whether the second file is loaded. */
  readonly isPrepared: boolean;
  /** Opens what the files make together. `primary`: the one that was named, where it stands for a set (an index file).
   *  An interrupted save opens, too: its findings say what is missing, and what needs the names or the tensors is refused.
   *  Ranks' raw optimizer states open whatever their files are called; what is not one checkpoint refuses everything but
   *  `optimizer("unshard", …)`, which learns the order of the ranks from `flatParams.files`. */
  open(files: readonly SourceFile[], options?: OpenOptions): Checkpoint;
  /** The names of the built-in maps: what `tessera map list` prints. Needs `prepare`. */
  mapList(): string[];
  /** The text of a built-in map: what `tessera map show NAME` prints. Needs `prepare`. */
  mapShow(name: string): string;
  /** The canonical names of a model's parameters, buffers and extra states, or of the given raw names: what
   *  `tessera fqn MODULES.json [NAME…]` prints. Needs `prepare`. */
  canonicalize(modules: DocumentOrText, names?: readonly string[]): FqnDocument;
  /** Cause and cure of what a rule ("layout/hole") finds; empty for unknown ids. */
  ruleHelp(rule: string): string;
  /** Of source files. */
  readonly bytesRead: number;
  /** Of the module. */
  readonly memoryBytes: number;
  /** Handles that are not closed: for tests. */
  readonly openCount: number;
  /** Called after each read (of 4 MiB at most), also in the middle of `open` and other long calls. */
  set onRead(listener: ((bytesRead: number, file: string) => void) | undefined);
}

/** Which checkpoint the files stand for, where that is not all of them. */
export interface OpenOptions {
  /** The file that was named, where it stands for a set (an index file). */
  readonly primary?: string | undefined;
  /** Only this part of a checkpoint that is made of parts (`inspect` lists them), without its prefix. */
  readonly part?: string | undefined;
  /** This checkpoint of a directory that holds several: "latest", a name or path below it, or the number in its name. */
  readonly step?: string | undefined;
  /** How the plain tensors of several ranks form whole ones: tessera.shards/1, or "meta-llama", "megatron-gpt" or "vllm".
   *  Needs `prepare`. `convert({ to: "ranks" })` cuts by it, too. */
  readonly shards?: DocumentOrText | undefined;
}

/** A JSON document, as its text or as the object that it parses to. An object loses integers above 2^53 and the order of
 *  number-like keys. */
export type DocumentOrText = string | object;

/** A copy of a tensor's elements, row-major. */
export interface TensorValues {
  readonly dtype: string;
  /** Of the tensor or slice; a dimension that the slice takes one index of is gone. */
  readonly shape: readonly number[];
  /** float16, bfloat16 and complex32 are in a Uint16Array, bool, float8 and smaller types in a Uint8Array, complex64 and
   *  complex128 as pairs of real and imaginary part, 64-bit integers as bigints. */
  readonly data: Float64Array | Float32Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array | Int16Array | Uint16Array | Int8Array | Uint8Array;
}

export type OptimizerAction = "flatten" | "unflatten" | "to-fqn" | "to-id" | "unshard" | "shard";

/** The options of `tessera optim`. */
export interface OptimizerOptions extends Expansion {
  /** Of the buffers: a number of bytes, or a text such as "64MiB". */
  readonly maxMem?: string | number | undefined;
  /** tessera.modules/1: names, frozen parameters, groups. "to-fqn" needs it. */
  readonly modules?: DocumentOrText | undefined;
  /** tessera.flat-params/1: FSDP1's flat parameters. "unshard" and "shard" need it. */
  readonly flatParams?: DocumentOrText | undefined;
  /** "shard": the number of ranks; otherwise the document's. */
  readonly worldSize?: number | undefined;
  /** The member that is the optimizer, where there are several. */
  readonly at?: string | undefined;
  /** "unshard": DTensors cut by rows, one file per rank. */
  readonly sharded?: boolean | undefined;
  /** "unshard": whose state to take where ranks differ in what FSDP does not shard. */
  readonly rank?: number | undefined;
}

/** Which entries count. A name that `exclude` matches is left out, whatever `include` says. */
export interface Names {
  readonly include?: readonly string[] | undefined;
  readonly exclude?: readonly string[] | undefined;
}

export interface Expansion {
  /** Work on tensors that repeat stored elements very often. */
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

/** What the output is. */
export interface OutputOptions {
  readonly to?: "safetensors" | "torch" | "dcp" | "megatron-dist" | undefined;
  readonly objects?: "keep" | "drop" | "sidecar" | "refuse" | undefined;
  /** What floating-point tensors become. */
  readonly dtype?: string | undefined;
  readonly rawCast?: boolean | undefined;
}

export interface WritingOptions extends OutputOptions, Selection {}

export interface RunOptions {
    /** torch, dcp: the version of PyTorch that loads the output, "2.3" to "2.15"; by default 2.4, or the oldest that can. */
    readonly forTorch?: string|undefined;
    /** Of the buffers: a number of bytes, or a text such as "64MiB". */
    readonly maxMem?: string|number|undefined;
    readonly ignoreCrc?: boolean|undefined;
    readonly signal?: AbortSignal|undefined;
    /** Bytes of tensors, after each step. */
    readonly onProgress?: ((progress: {readonly done: number; readonly total : number}) => void)|undefined;
}

/** Another model's names and layouts. */
export interface MapOptions {
  /** tessera.map/1, or the name of a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** Apply the map backwards. */
  readonly inverse?: boolean | undefined;
}

/** What an output, a manifest or a comparison is made from. */
export interface SourceOptions extends MapOptions {
  /** Multiply float8, int8, MXFP4 and NVFP4 numbers by their scales, to `dtype` where the call takes one (by default that of config.json, or bfloat16). */
  readonly dequantize?: boolean | undefined;
}

/** With a map, the plan has the map's document in it, and `tessera exec` reads the source through it. */
export interface PlanOptions extends TargetOptions, OutputOptions, Names, MapOptions {
  readonly items?: boolean | undefined;
  /** tessera.storage/1: the servers of a parallel file system, and where files begin. */
  readonly storage?: DocumentOrText | undefined;
}

/** Float8 weights for inference, as `tessera convert --quantize` writes them. */
export interface QuantizeOptions {
  /** Linear weights become float8_e4m3fn in blocks of 128 x 128, each with NAME.weight_scale_inv. */
  readonly quantize?: "fp8-block" | undefined;
  /** With `quantize`: weights that stay as they are. */
  readonly noQuantize?: readonly string[] | undefined;
}

/** Which differences count. */
export interface PolicyOptions {
  /** "ID=LEVEL". */
  readonly rule?: readonly string[] | undefined;
  /** An earlier result, whose findings or differences are left out. */
  readonly baseline?: DocumentOrText | undefined;
}

export interface DiffOptions extends SourceOptions, PolicyOptions, Expansion {
  readonly layout?: boolean | undefined;
  readonly canonical?: boolean | undefined;
  readonly atol?: number | undefined;
  readonly rtol?: number | undefined;
}

export interface ConvertOptions extends Omit<WritingOptions, "to">, RunOptions, SourceOptions, QuantizeOptions {
  /** Nothing is written that would not load into this: a checkpoint, names, or a document (module tree, layout, index). */
  readonly against?: Checkpoint | readonly string[] | DocumentOrText | undefined;
  /** The directory of a LoRA adapter of PEFT, opened as a checkpoint, which is folded in. */
  readonly lora?: Checkpoint | undefined;
  /** "ranks": one file per rank, cut by the map of shards that the checkpoint was opened with. */
  readonly to: "safetensors" | "torch" | "dcp" | "megatron-dist" | "deepspeed-universal" | "ranks";
  /** "ranks": how many, those of all pipeline stages together. By default as many as were joined. */
  readonly worldSize?: number | undefined;
  /** "FROM=TO": a literal prefix, or one "*" on each side. */
  readonly rename?: readonly string[] | undefined;
  /** safetensors: a number of bytes, or a text such as "5GB". */
  readonly maxShardSize?: string | number | undefined;
}

export interface ReshardOptions extends TargetOptions, WritingOptions, RunOptions, SourceOptions, QuantizeOptions {}

export interface ValidateOptions extends PolicyOptions {
  /** Reads every byte. */
  readonly deep?: boolean | undefined;
  readonly layout?: DocumentOrText | undefined;
  /** Whether it would load into this: a checkpoint, names, or a document (module tree, layout, index). */
  readonly against?: Checkpoint | readonly string[] | DocumentOrText | undefined;
  /** Words with commas: missing, extra, dtype, shape, chunks, value. */
  readonly allow?: string | undefined;
  /** With `against`: only names with this prefix count, without it. */
  readonly prefix?: string | undefined;
}

/** Takes the files of a conversion. Methods may return promises, which are awaited between steps of about 16 MiB; `bytes` is valid
 *  during the call only. A single file has the name "", and what is written next to it begins with a dot. */
export interface Sink {
  create(name: string, size: number): void | Promise<void>;
  write(name: string, offset: number, bytes: Uint8Array): void | Promise<void>;
  finish(name: string): void | Promise<void>;
  /** After every file is finished. */
  done?(): void | Promise<void>;
  /** After an error or an abort; nothing else is called then. */
  abort?(error: unknown): void | Promise<void>;
}

/** tessera.convert/1 without what has a meaning on the command line only. */
export type ConversionResult = Omit<ConvertDocument, "dry_run" | "map" | "dropped" | "published" | "work"> & { readonly warnings: readonly string[] };

export type Level = "note" | "warning" | "error";
export type EntryKind = "tensor" | "object" | "opaque";

export class Checkpoint {
  private constructor();
  /** A JSON document: tessera.inspect/1, findings/1, layout/1 as the command line has them, overview/1; and those about
   *  one entry: "entry" (inspect/1 of it alone) and preview/1. "findings-deep" reads every byte; "sarif" is SARIF
   *  2.1.0 of what was found until then; "optimizer" says which state each parameter has (tessera.optimizer/1). */
  document(kind: "inspect" | "findings" | "findings-deep" | "sarif" | "layout" | "overview" | "optimizer", options?: { path?: string }): string;
  document(kind: "entry" | "preview", options: { entry: number; path?: string }): string;
  /** The text of `plan`, with a path. Needs `Tessera.prepare`. */
  document(kind: "plan", options: PlanOptions & { path?: string | undefined }): string;
  /** What `tessera inspect` lists. */
  inspect(options?: Selection & Hashing & { stats?: boolean | undefined }): InspectDocument;
  /** What `tessera layout` writes; `chunks: false` leaves the chunks out. */
  layout(options?: Selection & Hashing & { chunks?: boolean | undefined }): LayoutDocument;
  /** What `tessera validate` finds. */
  validate(options?: ValidateOptions): FindingsDocument;
  /** What resharding would read, hold and send: `tessera plan`. */
  plan(options: PlanOptions): PlanDocument;
  /** Checksums of all values that do not depend on sharding and form: `tessera manifest`. */
  manifest(options?: Selection & Hashing & SourceOptions): LayoutDocument;
  /** All values against a manifest: `tessera verify`. */
  verify(manifest: DocumentOrText, options?: SourceOptions & Expansion & { allow?: string | undefined }): FindingsDocument;
  /** Writes the checkpoint in another form: `tessera convert`. Needs `Tessera.prepare`. */
  convert(options: ConvertOptions, sink: Sink): Promise<ConversionResult>;
  /** Writes what each rank of a mesh holds: `tessera reshard`. Needs `Tessera.prepare`. */
  reshard(options: ReshardOptions, sink: Sink): Promise<ConversionResult>;
  /** The number of the entry with this name. */
  find(fqn: string): number | undefined;
  /** The values of a tensor, or of `slice`: the text between the brackets of `tessera get` ("0:2,:,-1"). */
  read(fqn: string, slice?: string, options?: Expansion): TensorValues;
  /** Of all entries, or of those that are no tensors. */
  outline(options?: { objectsOnly?: boolean }): Outline;
  /** Statistics and histogram of a tensor, in steps. */
  tally(entry: number): Tally;
  /** Looks for tensors that hold equal bytes, in steps. */
  twins(): Twins;
  /** What differs from `other`. `layout` counts other chunks, too; `canonical` matches names without wrapper prefixes;
   *  values may differ by `atol` plus `rtol` times other's. A map is applied to this one. With `rule` or `baseline` the result has
   *  only what they leave. */
  diff(other: Checkpoint, options?: DiffOptions): Diff;
  /** The canonical names of the keys, judged by their text alone: what `tessera fqn --checkpoint PATH` prints. `prefix`:
   *  only of the keys with this prefix, without it. */
  canonicalize(options?: MapOptions & { prefix?: string | undefined }): FqnDocument;
  /** What `tessera optim WHAT` would write, as a checkpoint. Its tensors stay in this one until they are read; the places
   *  of its chunks are not those of a written file. Needs `Tessera.prepare`. */
  optimizer(what: OptimizerAction, options?: OptimizerOptions): Checkpoint;
  /** What the command line warns of when it writes what `optimizer` made. */
  readonly warnings: readonly string[];
  /** Throws what every listing throws where the files are not one checkpoint (see `open`). */
  check(): void;
  /** Frees it and everything made from it, checkpoints included. */
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
  /** Lets several workers, each with its own Tessera, compare: the steps that follow compare part `number` of `count`. */
  part(number: number, count: number): void;
  /** What the steps found of a part; `take` in another worker's comparison of the same files takes it. */
  found(number: number, count: number): Uint8Array;
  take(number: number, count: number, found: Uint8Array): void;
  /** tessera.diff/1; with values when all steps were done, without any before the first. */
  result(): DiffDocument;
  /** Its text. */
  document(pathA?: string, pathB?: string): string;
  close(): void;
}
