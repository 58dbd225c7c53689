/** A tensor's chunks, drawn over its global shape. Elements in no chunk or in several chunks stand out. The table below says
 *  the same. */
import type { JSX } from "preact";
import type { TensorDetail } from "../protocol";
import { rankOf } from "../ranks";
import { coverageText, shardMap, type Box } from "../shardmap";
import { useModel } from "./hooks";
import { bytesText, exactText, plural, visible } from "../text";

const FAULTS: readonly string[] = ["layout/hole", "layout/overlap", "layout/out-of-range"];
const WIDTH = 360, MOST_DRAWN = 4096, MOST_LISTED = 200, MOST_NAMED = 16;

/** The module's name for what a map computes and no file has. */
const isComputed = (file: string | null): boolean => /^\ufffdcomputed \d+$/.test(file ?? "");
const fileText = (file: string | null): string => file === null ? "a file that is absent" : isComputed(file) ? "the result of the map" : visible(file);

function colorsOf(detail: TensorDetail): Map<string | null, number> {
  const colors = new Map<string | null, number>();
  for (const { file } of detail.chunks) if (!colors.has(file)) colors.set(file, colors.size);
  return colors;
}

const ranges = (offsets: readonly number[], sizes: readonly number[]) => offsets.map((o, d) => `${o}–${o + (sizes[d] ?? 0)}`).join(", ") || "all";

/** The legend: which colour belongs to which rank and file. */
function Legend({ colors, absent }: { colors: ReadonlyMap<string | null, number>; absent: ReadonlySet<string> }): JSX.Element {
  const files = [...colors];
  return (
    <ul class="legend" aria-label="Ranks and files">
      {files.slice(0, MOST_NAMED).map(([file, color]) => {
        const rank = file === null ? undefined : rankOf(file);
        return <li key={file}><svg viewBox="0 0 10 10" aria-hidden="true"><rect class={`chunk c${color % 8}${file === null || absent.has(file) ? " away" : ""}`} width="10" height="10" /></svg>{rank !== undefined && <strong>rank {rank} </strong>}<span class="quiet">{fileText(file)}{file !== null && absent.has(file) && " (absent)"}</span></li>;
      })}
      {files.length > MOST_NAMED && <li class="quiet">and {plural(files.length - MOST_NAMED, "more file", "more files")}</li>}
    </ul>
  );
}

export function ShardMapView({ detail }: { detail: TensorDetail }): JSX.Element {
  const map = shardMap(detail.shape, detail.chunks);
  // There is nothing to see except the one chunk.
  const isPlain = detail.chunks.length === 1 && map.gaps.length + map.overlaps.length === 0;
  const height = map.dims[0] < 0 || isPlain ? 36 : Math.max(60, Math.min(260, WIDTH * map.rows / map.columns));
  const colors = colorsOf(detail);
  const [sx, sy] = [WIDTH / Math.max(1, map.columns), height / Math.max(1, map.rows)];
  const rect = (b: Box) => ({ x: b.x * sx, y: b.y * sy, width: Math.max(0.5, b.width * sx), height: Math.max(0.5, b.height * sy) });
  const shownDims = detail.shape.length > 2 ? ` Shown are dimensions ${map.dims[0]} (down) and ${map.dims[1]} (across) of ${detail.shape.length}.` : "";
  const model = useModel(), absent = new Set(model.opened?.overview.absent), isAway = ({ file }: { file: string | null }) => file === null || absent.has(file);
  const away = detail.chunks.filter(isAway).length, count = plural(detail.chunks.length, "chunk"), named = [...colors.keys()].filter((f) => f !== null && !isComputed(f)).length, computed = detail.chunks.filter(({ file }) => isComputed(file)).length;
  const isMapped = model.selected?.map.map !== undefined; // its findings are about the checkpoint's own entries
  const isSound = !isMapped && !model.findings?.list.some((f) => f.fqn === detail.fqn && FAULTS.includes(f.rule)) && !FAULTS.some((rule) => model.findings?.unlisted[rule]);
  const state = coverageText(detail, map, isAway, isSound);
  const places = [computed > 0 && `${computed < detail.chunks.length ? `, ${exactText(computed)} of them` : ","} computed by the map${named ? ", the others" : ""}`, named > 0 && ` in ${plural(named, "file")}`, away > 0 && <strong class="bad">{away < detail.chunks.length ? `, ${exactText(away)} of them absent` : detail.chunks.length === 1 ? ", which is absent" : ", all of which are absent"}</strong>];
  return (
    <section aria-label="Shard map">
      <h3>Shard map</h3>
      <p class="quiet">{count}{places}: {state}.{shownDims}</p>
      <svg class="map" viewBox={`-1 -1 ${WIDTH + 2} ${height + 2}`} role="img" aria-label={`${count}${away ? `, ${exactText(away)} absent` : ""}; ${state}`}>
        <defs>
          <pattern id="gap" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="gap-back" width="6" height="6" /><rect class="gap-line" width="3" height="6" /></pattern>
          <pattern id="twice" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect class="twice-line" width="3" height="6" /></pattern>
        </defs>
        <rect class="map-back" width={WIDTH} height={height} />
        {map.chunks.slice(0, MOST_DRAWN).map((b, i) => {
          const chunk = detail.chunks[i];
          if (!chunk || b.width === 0 || b.height === 0) return null;
          return <rect key={i} {...rect(b)} class={`chunk c${(colors.get(chunk.file) ?? 0) % 8}${isAway(chunk) ? " away" : ""}`}><title>{`${ranges(chunk.offsets, chunk.sizes)} in ${fileText(chunk.file)}${chunk.file !== null && isAway(chunk) ? ", which is absent" : ""}`}</title></rect>;
        })}
        {map.gaps.map((b, i) => <rect key={`g${i}`} {...rect(b)} fill="url(#gap)" class="gap"><title>not in any chunk</title></rect>)}
        {map.overlaps.map((b, i) => <rect key={`o${i}`} {...rect(b)} fill="url(#twice)" class="twice"><title>in more than one chunk</title></rect>)}
      </svg>
      <Legend colors={colors} absent={absent} />
      {map.chunks.length > MOST_DRAWN && <p class="quiet">The first {exactText(MOST_DRAWN)} are drawn.</p>}
      <details>
        <summary>Chunks as a table</summary>
        <div class="scroll" tabIndex={0} role="region" aria-label="Chunks">
          <table>
            <thead><tr><th>Elements</th><th>File</th><th class="number">At byte</th><th class="number">Bytes</th></tr></thead>
            <tbody>
              {detail.chunks.slice(0, MOST_LISTED).map((c, i) => <tr key={i}><td>{ranges(c.offsets, c.sizes)}</td><td>{fileText(c.file)}{c.file !== null && absent.has(c.file) && <em> absent</em>}</td><td class="number">{exactText(c.byte_offset)}</td><td class="number">{bytesText(c.byte_length)}</td></tr>)}
            </tbody>
          </table>
        </div>
        {detail.chunks.length > MOST_LISTED && <p class="quiet">… and {exactText(detail.chunks.length - MOST_LISTED)} more.</p>}
      </details>
    </section>
  );
}
