/** The reshard form, as tessera.target/1 and as a command line. */
import type { Opening } from "./protocol";

/** What a command needs to know of the checkpoint that is open. */
export type CommandSource = Pick<Opening, "title" | "part" | "shards">;
export const NO_SOURCE: CommandSource = { title: "" };

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

export const quoted = (text: string): string => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

/** Returns the checkpoint as arguments of a command: its name, and how it was opened. A map that is not built in is a file. */
export function sourceText({ title, part, shards }: CommandSource): string {
  const map = shards?.trimStart().startsWith("{") ? "shards.json" : shards;
  return [quoted(title), ...(part === undefined ? [] : [`--part ${quoted(part)}`]), ...(map === undefined ? [] : [`--shards ${quoted(map)}`])].join(" ");
}

/** Returns the command that does the same. If there are rules, `target.json` is a file with targetText. */
export function commandText(form: TargetForm, source: CommandSource): string {
  const mesh = form.dims.map((d) => `${d.name}=${d.size}`).join(","), placements = form.dims.map((d) => d.placement).join(",");
  const target = form.rules.trim() ? "--target target.json" : `--mesh ${quoted(mesh)} --placements ${quoted(placements)}`;
  return `tessera reshard ${sourceText(source)} ${quoted(`${source.title.replace(/\/+$/, "")}-resharded`)} ${target}`;
}
