/** Side A as a comparison sees it: the open checkpoint, or that checkpoint with a map applied. The latest one is kept, because
 *  the list, each entry and the values are separate requests. */
import type { Checkpoint, MapOptions, MappedCheckpoint } from "../../wasm/tessera.js";

let latest: { readonly of: Checkpoint; readonly key: string; readonly mapped: MappedCheckpoint } | undefined;

/** The module must be prepared if there is a map. */
export function withMap(checkpoint: Checkpoint, { map, ...direction }: MapOptions): MappedCheckpoint {
  if (map === undefined) return checkpoint;
  const key = JSON.stringify([map, direction]);
  if (latest?.of !== checkpoint || latest.key !== key) {
    latest?.mapped.close();
    latest = undefined;
    latest = { of: checkpoint, key, mapped: checkpoint.mapped({ map, ...direction }) };
  }
  return latest.mapped;
}
