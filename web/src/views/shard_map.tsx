/** A tensor's chunks drawn over its global shape; what is in no chunk, or in several, stands out. The table below it says
 *  the same. */
import type { JSX } from "preact";
import type { TensorDetail } from "../protocol";
import { shardMap, type Box } from "../shardmap";
import { bytesText, exactText, plural, visible } from "../text";

const WIDTH = 360, MOST_DRAWN = 4096, MOST_LISTED = 200;

function colorsOf(detail: TensorDetail): Map<string | null, number> {
  const colors = new Map<string | null, number>();
  for (const { file } of detail.chunks) if (!colors.has(file)) colors.set(file, colors.size);
  return colors;
}

const ranges = (offsets: readonly number[], sizes: readonly number[]) => offsets.map((o, d) => `${o}–${o + (sizes[d] ?? 0)}`).join(", ") || "all";

export function ShardMapView({ detail }: { detail: TensorDetail }): JSX.Element {
  const map = shardMap(detail.shape, detail.chunks);
  const isPlain = detail.chunks.length === 1 && map.gaps.length + map.overlaps.length === 0; // nothing to see but that
  const height = map.dims[0] < 0 || isPlain ? 36 : Math.max(60, Math.min(260, WIDTH * map.rows / map.columns));
  const colors = colorsOf(detail);
  const [sx, sy] = [WIDTH / Math.max(1, map.columns), height / Math.max(1, map.rows)];
  const rect = (b: Box) => ({ x: b.x * sx, y: b.y * sy, width: Math.max(0.5, b.width * sx), height: Math.max(0.5, b.height * sy) });
  const shownDims = detail.shape.length > 2 ? ` Shown are dimensions ${map.dims[0]} (down) and ${map.dims[1]} (across) of ${detail.shape.length}.` : "";
  const state = map.gaps.length || map.overlaps.length
    ? [map.gaps.length ? "some elements are in no chunk (red)" : "", map.overlaps.length ? "some are in several (orange)" : ""].filter(Boolean).join(", ")
    : "every element is in one chunk";
  return (
    <section aria-label="Shard map">
      <h3>Shard map</h3>
      <p class="quiet">{plural(detail.chunks.length, "chunk")} in {plural(colors.size, "file")}: {state}.{shownDims}</p>
      <svg class="map" viewBox={`-1 -1 ${WIDTH + 2} ${height + 2}`} role="img" aria-label={`${plural(detail.chunks.length, "chunk")}; ${state}`}>
        <defs>
          <pattern id="gap" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="gap-back" width="6" height="6" /><rect class="gap-line" width="3" height="6" /></pattern>
          <pattern id="twice" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect class="twice-line" width="3" height="6" /></pattern>
        </defs>
        <rect class="map-back" width={WIDTH} height={height} />
        {map.chunks.slice(0, MOST_DRAWN).map((b, i) => {
          const chunk = detail.chunks[i];
          if (!chunk || b.width === 0 || b.height === 0) return null;
          return <rect key={i} {...rect(b)} class={`chunk c${(colors.get(chunk.file) ?? 0) % 8}`}><title>{`${ranges(chunk.offsets, chunk.sizes)} in ${chunk.file === null ? "a missing file" : visible(chunk.file)}`}</title></rect>;
        })}
        {map.gaps.map((b, i) => <rect key={`g${i}`} {...rect(b)} fill="url(#gap)" class="gap"><title>in no chunk</title></rect>)}
        {map.overlaps.map((b, i) => <rect key={`o${i}`} {...rect(b)} fill="url(#twice)" class="twice"><title>in more than one chunk</title></rect>)}
      </svg>
      {map.chunks.length > MOST_DRAWN && <p class="quiet">The first {exactText(MOST_DRAWN)} are drawn.</p>}
      <details>
        <summary>Chunks as a table</summary>
        <div class="scroll" tabIndex={0} role="region" aria-label="Chunks">
          <table>
            <thead><tr><th>Elements</th><th>File</th><th class="number">At byte</th><th class="number">Bytes</th></tr></thead>
            <tbody>
              {detail.chunks.slice(0, MOST_LISTED).map((c, i) => <tr key={i}><td>{ranges(c.offsets, c.sizes)}</td><td>{c.file === null ? <em>missing</em> : visible(c.file)}</td><td class="number">{exactText(c.byte_offset)}</td><td class="number">{bytesText(c.byte_length)}</td></tr>)}
            </tbody>
          </table>
        </div>
        {detail.chunks.length > MOST_LISTED && <p class="quiet">… and {exactText(detail.chunks.length - MOST_LISTED)} more.</p>}
      </details>
    </section>
  );
}
