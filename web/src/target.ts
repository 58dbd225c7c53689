/** The reshard form, as tessera.target/1 and as a command line. */
import { sourceOptions, type Command, type CommandSource } from "./command";

export interface MeshDim { readonly name: string; readonly size: number; readonly placement: string }
export interface TargetForm {
  readonly dims: readonly MeshDim[];
  /** One rule per line: a GLOB, spaces, and placements separated by commas. */
  readonly rules: string;
  /** GLOBs separated by spaces. */
  readonly include?: string;
  readonly exclude?: string;
  readonly allowExpansion?: boolean;
  readonly ignoreCrc?: boolean;
}

export const START: TargetForm = { dims: [{ name: "dp", size: 2, placement: "shard(0)" }], rules: "" };
export const PLACEMENTS: readonly string[] = ["shard(0)", "shard(1)", "shard(2)", "shard(3)", "replicate"];

/** Splits at commas outside parentheses. */
const placementsOf = (text: string): string[] => text.split(/,(?![^(]*\))/).map((p) => p.trim()).filter(Boolean);

function rulesOf(text: string): { match: string; placements: string[] }[] {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const [match = "", ...rest] = line.split(/\s+/);
    return { match, placements: placementsOf(rest.join("")) };
  });
}

export function targetText({ dims, rules }: TargetForm): string {
  return JSON.stringify({
    schema: "tessera.target/1",
    mesh: { shape: dims.map((d) => d.size), dim_names: dims.map((d) => d.name) },
    rules: rulesOf(rules),
    default: dims.map((d) => d.placement),
  }, null, 1);
}

/** Returns the command that does the same. If there are rules, `target.json` is a file with targetText. */
export function reshardCommand(form: TargetForm, source: CommandSource, more: Command["options"]): Command {
  const mesh = form.dims.map((d) => `${d.name}=${d.size}`).join(","), placements = form.dims.map((d) => d.placement).join(",");
  const target = form.rules.trim() ? { target: "target.json" } : { mesh, placements };
  return { name: "reshard", operands: [source.title, `${source.title.replace(/\/+$/, "")}-resharded`], options: { ...target, ...more, ...sourceOptions(source) } };
}
