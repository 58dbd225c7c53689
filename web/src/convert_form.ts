/** The conversion form, as options for the module and as a command. Pure. */
import type { ConvertOptions } from "../../wasm/tessera.js";
import { sourceOptions, type Command, type CommandSource } from "./command";

export type Form = ConvertOptions["to"];
/** Every option of the table of commands that a page can offer: another checkpoint and the calls' own options are not among them. */
type Offered = Exclude<keyof ConvertOptions, "to" | "map" | "inverse" | "against" | "lora" | "signal" | "onProgress">;

/** What is known of the open checkpoint, before anything is read of it. */
export interface Convertible {
  /** The number of entries that are not tensors. */
  readonly objects: number;
  readonly weights: Weights;
  /** Whether safetensors cannot have one of its tensors. */
  readonly isBeyondSafetensors: boolean;
}
/** Where the weights are: below a prefix such as "model.", or everywhere but in these GLOBs. */
export interface Weights { readonly prefix: string; readonly others: readonly string[] }

export interface ConvertForm {
  readonly what: "weights" | "everything" | "choose";
  /** Undefined: safetensors, or torch for what safetensors cannot have. */
  readonly to?: Form;
  readonly names: "stored" | "stripped";
  /** GLOBs separated by spaces. With "choose" only. */
  readonly include: string;
  readonly exclude: string;
  /** One per line: FROM=TO. */
  readonly rename: string;
  /** Empty: unchanged. */
  readonly dtype: string;
  readonly maxShardSize: string;
  /** Empty: what loses nothing that the other answers do not leave out. */
  readonly objects: "" | NonNullable<ConvertOptions["objects"]>;
  /** Empty: as stored. */
  readonly quantized: "" | "dequantize" | "fp8-block";
  /** With fp8-block: GLOBs of weights that are kept as they are, separated by spaces. */
  readonly noQuantize?: string;
  /** With a dtype: casts the stored numbers of scaled tensors without their scales. */
  readonly rawCast?: boolean;
  readonly allowExpansion?: boolean;
  readonly ignoreCrc?: boolean;
  readonly canonical?: boolean;
  /** The text of a tessera.modules/1 document, and the name of its file. */
  readonly modules?: { readonly name: string; readonly text: string } | undefined;
  readonly prefix?: string;
  readonly forTorch?: string;
  readonly maxMem?: string;
  readonly worldSize?: string;
  readonly noChecksums?: boolean;
}

export const CONVERT_START: ConvertForm = { what: "everything", names: "stored", include: "", exclude: "", rename: "", dtype: "", maxShardSize: "", objects: "", quantized: "" };
/** What transformers loads: one file, or shards with their index, of the weights alone, under the model's own names. */
export const HUGGING_FACE: ConvertForm = { ...CONVERT_START, what: "weights", to: "safetensors", names: "stripped", maxShardSize: "5GB" };

/** The forms of the table, with what each is for. A form that is missing here does not compile. */
const FORM_TEXTS: Readonly<Record<Form, readonly [string, string]>> = {
  safetensors: ["safetensors", "For Hugging Face and other inference: tensors only, in one file or in shards with an index."],
  torch: ["torch (torch.save)", "One file for torch.load, with tensors and Python objects."],
  dcp: ["dcp (PyTorch distributed checkpoint)", "A directory for dcp.load: any number of ranks can read it."],
  "megatron-dist": ["megatron-dist", "A directory for Megatron Core's dist_checkpointing."],
  "deepspeed-universal": ["deepspeed-universal", "A directory for DeepSpeed's universal checkpoints."],
  ranks: ["one file per rank", "Files of plain tensors, cut by the map of shards with which this checkpoint was opened."],
};
export const FORMS: readonly (readonly [Form, string])[] = Object.entries(FORM_TEXTS).map(([form, [name]]) => [form as Form, name]);
export const formText = (to: Form): string => FORM_TEXTS[to][1];
export const formOf = ({ to }: ConvertForm, { isBeyondSafetensors }: Convertible): Form => to ?? (isBeyondSafetensors ? "torch" : "safetensors");

export const DTYPES: readonly string[] = ["bfloat16", "float16", "float32", "float64"];
const OBJECT_TEXTS: Readonly<Record<NonNullable<ConvertOptions["objects"]>, string>> = { keep: "keep", drop: "leave out", sidecar: "write as JSON next to it", refuse: "refuse" };
export const OBJECTS: readonly (readonly [ConvertForm["objects"], string])[] = [["", "as the answers above say"], ...Object.entries(OBJECT_TEXTS) as [NonNullable<ConvertOptions["objects"]>, string][]];

export const QUANTIZED: readonly (readonly [ConvertForm["quantized"], string])[] = [
  ["", "(no change)"], ["dequantize", "dequantized: numbers times their scales"], ["fp8-block", "fp8-block: float8 in blocks of 128 × 128"],
];

export const words = (text: string): string[] => text.split(/\s+/).filter(Boolean);
const lines = (text: string): string[] => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** Returns the GLOBs and the prefix that select what is to be written, and the renames that the names need. */
function selectionOf({ what, names, include, exclude, rename }: ConvertForm, { weights: { prefix, others } }: Convertible): { include: readonly string[]; exclude: readonly string[]; prefix: string; rename: readonly string[] } {
  const isStripped = names === "stripped" && prefix !== "", own = lines(rename);
  if (what !== "weights") return { include: what === "choose" ? words(include) : [], exclude: what === "choose" ? words(exclude) : [], prefix: "", rename: isStripped ? [`${prefix}=`, ...own] : own };
  return { include: prefix && !isStripped ? [`${prefix}**`] : [], exclude: prefix ? [] : others, prefix: isStripped ? prefix : "", rename: own };
}

/** Objects that the form has no place for are written next to it, unless only the weights are wanted. */
function objectsOf({ objects, what }: ConvertForm, to: Form, { objects: count }: Convertible): ConvertOptions["objects"] {
  if (objects) return objects;
  return count === 0 ? undefined : what === "weights" ? "drop" : to === "safetensors" ? "sidecar" : undefined;
}

/** Converts the form to options. Unchanged ones are left out. */
export function optionsOf(form: ConvertForm, source: Convertible): Omit<ConvertOptions, "signal" | "onProgress"> {
  const to = formOf(form, source), { include, exclude, prefix, rename } = selectionOf(form, source), { canonical = false, modules, dtype, quantized } = form;
  const given: { readonly [K in Offered]: ConvertOptions[K] | false | "" } = {
    include, exclude, rename, dtype,
    maxShardSize: to === "safetensors" && form.maxShardSize.trim(),
    objects: objectsOf(form, to, source),
    dequantize: quantized === "dequantize", quantize: quantized === "fp8-block" && quantized, noQuantize: quantized === "fp8-block" ? words(form.noQuantize ?? "") : [],
    rawCast: dtype !== "" && form.rawCast, allowExpansion: form.allowExpansion, ignoreCrc: form.ignoreCrc,
    canonical, modules: canonical && modules?.text, prefix: prefix || form.prefix?.trim(), forTorch: form.forTorch?.trim(), maxMem: form.maxMem?.trim(),
    worldSize: to === "ranks" && Number(form.worldSize ?? 0), noChecksums: form.noChecksums,
  };
  return { to, ...Object.fromEntries(Object.entries(given).filter(([, value]) => Array.isArray(value) ? value.length > 0 : Boolean(value))) };
}

/** Returns the command that writes the same bytes. A document is a file. */
export function convertCommand(form: ConvertForm, held: Convertible, source: CommandSource, destination: string, map: Command["options"]): Command {
  const { modules, ...options } = optionsOf(form, held);
  return { name: "convert", operands: [source.title, destination], options: { ...options, modules: modules && form.modules?.name, ...map, ...sourceOptions(source) } };
}

const EXTENSIONS: Readonly<Partial<Record<Form, string>>> = { safetensors: ".safetensors", torch: ".pt" };
/** Returns the name of the only file. */
export const fileName = (name: string, to: Form): string => name + (EXTENSIONS[to] ?? "");

const lastOf = (title: string): string => title.split("/").pop() ?? "";
const stemOf = (title: string): string => lastOf(title).replace(/\.(safetensors|pt|pth|bin|ckpt|json)$/, "") || "checkpoint";

/** Suggests a name for something made from a checkpoint. */
export const nameFor = (title: string, suffix: string): string => `${stemOf(title)}-${suffix}`;

/** Suggests a name for what a conversion writes: that of the checkpoint, if an extension tells the two apart. */
export function convertedName(title: string, to: Form, isOne: boolean): string {
  const stem = stemOf(title), file = fileName(stem, to);
  return !isOne || file === stem ? nameFor(title, to) : file === lastOf(title) ? nameFor(title, "converted") : stem;
}
