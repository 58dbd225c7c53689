/** The choice of a map, as options for the module and as a command line. Pure. */
import type { MapOptions } from "../../wasm/tessera.js";
import { quoted } from "./target";

export interface MapChoice {
  /** The name of a built-in map, or of the file that has `text`. Empty: no map. */
  readonly name: string;
  /** tessera.map/1, unless the map is built in. */
  readonly text?: string;
  readonly inverse: boolean;
}

export const NO_MAP: MapChoice = { name: "", inverse: false };

export const mapOptionsOf = ({ name, text, inverse }: MapChoice): MapOptions => name ? { map: text ?? name, ...(inverse ? { inverse } : {}) } : {};

/** Returns what follows the other arguments of a command. */
export const mapCommand = ({ name, inverse }: MapChoice): string => name && ` --map ${quoted(name)}${inverse ? " --inverse" : ""}`;
