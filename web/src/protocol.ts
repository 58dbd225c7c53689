/** What the page and its worker say to each other. */
import type { Level, Row } from "../../wasm/tessera.js";

export type { EntryRow, Level, Row } from "../../wasm/tessera.js";

export type Side = "a" | "b";
/** Every entry, or those that are no tensors. */
export type OutlineName = "all" | "objects";
export type Act = "open" | "close" | "fold" | "unfold" | "open-all" | "close-all";

/** A dropped file, or one behind a URL. */
export type Source =
  | { readonly name: string; readonly size: number; readonly file: File }
  | { readonly name: string; readonly size: number; readonly url: string };

export interface Opening {
  /** What it is called on the page. */
  readonly title: string;
  readonly files: readonly Source[];
  readonly primary?: string;
}

export interface FileUse {
  readonly name: string;
  readonly size: number;
  readonly used: number;
  readonly chunks: number;
  readonly taken: readonly (readonly [number, number])[];
}

export interface Overview {
  readonly format: string;
  readonly tensors: number;
  readonly objects: number;
  readonly opaque: number;
  readonly elements: number;
  readonly bytes: number;
  readonly missing_chunks: number;
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
  /** By rule: cause and cure. */
  readonly help: Readonly<Record<string, string>>;
  readonly text: string;
  /** The same as SARIF 2.1.0. */
  readonly sarif: string;
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
  readonly type: string;
  readonly value?: unknown;
  readonly repr?: string;
  readonly dtype?: string;
  readonly shape?: readonly number[];
}
export type Detail = TensorDetail | ObjectDetail;

export interface Preview {
  readonly sizes: readonly number[];
  readonly values: readonly string[];
}

type Real = number | "nan" | "inf" | "-inf";
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
    readonly what: readonly string[];
    readonly a: DiffSide;
    readonly b: DiffSide;
    readonly differing?: number;
    readonly max_abs?: Real;
  }[];
  readonly renamed: readonly { readonly a: string; readonly b: string; readonly why: string }[];
  readonly summary: { readonly same: number; readonly values_compared: boolean };
}

/** tessera.plan/1 as far as the page shows it. */
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
  /** One a name of the optimizer. */
  readonly states: readonly (StateEntry | null)[];
}
export interface Optimizer {
  readonly optimizer: string;
  readonly names: readonly string[];
  readonly parameters: readonly ParameterStates[];
}

/** Tensors that hold equal bytes. */
export interface Twins { readonly groups: readonly { readonly bytes: number; readonly fqns: readonly string[] }[] }

export interface Opened {
  readonly overview: Overview;
  readonly findings: Findings;
  readonly rows: Readonly<Record<OutlineName, number>>;
}

/** Each request with what it takes and what it gives. */
export interface Requests {
  open: { takes: { side: Side; opening: Opening }; gives: null };
  /** Of side a: what the page shows of it. */
  describe: { takes: Record<string, never>; gives: Opened };
  close: { takes: { side: Side }; gives: null };
  rows: { takes: { outline: OutlineName; first: number; count: number }; gives: Row[] };
  act: { takes: { outline: OutlineName; node: number; act: Act }; gives: number };
  parent: { takes: { outline: OutlineName; row: number }; gives: number };
  filter: { takes: { outline: OutlineName; text: string }; gives: { kept: number; rows: number } };
  reveal: { takes: { outline: OutlineName; fqn: string }; gives: { row: number; rows: number; entry: number } | null };
  entry: { takes: { entry: number }; gives: Detail };
  preview: { takes: { entry: number }; gives: Preview };
  /** In steps; `progress` has the tally so far. */
  tally: { takes: { entry: number }; gives: Tally };
  diff: { takes: { values: boolean; layout: boolean }; gives: { diff: Diff; text: string } };
  optimizers: { takes: Record<string, never>; gives: readonly Optimizer[] };
  /** For the text of a tessera.target/1 document. */
  plan: { takes: { target: string }; gives: { plan: Plan; text: string } };
  twins: { takes: Record<string, never>; gives: Twins };
  deepFindings: { takes: Record<string, never>; gives: Findings };
}
export type Kind = keyof Requests;

export interface Trouble {
  readonly message: string;
  /** The core's status word, or "page" for what the page itself could not do. */
  readonly status: string;
  readonly position?: number;
}

export type ToWorker =
  | { [K in Kind]: { readonly id: number; readonly kind: K; readonly takes: Requests[K]["takes"] } }[Kind]
  | { readonly cancel: number }
  /** First of all. */
  | { readonly module: WebAssembly.Module };

export type FromWorker =
  | { readonly id: number; readonly gives: unknown }
  | { readonly id: number; readonly trouble: Trouble }
  | { readonly id: number; readonly done: number; readonly total: number; readonly tally?: Tally }
  | { readonly read: number; readonly file: string };
