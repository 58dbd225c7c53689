/** Errors and warnings of the core name options of the command. Where a form on the page has a field for an option, the text
 *  names the field instead. Pure. */
import { FORMS, OBJECTS, type ConvertForm, type Form } from "./convert_form";
import type { Trouble } from "./protocol";

interface Field {
  readonly label: string;
  /** What the form calls the option's values. Other options' values are not repeated. */
  readonly values?: Readonly<Record<string, string>>;
}

const TO: Field = { label: "Form", values: Object.fromEntries(FORMS.map(([to]) => [to, to])) };

/** Labels of fields. */
export const EXCEPT = "But keep these as they are", RAW_CAST = "Cast scaled numbers without their scales", EXPANSION = "Accept tensors that repeat stored elements very often";
export const CANONICAL = "Remove wrapper prefixes (module, _orig_mod, …) from all names first", MODULES = "tessera.modules/1: takes the model's names from there, not from the text of the names alone.";
export const PREFIX = "Only names with this prefix, without it", FOR_TORCH = "For this version of PyTorch", MEMORY = "Memory for buffers", WORLD_SIZE = "Number of ranks", CHECKSUMS = "Write no checksums";
export const IGNORE_CRC = "Accept bytes that do not match their checksums", PART = "Only the part", SHARDS = "Ranks are joined by";

const FIELDS: Readonly<Record<string, Field>> = {
  "--include": { label: "Only names that match" },
  "--exclude": { label: "But not" },
  "--rename": { label: "Renames" },
  "--dtype": { label: "Floating-point tensors become" },
  "--objects": { label: "Non-tensor objects", values: Object.fromEntries(OBJECTS) },
  "--quantize": { label: "Weights become: fp8-block" },
  "--dequantize": { label: "Weights become: dequantized" },
  "--no-quantize": { label: EXCEPT },
  "--raw-cast": { label: RAW_CAST },
  "--canonical": { label: CANONICAL },
  "--prefix": { label: PREFIX },
  "--for-torch": { label: FOR_TORCH },
  "--max-mem": { label: MEMORY },
  "--world-size": { label: WORLD_SIZE },
  "--no-checksums": { label: CHECKSUMS },
  "--allow-expansion": { label: EXPANSION },
  "--ignore-crc": { label: IGNORE_CRC },
  "--part": { label: PART, values: { module: "module" } },
  "--shards": { label: SHARDS },
  "--max-shard-size": { label: "Shards of at most" },
  "--to": TO,
  "--map": { label: "Names and layouts become" },
  "--inverse": { label: "Apply the map backwards" },
  "--modules": { label: "Choose the module tree" },
  "--at": { label: "The optimizer's key" },
};

const OF_MAP = ["--map", "--inverse"], OF_SOURCE = ["--part", "--shards"], OF_WRITING = ["--include", "--exclude", "--to", "--allow-expansion", "--ignore-crc", ...OF_MAP, ...OF_SOURCE];
/** The options for which each form has a field. */
export const convertFields = ({ dtype, quantized, canonical }: ConvertForm, to: Form): readonly string[] => [
  ...OF_WRITING, "--rename", "--dtype", "--objects", "--quantize", "--dequantize", "--canonical", "--prefix", "--for-torch", "--max-mem", "--no-checksums",
  ...(canonical ? ["--modules"] : []), ...(to === "ranks" ? ["--world-size"] : []),
  ...(to === "safetensors" ? ["--max-shard-size"] : []), ...(dtype ? ["--raw-cast"] : []), ...(quantized === "fp8-block" ? ["--no-quantize"] : []),
];
export const RESHARD_FIELDS: readonly string[] = OF_WRITING;
export const OPTIMIZER_FIELDS: readonly string[] = ["--modules", "--at", "--allow-expansion", ...OF_SOURCE];
export const NAMES_FIELDS: readonly string[] = [...OF_MAP, ...OF_SOURCE];

/** Replaces an option, the word before it, and the values after it: "a, b or c", or a placeholder in capitals. */
function withField(text: string, option: string): string {
  const { label, values = {} } = FIELDS[option] ?? { label: option }, words = Object.keys(values).filter(Boolean).join("|");
  const list = words ? `((?:(?:,| or)? (?:${words})(?![\\w-]))*)` : "()";
  return text.replace(new RegExp(`(pass )?(?<![\\w-])${option}(?![\\w-])${list}(?: [A-Z]{2,}(?:\\.json)?(?!\\w))?`, "g"), (_, pass: string | undefined, given: string) => {
    const chosen = words ? given.replace(new RegExp(words, "g"), (word) => values[word] ?? word) : given;
    return `${pass ? "use " : ""}“${label}${chosen && `:${chosen}`}”`;
  });
}

/** An option, and the commands that have it. */
const OF_COMMANDS = /(--exclude) \(convert, reshard, plan, layout, manifest\)/;

export const inFields = (text: string, fields: readonly string[]): string =>
  fields.reduce(withField, text.replace(OF_COMMANDS, fields.includes("--exclude") ? "$1" : "“But not” in Convert"));

export const troubleInFields = (trouble: Trouble, fields: readonly string[]): Trouble => ({ ...trouble, message: inFields(trouble.message, fields) });
