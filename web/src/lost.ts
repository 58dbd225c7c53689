/** What is lost of a damaged file. Pure. */
import type { Findings, Opening } from "./protocol";

const LOST = "repair/lost", DAMAGES = ["safetensors/truncated", "safetensors/trailing-bytes"];

/** The entries that are left out of what is whole: their names, as far as the findings list them, and their number. */
export function lostOf({ list, unlisted }: Findings): { readonly names: readonly string[]; readonly count: number } {
  const names = list.flatMap(({ rule, fqn }) => rule === LOST && fqn !== undefined ? [fqn] : []);
  return { names, count: names.length + (unlisted[LOST] ?? 0) };
}

/** The finding that says how a single file that opens is damaged. */
export const damageOf = ({ list }: Findings): Findings["list"][number] | undefined => list.find(({ rule }) => DAMAGES.includes(rule));

/** Whether only what is whole of the checkpoint is open, or could be. */
export const isDamaged = (opening: Opening | undefined, findings: Findings | undefined): boolean =>
  opening?.salvage === true || (opening?.files.length === 1 && findings !== undefined && damageOf(findings) !== undefined);
