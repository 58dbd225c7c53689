/** A command that does what the page does, as a line for a shell and as a call of the Python package. Pure. */
import type { Opening } from "./protocol";

/** Options have the names of the npm package; those that are undefined or false are not given, and lists are given repeatedly. */
export interface Command {
  readonly name: string;
  readonly operands: readonly string[];
  readonly options: Readonly<Record<string, unknown>>;
  /** Options that only the command line has. */
  readonly shell?: Readonly<Record<string, unknown>>;
}

/** What a command needs to know of the checkpoint that is open. */
export type CommandSource = Pick<Opening, "title" | "part" | "shards" | "salvage">;
export const NO_SOURCE: CommandSource = { title: "" };

/** How the checkpoint was opened. A map of shards that is not built in is a file. */
export const sourceOptions = ({ part, shards, salvage }: CommandSource): Command["options"] =>
  ({ part, shards: shards?.trimStart().startsWith("{") ? "shards.json" : shards, salvage });

const given = (options: Command["options"]): (readonly [string, unknown])[] =>
  Object.entries(options).filter(([, value]) => value !== undefined && value !== false && !(Array.isArray(value) && value.length === 0));

const quoted = (text: string): string => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
const withSeparator = (key: string, separator: string): string => key.replace(/[A-Z]/g, (letter) => `${separator}${letter.toLowerCase()}`);

export function shellText({ name, operands, options, shell = {} }: Command): string {
  const words = given({ ...options, ...shell }).flatMap(([key, value]) => [value].flat().map((one) => `--${withSeparator(key, "-")}${one === true ? "" : ` ${quoted(String(one))}`}`));
  return ["tessera", name, ...operands.map(quoted), ...words].join(" ");
}

const pythonValue = (value: unknown): string => value === true ? "True" : Array.isArray(value) ? `[${value.map(pythonValue).join(", ")}]` : JSON.stringify(value);

/** Assigns the result of the call to `result`. */
export function pythonText({ name, operands, options }: Command, result = "result"): string {
  const call = [...operands.map(pythonValue), ...given(options).map(([key, value]) => `${withSeparator(key, "_")}=${pythonValue(value)}`)];
  return `import tessera\n\n${result} = tessera.${name}(${call.join(", ")})\n`;
}
