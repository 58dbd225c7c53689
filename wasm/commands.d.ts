/* Made by wasm/commands.mjs from the table in core/commands. */
import type { Checkpoint, DocumentOrText } from "./tessera.js";

/** The options of `canonicalize`. */
export interface CanonicalizeOptions {
  /** Use only keys with this prefix, and strip it ("model."). */
  readonly prefix?: string | undefined;
  /** Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** With `map`: apply the map backwards. */
  readonly inverse?: boolean | undefined;
}

/** The options of `convert`. */
export interface ConvertOptions {
  /** Write this format; ranks: one file per rank, cut by `shards`. */
  readonly to: "safetensors" | "torch" | "dcp" | "megatron-dist" | "deepspeed-universal" | "ranks";
  /** With `to` ranks: write files for N ranks, those of all pipeline stages together. */
  readonly worldSize?: number | undefined;
  /** Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean
   *  the resulting names. */
  readonly canonical?: boolean | undefined;
  /** With `canonical`: take the model's names from a tessera.modules/1 document, not from the text of the names alone. */
  readonly modules?: DocumentOrText | undefined;
  /** Use only names with this prefix, such as model., and strip it, after `canonical`; all other options mean the
   *  resulting names. */
  readonly prefix?: string | undefined;
  /** Rename: a literal prefix, or one * on each side (repeatable; each applies to the result of those before it). */
  readonly rename?: readonly string[] | undefined;
  /** Write a directory of safetensors files of at most SIZE, with an index. */
  readonly maxShardSize?: string | number | undefined;
  /** Refuse to write what would not load: compare names, dtypes and shapes with a checkpoint, a module tree, an index
   *  file, or a list of names, one per line. */
  readonly against?: Checkpoint | readonly string[] | DocumentOrText | undefined;
  /** Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** With `map`: apply the map backwards. */
  readonly inverse?: boolean | undefined;
  /** Turn quantized numbers into weights, in `dtype`; without it, in the dtype of config.json, or bfloat16. */
  readonly dequantize?: boolean | undefined;
  /** Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does. */
  readonly quantize?: "fp8-block" | undefined;
  /** With `quantize`: also leave weights that match as they are; embeddings, norms, output layers and routers are never
   *  quantized. */
  readonly noQuantize?: readonly string[] | undefined;
  /** Fold a LoRA adapter of PEFT into PATH, as its merge_and_unload does. */
  readonly lora?: Checkpoint | undefined;
  /** Use only names that match: * within a component, ** across components, ?, [...]. */
  readonly include?: readonly string[] | undefined;
  /** Leave out names that match; overrides `include`. */
  readonly exclude?: readonly string[] | undefined;
  /** Cast floating-point tensors, rounding correctly. */
  readonly dtype?: string | undefined;
  /** Write what this version of PyTorch loads, 2.3 to 2.15 (default: 2.4, or the oldest that can). */
  readonly forTorch?: string | undefined;
  /** Let `dtype` cast quantized numbers and their scales as stored, without applying the scales. */
  readonly rawCast?: boolean | undefined;
  /** Treat non-tensor objects this way; sidecar writes JSON (default: keep for torch and dcp, refuse for safetensors). */
  readonly objects?: "keep" | "drop" | "sidecar" | "refuse" | undefined;
  /** Limit the memory for buffers (default: 16MiB, or 4MiB per thread if that is more). */
  readonly maxMem?: string | number | undefined;
  /** Accept tensors whose bytes do not match the source's CRC-32. */
  readonly ignoreCrc?: boolean | undefined;
  /** Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP. */
  readonly noChecksums?: boolean | undefined;
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
  /** Stops the conversion after the current step. The call then rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** Called after each step, with the numbers of bytes of tensors. */
  readonly onProgress?: ((progress: { readonly done: number; readonly total: number }) => void) | undefined;
}

/** The options of `diff`. */
export interface DiffOptions {
  /** Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** With `map`: apply the map backwards. */
  readonly inverse?: boolean | undefined;
  /** Turn the quantized numbers of A into weights, in the dtype of config.json, or bfloat16. */
  readonly dequantize?: boolean | undefined;
  /** Allow values to differ by X; NaN equals NaN. */
  readonly atol?: number | undefined;
  /** Allow values to differ by X times the value in B. */
  readonly rtol?: number | undefined;
  /** Report different chunks as a difference. */
  readonly layout?: boolean | undefined;
  /** Match names without wrapper prefixes (module, _orig_mod, …), also in optimizer state. */
  readonly canonical?: boolean | undefined;
  /** With `canonical`: take the model's names from a tessera.modules/1 document, not from the text of the names alone. */
  readonly modules?: DocumentOrText | undefined;
  /** Report a rule as error, warning or note, or turn it off; ID may end in * (repeatable; the last match wins). */
  readonly rule?: readonly string[] | undefined;
  /** Leave out differences that an earlier --json document lists with the same name and kind. */
  readonly baseline?: DocumentOrText | undefined;
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
}

/** The options of `inspect`. */
export interface InspectOptions {
  /** Use only names that match: * within a component, ** across components, ?, [...]. */
  readonly include?: readonly string[] | undefined;
  /** Leave out names that match; overrides `include`. */
  readonly exclude?: readonly string[] | undefined;
  /** Compute a digest of each tensor's values, independent of sharding and format. */
  readonly hash?: "sha256" | "xxh3" | undefined;
  /** Compute min, max, mean, std, and the number of NaN, Inf and zero values of each tensor. */
  readonly stats?: boolean | undefined;
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
}

/** The options of `layout`. */
export interface LayoutOptions {
  /** With false: leave out the chunks: record only names, dtypes and shapes. */
  readonly chunks?: boolean | undefined;
  /** Add a digest of each entry's values (reads every byte). */
  readonly hash?: "sha256" | "xxh3" | undefined;
  /** Use only names that match: * within a component, ** across components, ?, [...]. */
  readonly include?: readonly string[] | undefined;
  /** Leave out names that match; overrides `include`. */
  readonly exclude?: readonly string[] | undefined;
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
}

/** The options of `manifest`. */
export interface ManifestOptions {
  /** Use this digest algorithm (default: xxh3). */
  readonly hash?: "sha256" | "xxh3" | undefined;
  /** Use only names that match: * within a component, ** across components, ?, [...]. */
  readonly include?: readonly string[] | undefined;
  /** Leave out names that match; overrides `include`. */
  readonly exclude?: readonly string[] | undefined;
  /** Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean
   *  the resulting names. */
  readonly canonical?: boolean | undefined;
  /** With `canonical`: take the model's names from a tessera.modules/1 document, not from the text of the names alone. */
  readonly modules?: DocumentOrText | undefined;
  /** Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** With `map`: apply the map backwards. */
  readonly inverse?: boolean | undefined;
  /** Turn quantized numbers into weights, in the dtype of config.json, or bfloat16. */
  readonly dequantize?: boolean | undefined;
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
}

/** The options of `open`. */
export interface OpenOptions {
  /** Open only this part of a checkpoint that is made of parts (inspect lists them). */
  readonly part?: string | undefined;
  /** Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or
   *  path below it, or the number in its name. */
  readonly step?: string | undefined;
  /** Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm. */
  readonly shards?: DocumentOrText | undefined;
  /** Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost. */
  readonly salvage?: boolean | undefined;
  /** The file that the user named, if it represents a set of files (an index). */
  readonly primary?: string | undefined;
}

/** The options of `optimizer`. */
export interface OptimizerOptions {
  /** Take names, frozen parameters and groups from a tessera.modules/1 document. */
  readonly modules?: DocumentOrText | undefined;
  /** Take FSDP1's flat parameters from a tessera.flat-params/1 document. */
  readonly flatParams?: DocumentOrText | undefined;
  /** Write for N ranks (shard) (default: as many as FLAT.json has). */
  readonly worldSize?: number | undefined;
  /** Write one file per rank, with DTensors sharded by rows, instead of the full state (unshard). */
  readonly sharded?: boolean | undefined;
  /** Use the state of rank N where ranks differ in state that FSDP does not shard (unshard). */
  readonly rank?: number | undefined;
  /** Use the optimizer with this name, such as optimizer_states.0 (default: the only one that looks like an optimizer). */
  readonly at?: string | undefined;
  /** Limit the memory for buffers (default: 16MiB, or 4MiB per thread if that is more). */
  readonly maxMem?: string | number | undefined;
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
}

/** The options of `plan`. */
export interface PlanOptions {
  /** Read mesh and placements from a tessera.target/1 document. */
  readonly target?: DocumentOrText | undefined;
  /** Use this device mesh, such as dp=4,tp=2. */
  readonly mesh?: string | undefined;
  /** Place every tensor this way, with one placement per mesh dimension: shard(0),replicate. */
  readonly placements?: string | undefined;
  /** Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** With `map`: apply the map backwards. */
  readonly inverse?: boolean | undefined;
  /** Turn quantized numbers into weights, in `dtype`; without it, in the dtype of config.json, or bfloat16. */
  readonly dequantize?: boolean | undefined;
  /** Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does. */
  readonly quantize?: "fp8-block" | undefined;
  /** With `quantize`: also leave weights that match as they are; embeddings, norms, output layers and routers are never
   *  quantized. */
  readonly noQuantize?: readonly string[] | undefined;
  /** Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean
   *  the resulting names. */
  readonly canonical?: boolean | undefined;
  /** With `canonical`: take the model's names from a tessera.modules/1 document, not from the text of the names alone. */
  readonly modules?: DocumentOrText | undefined;
  /** Use only names with this prefix, such as model., and strip it, after `canonical`; all other options mean the
   *  resulting names. */
  readonly prefix?: string | undefined;
  /** Fold a LoRA adapter of PEFT into PATH, as its merge_and_unload does. */
  readonly lora?: Checkpoint | undefined;
  /** Use only names that match: * within a component, ** across components, ?, [...]. */
  readonly include?: readonly string[] | undefined;
  /** Leave out names that match; overrides `include`. */
  readonly exclude?: readonly string[] | undefined;
  /** Rename: a literal prefix, or one * on each side (repeatable; each applies to the result of those before it). */
  readonly rename?: readonly string[] | undefined;
  /** Let exec write this format (default: as reshard and convert). */
  readonly to?: "safetensors" | "torch" | "dcp" | "megatron-dist" | "deepspeed-universal" | "ranks" | undefined;
  /** Write a directory of safetensors files of at most SIZE, with an index. */
  readonly maxShardSize?: string | number | undefined;
  /** Let exec treat non-tensor objects this way. */
  readonly objects?: "keep" | "drop" | "sidecar" | "refuse" | undefined;
  /** Let exec cast floating-point tensors. */
  readonly dtype?: string | undefined;
  /** Write what this version of PyTorch loads, 2.3 to 2.15 (default: 2.4, or the oldest that can). */
  readonly forTorch?: string | undefined;
  /** Let `dtype` cast quantized numbers and their scales as stored, without applying the scales. */
  readonly rawCast?: boolean | undefined;
  /** Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP. */
  readonly noChecksums?: boolean | undefined;
  /** Show the load of each server of this tessera.storage/1 document, and order reads and shares by server. */
  readonly storage?: DocumentOrText | undefined;
  /** With `to` ranks: write files for N ranks, those of all pipeline stages together. */
  readonly worldSize?: number | undefined;
  /** Print the document with every read of every rank. */
  readonly items?: boolean | undefined;
}

/** The options of `read`. */
export interface ReadOptions {
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
}

/** The options of `reshard`. */
export interface ReshardOptions {
  /** Read mesh and placements from a tessera.target/1 document. */
  readonly target?: DocumentOrText | undefined;
  /** Use this device mesh, such as dp=4,tp=2. */
  readonly mesh?: string | undefined;
  /** Place every tensor this way, with one placement per mesh dimension: shard(0),replicate. */
  readonly placements?: string | undefined;
  /** Write this format (default: the source's format). */
  readonly to?: "safetensors" | "torch" | "dcp" | "megatron-dist" | undefined;
  /** Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean
   *  the resulting names. */
  readonly canonical?: boolean | undefined;
  /** With `canonical`: take the model's names from a tessera.modules/1 document, not from the text of the names alone. */
  readonly modules?: DocumentOrText | undefined;
  /** Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** With `map`: apply the map backwards. */
  readonly inverse?: boolean | undefined;
  /** Turn quantized numbers into weights, in `dtype`; without it, in the dtype of config.json, or bfloat16. */
  readonly dequantize?: boolean | undefined;
  /** Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does. */
  readonly quantize?: "fp8-block" | undefined;
  /** With `quantize`: also leave weights that match as they are; embeddings, norms, output layers and routers are never
   *  quantized. */
  readonly noQuantize?: readonly string[] | undefined;
  /** Use only names that match: * within a component, ** across components, ?, [...]. */
  readonly include?: readonly string[] | undefined;
  /** Leave out names that match; overrides `include`. */
  readonly exclude?: readonly string[] | undefined;
  /** Cast floating-point tensors, rounding correctly. */
  readonly dtype?: string | undefined;
  /** Write what this version of PyTorch loads, 2.3 to 2.15 (default: 2.4, or the oldest that can). */
  readonly forTorch?: string | undefined;
  /** Let `dtype` cast quantized numbers and their scales as stored, without applying the scales. */
  readonly rawCast?: boolean | undefined;
  /** Treat non-tensor objects this way; sidecar writes JSON (default: keep for torch and dcp, refuse for safetensors). */
  readonly objects?: "keep" | "drop" | "sidecar" | "refuse" | undefined;
  /** Limit the memory for buffers (default: 16MiB, or 4MiB per thread if that is more). */
  readonly maxMem?: string | number | undefined;
  /** Accept tensors whose bytes do not match the source's CRC-32. */
  readonly ignoreCrc?: boolean | undefined;
  /** Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP. */
  readonly noChecksums?: boolean | undefined;
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
  /** Stops the conversion after the current step. The call then rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** Called after each step, with the numbers of bytes of tensors. */
  readonly onProgress?: ((progress: { readonly done: number; readonly total: number }) => void) | undefined;
}

/** The options of `validate`. */
export interface ValidateOptions {
  /** Read every byte: check structure, checksums, dtypes, shapes and replicas, and count NaN values. */
  readonly deep?: boolean | undefined;
  /** Check against a file that `tessera layout` wrote; with `deep`, check its hashes too. */
  readonly layout?: DocumentOrText | undefined;
  /** Check that it would load: compare names, dtypes and shapes with a checkpoint, a module tree, an index file, or a
   *  list of names, one per line. */
  readonly against?: Checkpoint | readonly string[] | DocumentOrText | undefined;
  /** With `against`: use only names with this prefix, such as model., and strip it. */
  readonly prefix?: string | undefined;
  /** Leave out names that match, of PATH and of what it is checked against. */
  readonly exclude?: readonly string[] | undefined;
  /** Allow these differences: missing,extra,dtype,shape,chunks,value. */
  readonly allow?: string | undefined;
  /** Report a rule as error, warning or note, or turn it off; ID may end in * (repeatable; the last match wins). */
  readonly rule?: readonly string[] | undefined;
  /** Leave out findings that an earlier --json document lists with the same rule, file and name. */
  readonly baseline?: DocumentOrText | undefined;
}

/** The options of `verify`. */
export interface VerifyOptions {
  /** Allow these differences: missing,extra,dtype,shape,chunks,value. */
  readonly allow?: string | undefined;
  /** Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map. */
  readonly map?: DocumentOrText | undefined;
  /** With `map`: apply the map backwards. */
  readonly inverse?: boolean | undefined;
  /** Turn quantized numbers into weights, in the dtype of config.json, or bfloat16. */
  readonly dequantize?: boolean | undefined;
  /** Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB. */
  readonly allowExpansion?: boolean | undefined;
}
