/** The conversion form, as options for the module and as a command line. Pure. */
import type { ConvertOptions } from "../../wasm/tessera.js";
import { quoted, sourceText, type CommandSource } from "./target";

export type Form = ConvertOptions["to"];
export interface ConvertForm {
  readonly to: Form;
  /** GLOBs separated by spaces. */
  readonly include: string;
  readonly exclude: string;
  /** One per line: FROM=TO. */
  readonly rename: string;
  /** Empty: unchanged. */
  readonly dtype: string;
  readonly maxShardSize: string;
  /** Empty: the default of the format. */
  readonly objects: "" | "keep" | "drop" | "sidecar" | "refuse";
  /** Empty: as stored. */
  readonly quantized: "" | "dequantize" | "fp8-block";
  /** With fp8-block: GLOBs of weights that are kept as they are, separated by spaces. */
  readonly noQuantize?: string;
  /** With a dtype: casts the stored numbers of scaled tensors without their scales. */
  readonly rawCast?: boolean;
  readonly allowExpansion?: boolean;
  readonly ignoreCrc?: boolean;
}

export const CONVERT_START: ConvertForm = { to: "safetensors", include: "", exclude: "", rename: "", dtype: "", maxShardSize: "", objects: "", quantized: "" };
export const FORMS: readonly (readonly [Form, string])[] = [
  ["safetensors", "safetensors"], ["torch", "torch (torch.save)"], ["dcp", "dcp (PyTorch distributed checkpoint)"],
  ["megatron-dist", "megatron-dist"], ["deepspeed-universal", "deepspeed-universal"],
];
export const DTYPES: readonly string[] = ["bfloat16", "float16", "float32", "float64"];
export const OBJECTS: readonly (readonly [ConvertForm["objects"], string])[] = [
  ["", "the form's default"], ["keep", "keep"], ["drop", "leave out"], ["sidecar", "write as JSON next to it"], ["refuse", "refuse"],
];

export const QUANTIZED: readonly (readonly [ConvertForm["quantized"], string])[] = [
  ["", "what they are"], ["dequantize", "dequantized: numbers times their scales"], ["fp8-block", "fp8-block: float8 in blocks of 128 × 128"],
];

export const words = (text: string): string[] => text.split(/\s+/).filter(Boolean);
const lines = (text: string): string[] => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** Converts the form to options. Unchanged ones are left out. */
export function optionsOf(form: ConvertForm): Omit<ConvertOptions, "signal" | "onProgress"> {
  const include = words(form.include), exclude = words(form.exclude), rename = lines(form.rename), size = form.maxShardSize.trim(), kept = words(form.noQuantize ?? "");
  return {
    to: form.to,
    ...(include.length ? { include } : {}), ...(exclude.length ? { exclude } : {}), ...(rename.length ? { rename } : {}),
    ...(form.dtype ? { dtype: form.dtype } : {}), ...(form.objects ? { objects: form.objects } : {}),
    ...(form.quantized === "dequantize" ? { dequantize: true } : {}), ...(form.quantized === "fp8-block" ? { quantize: form.quantized } : {}),
    ...(form.quantized === "fp8-block" && kept.length ? { noQuantize: kept } : {}), ...(form.dtype && form.rawCast ? { rawCast: true } : {}),
    ...(form.allowExpansion ? { allowExpansion: true } : {}), ...(form.ignoreCrc ? { ignoreCrc: true } : {}),
    ...(form.to === "safetensors" && size ? { maxShardSize: size } : {}),
  };
}

const OPTIONS: readonly (readonly [keyof ReturnType<typeof optionsOf>, string])[] = [
  ["include", "--include"], ["exclude", "--exclude"], ["rename", "--rename"], ["dtype", "--dtype"], ["maxShardSize", "--max-shard-size"], ["objects", "--objects"], ["dequantize", "--dequantize"], ["quantize", "--quantize"],
  ["noQuantize", "--no-quantize"], ["rawCast", "--raw-cast"], ["allowExpansion", "--allow-expansion"], ["ignoreCrc", "--ignore-crc"],
];

/** Returns the command that writes the same bytes. */
export function convertCommand(form: ConvertForm, source: CommandSource, destination: string): string {
  return ["tessera convert", sourceText(source), quoted(destination), `--to ${form.to}`, ...commandOptions(optionsOf(form))].join(" ");
}

export const commandOptions = (options: Partial<ReturnType<typeof optionsOf>>): string[] =>
  OPTIONS.flatMap(([key, option]) => [options[key] ?? []].flat().map((value) => value === true ? option : `${option} ${quoted(String(value))}`));

const EXTENSIONS: Readonly<Partial<Record<Form, string>>> = { safetensors: ".safetensors", torch: ".pt" };
/** Returns the name of the only file. */
export const fileName = (name: string, to: Form): string => name + (EXTENSIONS[to] ?? "");

/** Suggests a name for something made from a checkpoint. */
export const nameFor = (title: string, suffix: string): string => `${(title.split("/").pop() ?? "").replace(/\.(safetensors|pt|pth|bin|ckpt|json)$/, "") || "checkpoint"}-${suffix}`;
