/** The messages between the page and its worker. */
import type { ConversionResult, ConvertOptions, FqnDocument, Level, MapOptions, Names, OptimizerOptions, ReportFormat, ReshardOptions, Row as ModuleRow, RunOptions } from "../../wasm/tessera.js";
import type { Weights } from "./convert_form";
import type { Elements } from "./elements";
import type { Sort, Totals } from "./entry_tree";
import type { FileMetadata } from "./file_metadata";
import type { Rename } from "./renames";
import type { Amounts } from "./split";

export type { FqnDocument, Level } from "../../wasm/tessera.js";

export type Side = "a" | "b";
/** The entries of the checkpoint, or those of both checkpoints that are compared. */
export type OutlineName = "all" | "compare";

/** "match": dtype and shape are equal, and values were not compared. */
export type Mark = "same" | "match" | "changed" | "only-a" | "only-b" | "renamed";
export interface Compared {
  readonly mark: Mark;
  readonly what: readonly string[];
  readonly a: DiffSide | undefined;
  readonly b: DiffSide | undefined;
  readonly differing?: number;
  readonly maxAbs?: Real;
  /** Once the pair was measured. */
  readonly measured?: Measured;
  /** Its name in B. */
  readonly other?: string;
}

interface More {
  readonly compared?: Compared;
  /** Only for a group: the number of entries that differ, of itself and those below it. */
  readonly differing?: number;
  /** Its numbers include only what the filter keeps. */
  readonly isTotal?: boolean;
  /** The name of the last row that a folded one stands for. */
  readonly last?: string | undefined;
}
/** How a tensor is divided: in words, and its first chunks as boxes (left, top, width, height) between 0 and 1. */
export interface Sharding { readonly text: string; readonly boxes: readonly (readonly number[])[] }
export type Row = ModuleRow & More & { readonly chunks?: number; readonly sharding?: Sharding; readonly value?: string };
export type Act = "open" | "close" | "fold" | "unfold" | "open-all" | "close-all";

/** A dropped file, or one at a URL. */
export type Source =
  | { readonly name: string; readonly size: number; readonly file: File }
  | { readonly name: string; readonly size: number; readonly url: string };

export interface Opening {
  /** Its name on the page. */
  readonly title: string;
  readonly files: readonly Source[];
  readonly primary?: string;
  /** The only part to open, of a checkpoint that is made of parts. */
  readonly part?: string;
  /** The map that joins the plain tensors of several ranks: its name, or a tessera.shards/1 document. */
  readonly shards?: string;
  /** Whether only what is whole of a damaged file is opened. */
  readonly salvage?: boolean;
  /** The URL that it was opened from, for links to it. */
  readonly url?: string;
  /** That URL as the page's address had it. */
  readonly link?: string;
  /** The number under which the browser keeps what it was opened from. */
  readonly recent?: number;
}

export interface FileUse {
  readonly name: string;
  readonly size: number;
  readonly used: number;
  readonly chunks: number;
  readonly taken: readonly (readonly [number, number])[];
  /** The file was not opened. Its size is the one that the metadata implies. */
  readonly absent?: boolean;
}

export interface Overview {
  readonly format: string;
  readonly tensors: number;
  readonly objects: number;
  readonly opaque: number;
  /** Of the tensors and opaque entries: those that differ from rank to rank. */
  readonly per_rank: number;
  readonly elements: number;
  readonly bytes: number;
  readonly missing_chunks: number;
  /** The data files that were not opened. */
  readonly absent: readonly string[];
  readonly dtypes: readonly { readonly name: string; readonly bytes: number }[];
  readonly files: readonly FileUse[];
}

export interface Finding {
  readonly rule: string;
  readonly level: Level;
  readonly message: string;
  readonly file?: string;
  readonly byte_offset?: number;
  readonly fqn?: string;
}

/** tessera.findings/1, parsed, and its text for export. */
export interface Findings {
  readonly list: readonly Finding[];
  /** By rule: the cause and how to fix it. */
  readonly help: Readonly<Record<string, string>>;
  /** By rule: the number of findings that were not listed. */
  readonly unlisted: Readonly<Record<string, number>>;
  readonly text: string;
}

export interface Chunk {
  readonly offsets: readonly number[];
  readonly sizes: readonly number[];
  readonly file: string | null;
  readonly byte_offset: number;
  readonly byte_length: number;
}

interface Named { readonly fqn: string }
export interface TensorDetail extends Named {
  readonly kind: "tensor";
  readonly per_rank?: undefined;
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: number;
  readonly parameter?: boolean;
  readonly requires_grad?: boolean;
  readonly mesh?: string;
  readonly placements?: string;
  readonly shares_storage_with?: readonly string[];
  readonly chunks: readonly Chunk[];
  readonly replicas?: readonly Chunk[];
}
export interface ObjectDetail extends Named {
  readonly kind: "object" | "opaque";
  readonly per_rank?: undefined;
  readonly type: string;
  /** Its value, as Python writes it. Added by the page. */
  readonly text?: string | undefined;
  readonly dtype?: string;
  readonly shape?: readonly number[];
  readonly inner?: readonly { readonly name: string; readonly dtype: string; readonly shape?: readonly number[] }[];
  readonly mesh?: string;
  readonly placements?: string;
  readonly chunks?: readonly Chunk[];
}
/** A tensor that differs between ranks. Shapes and dtypes are in the order of ranks; null: that rank has none. */
export interface PerRankDetail extends Named {
  readonly kind: "tensor" | "opaque";
  readonly per_rank: true;
  readonly dtype?: string;
  readonly dtypes?: readonly (string | null)[];
  readonly shapes: readonly (readonly number[] | null)[];
  readonly bytes: number;
  readonly chunks: readonly Chunk[];
}
export type Detail = TensorDetail | ObjectDetail | PerRankDetail;

/** Whether the entry is one tensor, with a shape and values of its own. */
export const isDense = (detail: Detail | undefined): detail is TensorDetail => detail?.kind === "tensor" && !detail.per_rank;

export type Real = number | "nan" | "inf" | "-inf";
export interface Tally {
  readonly byte_done: number;
  readonly byte_total: number;
  readonly count: number;
  readonly min: Real;
  readonly max: Real;
  readonly mean: Real;
  readonly std: Real;
  readonly nan: number;
  readonly inf: number;
  readonly zero: number;
  readonly histogram: readonly number[];
}

export interface DiffSide { readonly kind: string; readonly dtype?: string; readonly shape?: readonly number[]; readonly repr?: string }
export interface Diff {
  readonly same: boolean;
  readonly added: readonly string[];
  readonly removed: readonly string[];
  readonly changed: readonly {
    readonly fqn: string;
    /** Its name in B, if it has another one there. */
    readonly fqn_b?: string;
    readonly what: readonly string[];
    readonly a: DiffSide;
    readonly b: DiffSide;
    readonly differing?: number;
    readonly max_abs?: Real;
  }[];
  /** Those are in `added` and `removed`, too. `differing` is added by the page: the number of elements with different values, if
   *  values were compared. */
  readonly renamed: readonly { readonly a: string; readonly b: string; readonly why: string; readonly differing?: number }[];
  /** Pairs of `__metadata__` in safetensors files. */
  readonly metadata: {
    readonly added: readonly { readonly key: string; readonly value: string }[];
    readonly removed: readonly { readonly key: string; readonly value: string }[];
    readonly changed: readonly { readonly key: string; readonly a: string; readonly b: string }[];
  };
  readonly summary: { readonly same: number; readonly changed: number; readonly values_compared: boolean };
}

export interface PairOfNames { readonly fqn: string; readonly other: string }
/** A pair of tensors as a whole: how many values are NaN or infinite, in A and in B; the norm of A − B divided by the norm of B, and the
 *  cosine of A and B, both of the elements that are finite in both. NaN where a norm is 0; undefined for dtypes that are not numbers. */
export interface Measured {
  readonly fqn: string;
  readonly a: { readonly nan: number; readonly inf: number };
  readonly b: { readonly nan: number; readonly inf: number };
  readonly relative?: number;
  readonly cosine?: number;
}
export const isFinitePair = ({ a, b }: Measured): boolean => a.nan + a.inf + b.nan + b.inf === 0;
/** Of each tensor of numbers: its finite values, and the number of the others. */
export type Statistics = readonly { readonly fqn: string; readonly count: number; readonly mean: number; readonly std: number; readonly bad: number }[];

export type PlanRequest = { readonly target: string } & Names & MapOptions;

/** The members of tessera.plan/1 that the page shows. */
export interface Plan {
  readonly totals: {
    readonly tensors: number;
    readonly ranks: number;
    readonly reads: number;
    readonly bytes: number;
    readonly held_max: number;
    readonly peak_memory: number;
    readonly imbalance: number;
    readonly read_amplification: number;
  };
  readonly ranks: readonly { readonly held: number; readonly read: number; readonly received: number }[];
  readonly files: readonly { readonly file: string; readonly reads: number; readonly bytes: number }[];
}

interface StateEntry extends Named { readonly dtype?: string; readonly shape?: readonly number[] }
export interface ParameterStates {
  readonly parameter: string;
  readonly in_group: boolean;
  readonly values: StateEntry | null;
  /** One per name of the optimizer. */
  readonly states: readonly (StateEntry | null)[];
}
export interface Optimizer {
  readonly optimizer: string;
  readonly names: readonly string[];
  readonly parameters: readonly ParameterStates[];
  /** False if it was recognized only by its names. */
  readonly hasGroups: boolean;
  readonly groups: readonly ParamGroup[];
}

/** Param groups, or parameters, with the same hyper-parameters. */
export interface ParamGroup { readonly members: readonly string[]; readonly values: Readonly<Record<string, string>> }

/** What the overview says of a checkpoint, judged by names. */
export interface About {
  readonly largest: readonly { readonly fqn: string; readonly bytes: number }[];
  /** The top modules of the model, without optimizer state. */
  readonly modules: readonly { readonly name: string; readonly elements: number; readonly isGroup: boolean }[];
  readonly layers?: { readonly name: string; readonly count: number };
  /** Objects such as "step", and the learning rates of param groups, as Python writes them. */
  readonly steps: readonly { readonly name: string; readonly value: string }[];
  readonly rates: readonly string[];
  readonly mesh?: string;
}

/** Tensors whose values should be looked at. */
export interface Scan {
  readonly suspects: readonly { readonly fqn: string; readonly nan: number; readonly inf: number; readonly is: "all zero" | "constant" | undefined }[];
  readonly scanned: number;
  /** Tensors whose values could not be judged, and why. */
  readonly skipped: readonly { readonly fqn: string; readonly why: string }[];
}

/** A conversion or a reshard, with the module's options. */
export type Writing =
  | { readonly what: "convert"; readonly options: Omit<ConvertOptions, keyof RunOptions> }
  | { readonly what: "reshard"; readonly options: Omit<ReshardOptions, keyof RunOptions> }
  | { readonly what: "optimizer"; readonly action: "flatten" | "unflatten" | "to-fqn" | "to-id"; readonly options: OptimizerOptions };

/** The first entries of an optimizer's state in another form, and their number. */
export interface OptimizerPreview {
  readonly entries: readonly { readonly fqn: string; readonly dtype?: string; readonly shape?: readonly number[]; readonly text?: string }[];
  readonly count: number;
  readonly warnings: readonly string[];
}

/** What would be written. The marker of a checkpoint (.metadata, an index) is created at the end and is not listed. */
export interface WritingPreview {
  /** A single file has the name "", and the name of a file next to it begins with a dot. A size of 0 is not yet known. */
  readonly files: readonly { readonly name: string; readonly size: number }[];
  /** Bytes of tensors. */
  readonly bytes: number;
}

/** Where to write: a new directory, a file, or a directory of the origin whose files are then downloaded. The name of a
 *  single file follows `base`. */
export type Place =
  | { readonly kind: "directory"; readonly directory: FileSystemDirectoryHandle; readonly base?: string }
  | { readonly kind: "file"; readonly file: FileSystemFileHandle }
  | { readonly kind: "download"; readonly directory: FileSystemDirectoryHandle; readonly name: string; readonly base?: string };

/** `files` are all files that were written, whatever they hold. */
export interface Written { readonly result: ConversionResult; readonly files: readonly { readonly name: string; readonly size: number }[]; readonly download?: { readonly name: string; readonly blob: Blob } | undefined }

/** What a checkpoint is to be loaded into: the text of a JSON document, or another checkpoint. */
export type Expectation = { readonly text: string } | { readonly opening: Opening };
export interface LoadFindings {
  readonly missing: readonly Finding[];
  readonly unexpected: readonly Finding[];
  /** Entries with another dtype, shape or kind. */
  readonly mismatched: readonly Finding[];
  /** The number of findings that were not listed. */
  readonly unlisted: number;
  readonly renames: readonly Rename[];
}

/** A part of a checkpoint that several files make up. */
export interface Part { readonly name: string; readonly format: string; readonly files: number; readonly tensors: number; readonly objects: number }

/** Tensors with equal bytes. `stored`: how often they are in the files; tied ones are there once. Added by the page. */
export interface Twins { readonly groups: readonly { readonly bytes: number; readonly fqns: readonly string[]; readonly stored: number }[] }

export interface Opened {
  readonly overview: Overview;
  readonly findings: Findings;
  /** There is no data file: names, shapes and shards are known, but not values. */
  readonly isMetadataOnly: boolean;
  readonly amounts: Amounts;
  readonly rows: number;
}

/** The map that is applied to A; no members: none. Numbers and names of entries are then those that the map makes. */
interface OfA { readonly map: MapOptions }
/** Without a slice, all of the tensor. */
export interface SliceOf { readonly fqn: string; readonly slice: string | undefined }
/** |A − B| may be `atol` + `rtol` × |B|. Both 0: values are compared bit by bit. */
export interface Tolerance { readonly atol: number; readonly rtol: number }
export interface DiffOptions extends OfA, Tolerance { readonly values: boolean; readonly layout: boolean; readonly canonical: boolean }

/** Each request, with its arguments and its result. */
export interface Requests {
  /** Gives the names of the data files that are absent. */
  open: { takes: { side: Side; opening: Opening }; gives: readonly string[] };
  /** Describes what the page shows of side a. */
  describe: { takes: Record<string, never>; gives: Opened };
  close: { takes: { side: Side }; gives: null };
  rows: { takes: { outline: OutlineName; first: number; count: number }; gives: Row[] };
  act: { takes: { outline: OutlineName; node: number; act: Act }; gives: number };
  parent: { takes: { outline: OutlineName; row: number }; gives: number };
  /** Filters and sorts. `totals` are those of what the filter keeps; if undefined, rows of groups have no totals. */
  arrange: { takes: { outline: OutlineName; text: string; sort: Sort }; gives: { kept: number; rows: number; totals: Totals | undefined } };
  /** What the overview says besides the totals, or null if there are too many entries. `count`: of the largest tensors. */
  about: { takes: { count: number }; gives: About | null };
  fileMetadata: { takes: Record<string, never>; gives: readonly FileMetadata[] };
  parts: { takes: Record<string, never>; gives: readonly Part[] };
  /** Where the weights are. */
  weights: { takes: Record<string, never>; gives: Weights };
  /** `allow` is the value of `tessera validate --allow`. */
  checkLoad: { takes: { expected: Expectation; prefix: string; allow: string }; gives: LoadFindings };
  /** The text of tessera.layout/1. */
  layout: { takes: { chunks: boolean }; gives: string };
  /** Canonical names, judged by text. */
  names: { takes: OfA; gives: FqnDocument };
  /** The first names that a filter keeps. */
  find: { takes: { text: string; count: number }; gives: readonly string[] };
  reveal: { takes: { outline: OutlineName; fqn: string }; gives: { row: number; rows: number; entry: number } | null };
  entry: { takes: OfA & { entry: number }; gives: Detail };
  slice: { takes: OfA & SliceOf & { entry: number }; gives: Elements };
  /** The entry of B with this name. */
  entryOfB: { takes: { fqn: string }; gives: Detail | null };
  measure: { takes: OfA & { pairs: readonly PairOfNames[] }; gives: readonly Measured[] };
  statistics: { takes: Record<string, never>; gives: Statistics };
  /** Slices of an entry of A and of one of B. */
  slices: { takes: OfA & { a: SliceOf | undefined; b: SliceOf | undefined }; gives: { a: Elements | undefined; b: Elements | undefined } };
  /** In steps; `progress` has the tally so far. */
  tally: { takes: OfA & { entry: number }; gives: Tally };
  /** `found` are the results of workers for the parts of the values. */
  diff: { takes: DiffOptions & { readonly found?: readonly Uint8Array[] }; gives: Diff };
  /** Compares the values of part `part` of `parts`. */
  diffPart: { takes: OfA & Tolerance & { canonical: boolean; part: number; parts: number }; gives: Uint8Array };
  /** Makes the rows of the outline "compare", and finds the entry that was chosen before. */
  showDiff: { takes: OfA & { diff: Diff; measured: readonly Measured[]; canonical: boolean; text: string; sort: Sort; chosen: { fqn: string; isOnlyInB: boolean } | undefined }; gives: { rows: number; dtypes: readonly string[]; chosen: { entry: number; compared: Compared } | undefined } };
  optimizers: { takes: Record<string, never>; gives: readonly Optimizer[] };
  /** Plans for the text of a tessera.target/1 document. */
  plan: { takes: PlanRequest; gives: { plan: Plan; text: string } };
  /** The names of the built-in maps. */
  maps: { takes: Record<string, never>; gives: readonly string[] };
  twins: { takes: Record<string, never>; gives: Twins };
  /** Reads the values of every tensor. */
  scan: { takes: Record<string, never>; gives: Scan };
  previewWriting: { takes: { writing: Writing }; gives: WritingPreview };
  optimizerPreview: { takes: { action: (Writing & { what: "optimizer" })["action"]; options: OptimizerOptions; count: number }; gives: OptimizerPreview };
  /** In steps, with progress. */
  write: { takes: { writing: Writing; place: Place }; gives: Written };
  /** Checks part `part` of `parts` of the bytes. */
  deepPart: { takes: { part: number; parts: number }; gives: Uint8Array };
  deepFindings: { takes: { readonly found?: readonly Uint8Array[] }; gives: Findings };
  /** Findings (their text) in another form. */
  report: { takes: { findings: string; format: ReportFormat }; gives: string };
}
export type Kind = keyof Requests;

export interface Trouble {
  readonly message: string;
  /** The name of the core's status, or "page" for an error of the page itself. */
  readonly status: string;
  readonly position?: number;
}

export type ToWorker =
  | { [K in Kind]: { readonly id: number; readonly kind: K; readonly takes: Requests[K]["takes"] } }[Kind]
  | { readonly cancel: number }
  /** The first message. */
  | { readonly module: WebAssembly.Module }
  /** The module's second file, or why it could not be fetched. */
  | { readonly writers: WebAssembly.Module | string };

export type FromWorker =
  | { readonly id: number; readonly gives: unknown }
  | { readonly id: number; readonly trouble: Trouble }
  | { readonly id: number; readonly done: number; readonly total: number; readonly tally?: Tally }
  | { readonly read: number; readonly file: string }
  /** Asks for the module's second file. */
  | { readonly asks: "writers" };
