/** The reshard form, as tessera.target/1 and as a command line. */
import { sourceOptions, type Command, type CommandSource } from "./command";

export interface MeshDim { readonly name: string; readonly size: number; readonly placement: string }
export interface TargetForm {
  /** The first one only, unless a mesh is asked for. */
  readonly dims: readonly MeshDim[];
  readonly isMesh?: boolean;
  /** Whether names are chosen. */
  readonly chooses?: boolean;
  /** One rule per line: a GLOB, spaces, and placements separated by commas. */
  readonly rules: string;
  /** GLOBs separated by spaces. */
  readonly include?: string;
  readonly exclude?: string;
  readonly allowExpansion?: boolean;
  readonly ignoreCrc?: boolean;
}

/** The dims of the mesh that the form asks for, and its rules. */
export const meshOf = ({ dims, isMesh, rules }: TargetForm): Pick<TargetForm, "dims" | "rules"> => isMesh ? { dims, rules } : { dims: dims.slice(0, 1), rules: "" };

export const START: TargetForm = { dims: [{ name: "dp", size: 2, placement: "shard(0)" }], rules: "" };
/** Placements, and what becomes of each tensor in plain words. */
export const PLACEMENTS: readonly (readonly [string, string])[] = [
  ["shard(0)", "divided by rows (dim 0)"], ["shard(1)", "divided by columns (dim 1)"], ["shard(2)", "divided along dim 2"], ["shard(3)", "divided along dim 3"], ["replicate", "whole on every rank"],
];

/** Splits at commas outside parentheses. */
const placementsOf = (text: string): string[] => text.split(/,(?![^(]*\))/).map((p) => p.trim()).filter(Boolean);

function rulesOf(text: string): { match: string; placements: string[] }[] {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const [match = "", ...rest] = line.split(/\s+/);
    return { match, placements: placementsOf(rest.join("")) };
  });
}

export function targetText(form: TargetForm): string {
  const { dims, rules } = meshOf(form);
  return JSON.stringify({
    schema: "tessera.target/1",
    mesh: { shape: dims.map((d) => d.size), dim_names: dims.map((d) => d.name) },
    rules: rulesOf(rules),
    default: dims.map((d) => d.placement),
  }, null, 1);
}

/** Returns the command that does the same. If there are rules, `target.json` is a file with targetText. */
export function reshardCommand(form: TargetForm, source: CommandSource, more: Command["options"]): Command {
  const { dims, rules } = meshOf(form), mesh = dims.map((d) => `${d.name}=${d.size}`).join(","), placements = dims.map((d) => d.placement).join(",");
  const target = rules.trim() ? { target: "target.json" } : { mesh, placements };
  return { name: "reshard", operands: [source.title, `${source.title.replace(/\/+$/, "")}-resharded`], options: { ...target, ...more, ...sourceOptions(source) } };
}
