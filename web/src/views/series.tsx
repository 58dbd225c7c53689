/** A series of checkpoints as columns: a number per layer, as a heat strip. This script is loaded on demand. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { layersOf, type LayerRow, type Metric } from "../layers";
import { sizeOf } from "../model";
import type { Column } from "../series";
import { absentText, bytesText, exactText, realText, visible } from "../text";
import { useModel } from "./hooks";
import { Opener } from "./opener";
import { TroubleBox } from "./parts";
import { Table } from "./table";

const METRICS: readonly (readonly [Metric, string])[] = [["norm", "Norm"], ["std", "Standard deviation"], ["nan", "NaN and infinity"]];
const MOST = 400;
/** The least range of a scale, as a share of the largest number: smaller changes are fainter than a full scale. */
const LEAST_RANGE = 0.1;
const shade = (value: number, [low, high]: readonly [number, number]): number => high > low ? Math.round((value - low) / Math.max(high - low, LEAST_RANGE * Math.abs(high)) * 100) : 0;

/** Each row has its own scale, so that a layer that changes from step to step is seen whatever the size of the others. */
function Cells({ row, metric }: { row: LayerRow; metric: Metric }): JSX.Element {
  const known = row.values.filter((v) => v !== undefined), range = [Math.min(...known), Math.max(...known)] as const;
  return <>{row.values.map((v, i) => v === undefined ? <td key={i} class="number quiet">–</td>
    : metric === "nan" ? <td key={i} class={`number${v ? " nan" : ""}`}>{exactText(v)}</td>
    : <td key={i} class="number heat-cell" style={{ "--heat": `${shade(v, range)}%` }}>{realText(v)}</td>)}</>;
}

function Strip({ columns }: { columns: readonly Column[] }): JSX.Element {
  const [metric, setMetric] = useState<Metric>("norm"), rows = layersOf(columns.map((c) => c.statistics), metric), bad = layersOf(columns.map((c) => c.statistics), "nan").some((r) => r.values.some((v) => v));
  return (
    <>
      <p class="buttons" role="group" aria-label="Number per layer">{METRICS.map(([value, label]) => <button key={value} type="button" aria-pressed={metric === value} onClick={() => setMetric(value)}>{label}{value === "nan" && bad && <span class="bad"> ●<span class="hidden"> found</span></span>}</button>)}</p>
      <Table label="Layers" kind="series" head={<><th>Layer</th>{columns.map((c, i) => <th key={i} class="number">{visible(c.opening.title)}</th>)}</>} rows={rows} most={MOST} more=" layers"
        row={(row) => <tr key={row.layer}><th scope="row"><code>{visible(row.layer)}</code></th><Cells row={row} metric={metric} /></tr>} />
      <p class="quiet">{metric === "nan" ? "The number of values that are NaN or infinite." : "Of the finite values of all floating-point tensors in a layer, optimizer state aside. In each row, the stronger the colour of a cell, the larger its number."}</p>
    </>
  );
}

export function SeriesView(): JSX.Element {
  const model = useModel(), { series } = model.comparing, { columns, unread } = series, [isAdding, setAdding] = useState(false);
  return (
    <section aria-label="Series">
      <h2>Layer by layer</h2>
      <ul class="columns" aria-label="Columns">
        {columns.map((c, i) => <li key={i}>{visible(c.opening.title)}{c.absent.length > 0 && <span class="quiet"> – {absentText(c.absent.length)}</span>}{i > 1 && <> <button type="button" class="small" onClick={() => series.remove(c)} aria-label={`Remove ${visible(c.opening.title)}`}>✕</button></>}</li>)}
      </ul>
      <p class="buttons">
        {unread.length > 0 && <button type="button" disabled={series.isReading} onClick={() => void series.read()}>Read norms, deviations and NaN ({series.isReading ? "reading …" : `reads ${bytesText(unread.reduce((sum, c) => sum + sizeOf(c.opening), 0))}`})</button>}
        <button type="button" aria-expanded={isAdding} onClick={() => setAdding(!isAdding)}>Add a checkpoint</button>
      </p>
      {series.trouble && <TroubleBox trouble={series.trouble} />}
      {columns.map((c, i) => c.trouble && <TroubleBox key={i} trouble={c.trouble} />)}
      {isAdding && <Opener about="another checkpoint" open={(prepare) => { setAdding(false); void series.add(prepare); }} />}
      {columns.some((c) => c.statistics) && <Strip columns={columns.filter((c) => c.absent.length === 0)} />}
    </section>
  );
}
