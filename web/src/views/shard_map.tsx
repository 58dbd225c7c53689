/** A tensor's chunks, drawn over its global shape, with the offsets of their borders and the ranks that hold them, with
 *  their coordinates where the mesh is known. Elements in no chunk or in several chunks stand out. The legend and the table below say the same, and what the pointer is on is marked in
 *  all three. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { chunkCoordinates } from "../mesh";
import type { Chunk, TensorDetail } from "../protocol";
import { rankOf } from "../ranks";
import { coverageText, shardMap, type Box } from "../shardmap";
import { useModel, useWidth } from "./hooks";
import { bytesText, exactText, plural, visible } from "../text";
import { Table } from "./table";

const FAULTS: readonly string[] = ["layout/hole", "layout/overlap", "layout/out-of-range"];
const LEFT = 44, TOP = 34, BOTTOM = 6, MOST_DRAWN = 4096, MOST_LISTED = 200, MOST_NAMED = 16, MOST_LINKED = 512;
const LETTER = 6.6, LINE = 13, DARK_AT = 60;

/** The module's name for what a map computes and no file has. */
const isComputed = (file: string | null): boolean => /^\ufffdcomputed \d+$/.test(file ?? "");
/** A chunk without a file has no place in the files that exist: its file is unknown, or does not reach that far. */
const fileText = (file: string | null): string => file === null ? "missing" : isComputed(file) ? "the result of the map" : visible(file);

/** Places the files on one ramp of colour, by rank if their names state it: from 0 to 100 %. */
function rampOf(detail: TensorDetail): Map<string | null, number> {
  const files = [...new Set(detail.chunks.map((c) => c.file))].sort((a, b) => (rankOf(a ?? "") ?? Infinity) - (rankOf(b ?? "") ?? Infinity) || 0);
  return new Map(files.map((file, i) => [file, files.length > 1 ? Math.round(i / (files.length - 1) * 1000) / 10 : 40]));
}

const ramp = (t: number, isAway: boolean): JSX.CSSProperties => ({ "--t": `${t}%`, ...(isAway ? { fill: "url(#away)" } : {}) }) as JSX.CSSProperties;

const ranges = (offsets: readonly number[], sizes: readonly number[]) => offsets.map((o, d) => `${o}–${o + (sizes[d] ?? 0)}`).join(", ") || "all";

/** The legend: which colour belongs to which rank and file. */
function Legend({ colors, places, absent, over, point }: { colors: ReadonlyMap<string | null, number>; places: ReadonlyMap<string | null, string>; absent: ReadonlySet<string>; over: string | null | undefined; point: (file: string | null | undefined) => void }): JSX.Element {
  const files = [...colors], isAway = (file: string | null) => file === null || absent.has(file);
  return (
    <ul class="legend" aria-label="Ranks and files" onPointerLeave={() => point(undefined)}>
      {files.slice(0, MOST_NAMED).map(([file, t]) => {
        const rank = file === null ? undefined : rankOf(file);
        return <li key={file} class={over === file ? "over" : ""} onPointerEnter={() => point(file)}><svg viewBox="0 0 10 10" aria-hidden="true"><rect class={`chunk${isAway(file) ? " away" : ""}`} style={ramp(t, isAway(file))} width="10" height="10" /></svg>{rank !== undefined && <strong>rank {rank} </strong>}{places.has(file) && `${places.get(file)} `}<span class="quiet">{fileText(file)}{file !== null && absent.has(file) && " (absent)"}</span></li>;
      })}
      {files.length > MOST_NAMED && <li class="quiet">and {plural(files.length - MOST_NAMED, "more file", "more files")}</li>}
    </ul>
  );
}

/** The offsets at which chunks begin or end along a dimension, as far as there is room for their texts. */
function ticksOf(chunks: readonly Chunk[], dim: number, size: number, room: number, pixels: (text: string) => number): number[] {
  const borders = new Set([0, size]);
  for (const c of chunks.slice(0, MOST_DRAWN)) { borders.add(c.offsets[dim] ?? 0); borders.add((c.offsets[dim] ?? 0) + (c.sizes[dim] ?? 0)); }
  const kept: number[] = [];
  let free = -Infinity;
  for (const at of [...borders].filter((b) => b <= size).sort((a, b) => a - b)) {
    const half = pixels(String(at)) / 2, place = at / Math.max(1, size) * room;
    if (place - half >= free) { kept.push(at); free = place + half + 4; }
    else if (at === size) { kept[kept.length - 1] = at; }
  }
  return kept;
}

/** The dimensions, with their sizes and the offsets of the borders of chunks. */
function Axes({ detail, dims: [down, across], width, height }: { detail: TensorDetail; dims: readonly [number, number]; width: number; height: number }): JSX.Element {
  const { shape, chunks } = detail, columns = shape[across] ?? 1, rows = shape[down] ?? 1, text = (n: number) => String(n);
  return (
    <g class="axes" aria-hidden="true">
      {across >= 0 && <><text x={width / 2} y={-20} text-anchor="middle" class="dim">dim {across} → {exactText(columns)}</text>
        {ticksOf(chunks, across, columns, width, (t) => t.length * LETTER).map((at) => <g key={at}><line x1={at / Math.max(1, columns) * width} x2={at / Math.max(1, columns) * width} y1={-4} y2={0} /><text x={at / Math.max(1, columns) * width} y={-7} text-anchor={at === columns ? "end" : at === 0 ? "start" : "middle"}>{text(at)}</text></g>)}</>}
      {down >= 0 && <><text x={-LEFT + 11} y={height / 2} transform={`rotate(-90 ${-LEFT + 11} ${height / 2})`} text-anchor="middle" class="dim">dim {down} → {exactText(rows)}</text>
        {ticksOf(chunks, down, rows, height, () => LINE).map((at) => <g key={at}><line x1={-4} x2={0} y1={at / Math.max(1, rows) * height} y2={at / Math.max(1, rows) * height} /><text x={-6} y={at / Math.max(1, rows) * height + 3} text-anchor="end">{text(at)}</text></g>)}</>}
    </g>
  );
}

/** Says how many chunks have absent files, and how many have no file. */
function awayText(chunks: number, absent: number, missing: number): string {
  const kinds = ([[absent, "absent"], [missing, "missing"]] as const).filter(([n]) => n > 0), [, word] = kinds.length === 1 && absent + missing === chunks ? kinds[0] ?? [] : [];
  if (word) return chunks === 1 ? `, which is ${word}` : `, all of which are ${word}`;
  return kinds.map(([n, what], i) => i ? ` and ${exactText(n)} ${what}` : `, ${exactText(n)} of them ${what}`).join("");
}

/** `of` says whose map it is, if the page shows two. */
export function ShardMapView({ detail, of }: { detail: TensorDetail; of?: string }): JSX.Element {
  const map = shardMap(detail.shape, detail.chunks);
  // There is nothing to see except the one chunk.
  const isPlain = detail.chunks.length === 1 && map.gaps.length + map.overlaps.length === 0;
  const colors = rampOf(detail), isBare = isPlain || detail.shape.length === 0, left = map.dims[0] < 0 || isBare ? 1 : LEFT, top = isBare ? 1 : TOP;
  const [box, all] = useWidth(), width = all - left - 1, height = isBare ? 24 : map.dims[0] < 0 ? 36 : Math.max(96, Math.min(240, width * map.rows / map.columns));
  const [over, setOver] = useState<string | null>(), [one, setOne] = useState<number>(), isLinked = detail.chunks.length <= MOST_LINKED;
  const point = (file: string | null | undefined, chunk?: number) => { if (isLinked) { setOver(file); setOne(chunk); } };
  const [sx, sy] = [width / Math.max(1, map.columns), height / Math.max(1, map.rows)];
  const rect = (b: Box) => ({ x: b.x * sx, y: b.y * sy, width: Math.max(0.5, b.width * sx), height: Math.max(0.5, b.height * sy) });
  const shownDims = detail.shape.length > 2 && !isPlain ? ` Shown are dimensions ${map.dims[0]} (down) and ${map.dims[1]} (across) of ${detail.shape.length}.` : "";
  const coordinates = chunkCoordinates(detail), ofFile = new Map<string | null, string>(); // a file may hold several chunks
  coordinates?.forEach((text, i) => { const file = detail.chunks[i]?.file; if (file !== undefined) ofFile.set(file, ofFile.has(file) && ofFile.get(file) !== text ? "" : text); });
  const model = useModel(), absent = new Set(model.opened?.overview.absent), isAway = ({ file }: { file: string | null }) => file === null || absent.has(file);
  const missing = detail.chunks.filter(({ file }) => file === null).length, away = awayText(detail.chunks.length, detail.chunks.filter(isAway).length - missing, missing), count = plural(detail.chunks.length, "chunk"), named = [...colors.keys()].filter((f) => f !== null && !isComputed(f)).length, computed = detail.chunks.filter(({ file }) => isComputed(file)).length;
  const isMapped = model.selected?.map.map !== undefined; // its findings are about the checkpoint's own entries
  const isSound = !isMapped && !model.findings?.list.some((f) => f.fqn === detail.fqn && FAULTS.includes(f.rule)) && !FAULTS.some((rule) => model.findings?.unlisted[rule]);
  const state = coverageText(detail, map, isAway, isSound);
  const places = [computed > 0 && `${computed < detail.chunks.length ? `, ${exactText(computed)} of them` : ","} computed by the map${named ? ", the others" : ""}`, named > 0 && ` in ${plural(named, "file")}`, away && <strong class="bad">{away}</strong>];
  return (
    <section aria-label={of ? `Shard map of ${of}` : "Shard map"}>
      <h3>Shard map</h3>
      <p class="quiet">{count}{places}: {state}.{shownDims}</p>
      <svg ref={box} class="map" viewBox={`${-left} ${-top} ${all} ${height + top + BOTTOM}`} role="img" aria-label={`${count}${away}; ${state}`} onPointerLeave={() => point(undefined)}>
        <defs>
          <pattern id="gap" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="gap-back" width="6" height="6" /><rect class="gap-line" width="3" height="6" /></pattern>
          <pattern id="twice" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect class="twice-line" width="3" height="6" /></pattern>
          <pattern id="away" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="away-line" width="1" height="5" /></pattern>
        </defs>
        <rect class="map-back" width={width} height={height} />
        {map.chunks.slice(0, MOST_DRAWN).map((b, i) => {
          const chunk = detail.chunks[i];
          if (!chunk || b.width === 0 || b.height === 0) return null;
          const t = colors.get(chunk.file) ?? 0, isOver = one === i || (one === undefined && over !== undefined && over === chunk.file), place = rect(b), rank = chunk.file === null ? undefined : rankOf(chunk.file);
          const hasRoom = rank !== undefined && place.width > LETTER * (String(rank).length + 1) && place.height > LINE;
          const at = coordinates?.[i], isBelow = at !== undefined && place.width > LETTER * (at.length + 1) && place.height > 2.4 * LINE, ink = isAway(chunk) ? "" : t < DARK_AT ? "on-0" : "on-1", middle = place.y + place.height / 2 + 4;
          return (
            <g key={i} class={over === undefined || isOver ? "" : "faint"} onPointerEnter={() => point(chunk.file, i)}>
              <rect {...place} class={`chunk${isAway(chunk) ? " away" : ""}${isOver ? " over" : ""}`} style={ramp(t, isAway(chunk))}><title>{`${ranges(chunk.offsets, chunk.sizes)}${at === undefined ? "" : ` of ${at}`}${chunk.file === null ? ", which is missing" : ` in ${fileText(chunk.file)}${isAway(chunk) ? ", which is absent" : ""}`}`}</title></rect>
              {hasRoom && <text class={`rank ${ink}`} x={place.x + place.width / 2} y={isBelow ? middle - LINE / 2 : middle} text-anchor="middle" aria-hidden="true">{rank}</text>}
              {isBelow && <text class={ink} x={place.x + place.width / 2} y={hasRoom ? middle + LINE / 2 : middle} text-anchor="middle" aria-hidden="true">{at}</text>}
            </g>
          );
        })}
        {map.gaps.map((b, i) => <rect key={`g${i}`} {...rect(b)} fill="url(#gap)" class="gap"><title>not in any chunk</title></rect>)}
        {map.overlaps.map((b, i) => <rect key={`o${i}`} {...rect(b)} fill="url(#twice)" class="twice"><title>in more than one chunk</title></rect>)}
        {!isBare && <Axes detail={detail} dims={map.dims} width={width} height={height} />}
      </svg>
      <Legend colors={colors} places={ofFile} absent={absent} over={over} point={point} />
      {map.chunks.length > MOST_DRAWN && <p class="quiet">The first {exactText(MOST_DRAWN)} are drawn.</p>}
      <details>
        <summary>Chunks as a table</summary>
        <Table label="Chunks" head={<><th>Elements</th>{coordinates && <th>Mesh</th>}<th>File</th><th class="number">At byte</th><th class="number">Bytes</th></>} rows={detail.chunks} most={MOST_LISTED} onLeave={() => point(undefined)}
          row={(c, i) => <tr key={i} class={one === i || (one === undefined && over !== undefined && over === c.file) ? "over" : ""} onPointerEnter={() => point(c.file, i)}><td>{ranges(c.offsets, c.sizes)}</td>{coordinates && <td>{coordinates[i]}</td>}<td>{fileText(c.file)}{c.file !== null && absent.has(c.file) && <em> absent</em>}</td><td class="number">{exactText(c.byte_offset)}</td><td class="number">{bytesText(c.byte_length)}</td></tr>} />
      </details>
    </section>
  );
}
