/** The choice of a map, as options for the module and for a command. Pure. */
import type { MapOptions } from "../../wasm/tessera.js";

export interface MapChoice {
  /** The name of a built-in map, or of the file that has `text`. Empty: no map. */
  readonly name: string;
  /** tessera.map/1, unless the map is built in. */
  readonly text?: string;
  readonly inverse: boolean;
}

export const NO_MAP: MapChoice = { name: "", inverse: false };

export const mapOptionsOf = ({ name, text, inverse }: MapChoice): MapOptions => name ? { map: text ?? name, ...(inverse ? { inverse } : {}) } : {};

/** The same for a command: a map that is not built in is a file. */
export const mapNamed = ({ name, inverse }: MapChoice): MapOptions => name ? { map: name, inverse } : {};
