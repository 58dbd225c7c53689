/** The columns beside the name in a tree of entries, for a checkpoint and for a comparison. */
import type { ComponentChildren, JSX } from "preact";
import type { SortKey } from "../entry_tree";
import type { Model } from "../model";
import { isFinitePair, type Compared, type DiffSide, type Mark, type OutlineName, type Real, type Row, type Sharding } from "../protocol";
import { bytesText, exactText, plural, realText, shapeText, visible } from "../text";

export interface Column {
  readonly name: string;
  /** What the bar in it shows. Where there is no room for bars, this is left out of the name. */
  readonly bar?: string;
  readonly className: string;
  readonly sort?: SortKey;
  cell(row: Row, model: Model): ComponentChildren;
}

/** How many rows this one stands for. A folded row stands for all of its siblings: every number on it counts them all. */
const alike = (row: Row): number => row.folded ? row.run : 1;

/** Whether sums may be shown. The module's sums of a group include everything below it, even what the filter hides. They are
 *  not shown while there is a filter. */
const hasTotals = (row: Row, model: Model): boolean => row.entry !== undefined || row.isTotal === true || !model.lists.get("all").filter.trim();

function Size({ row, model }: { row: Row; model: Model }): JSX.Element | null {
  if (!row.dtypes.length || !hasTotals(row, model)) return null;
  const bytes = row.bytes * alike(row), all = model.opened?.overview.bytes ?? 0;
  return <><span class="bar" aria-hidden="true"><span style={{ width: `${all ? Math.min(100, bytes / all * 100) : 0}%` }} /></span>{bytesText(bytes)}</>;
}

const THUMB_WIDTH = 40, THUMB_HEIGHT = 14;

/** How a tensor is divided: a small map of its chunks, and the same in words. */
function ShardingCell({ sharding: { text, boxes } }: { sharding: Sharding }): JSX.Element {
  return <><svg class="thumb" viewBox={`0 0 ${THUMB_WIDTH} ${THUMB_HEIGHT}`} aria-hidden="true">{boxes.map(([x = 0, y = 0, w = 0, h = 0], i) => <rect key={i} class="chunk" style={{ "--t": `${boxes.length > 1 ? i / (boxes.length - 1) * 100 : 40}%` }} x={x * THUMB_WIDTH} y={y * THUMB_HEIGHT} width={w * THUMB_WIDTH} height={h * THUMB_HEIGHT} />)}</svg><span title={text}>{text}</span></>;
}

const contentsOf = (hasObjects: boolean, isDivided: boolean): readonly Column[] => [
  { name: hasObjects ? "Shape or value" : "Shape", className: hasObjects && !isDivided ? "shape wide" : "shape", sort: "shape", cell: (row, model) => row.entry !== undefined ? (row.kind === "tensor" ? shapeText(row.shape) : row.value === undefined ? "" : <span class="value" title={visible(row.value)}>{visible(row.value)}</span>) : row.group && hasTotals(row, model) ? plural(row.entries * alike(row), "entry", "entries") : "" },
  { name: "dtype", className: isDivided ? "dtype" : "dtype alone", sort: "dtype", cell: (row) => row.entry !== undefined && row.kind !== "tensor" ? `${row.dtypes.join(", ")} ${row.dtypes.length ? "per rank" : row.kind}`.trim() : row.dtypes.length > 2 ? `${row.dtypes.length} dtypes` : <span title={row.dtypes.join(", ")}>{row.dtypes.join(", ")}</span> },
  { name: "Size", className: "number size", sort: "size", cell: (row, model) => <Size row={row} model={model} /> },
  ...(isDivided ? [{ name: "Sharding", className: "shards", sort: "shards", cell: (row: Row) => row.sharding ? <ShardingCell sharding={row.sharding} /> : "" } as const] : []),
];

const MARKS: Readonly<Record<Mark, readonly [string, string]>> = {
  same: ["=", "same"], match: ["≈", "values not compared"], changed: ["≠", "changed"], "only-a": ["−", "only in A"], "only-b": ["+", "only in B"], renamed: ["→", "renamed"],
};

export function markText({ mark, what, other, differing }: Compared): string {
  if (mark === "changed") return `changed: ${what.map((w) => w === "layout" ? "sharding" : w).join(", ")}`;
  if (mark === "renamed") return `renamed to ${visible(other ?? "")}${differing === undefined ? "" : differing ? "; values differ" : "; values equal"}`;
  return MARKS[mark][1];
}

function Change({ row: { compared, differing = 0 } }: { row: Row }): JSX.Element | null {
  if (!compared) return differing ? <span class="mark changed">{plural(differing, "difference")}</span> : null;
  const below = differing - (compared.mark === "same" || compared.mark === "match" ? 0 : 1); // an entry may have others below it
  const text = markText(compared) + (below > 0 ? `; ${plural(below, "difference")} below` : "");
  return <span class={`mark ${compared.mark}`} title={text}><span aria-hidden="true">{MARKS[compared.mark][0]}</span> {text}</span>;
}

const sideText = (s: DiffSide | undefined): string => s === undefined ? "–" : s.kind === "tensor" ? `${s.dtype ?? ""} ${shapeText(s.shape ?? [])}` : s.repr ?? s.kind;

/** Of numbers in rows; all of them are shown on hover. Cosines need more, because most are close to 1. */
const DIGITS = 4;

/** The largest difference between numbers. NaN on one side only, and the sign of zero, are differences without a size. */
const largestText = (maxAbs: Real): string => maxAbs === 0 ? "NaN or −0" : realText(maxAbs, DIGITS);

/** The share of the elements that differ, as a bar, and the largest difference. */
function Delta({ row }: { row: Row }): JSX.Element | null {
  const { compared } = row, elements = row.elements;
  if (!compared?.differing || !elements) return null;
  const share = Math.max(2, compared.differing / elements * 100), text = `${exactText(compared.differing)} of ${plural(elements, "value")} differ`;
  return <><span class="bar delta" role="img" aria-label={text} title={text}><span style={{ width: `${Math.min(100, share)}%` }} /></span>{compared.maxAbs === undefined ? plural(compared.differing, "value") : <span title={realText(compared.maxAbs)}>{largestText(compared.maxAbs)}</span>}</>;
}

const COMPARE: readonly Column[] = [
  { name: "Change", className: "change", sort: "change", cell: (row) => <Change row={row} /> },
  { name: "A", className: "side", sort: "dtype", cell: (row) => row.compared ? visible(sideText(row.compared.a)) : "" },
  { name: "B", className: "side", sort: "other", cell: (row) => row.compared ? visible(sideText(row.compared.b)) : "" },
  { name: "largest |A − B|", bar: "Share, ", className: "number size delta", sort: "delta", cell: (row) => <Delta row={row} /> },
];

/** A measure of a whole tensor. NaN and infinite values come before the measure of the others. */
function Measure({ row: { compared }, of }: { row: Row; of: "relative" | "cosine" }): JSX.Element | null {
  const measured = compared?.measured, value = measured?.[of];
  if (!measured) return null;
  return <>{!isFinitePair(measured) && <span class="level error" title="NaN or infinite values, which are left out of this number">NaN</span>} {value === undefined || Number.isNaN(value) ? "–" : <span title={realText(value)}>{of === "cosine" ? realText(value) : realText(value, DIGITS)}</span>}</>;
}

/** With measures, what each side is has room only in a wide list. */
const MEASURED: readonly Column[] = [
  ...COMPARE.map((c) => c.className === "side" ? { ...c, className: "side spare" } : c),
  { name: "‖A − B‖ / ‖B‖", className: "number measure", sort: "relative", cell: (row) => <Measure row={row} of="relative" /> },
  { name: "Cosine", className: "number measure", sort: "cosine", cell: (row) => <Measure row={row} of="cosine" /> },
];

/** A checkpoint in which no tensor is divided has no column for that, and neither has a comparison that has not read values one for
 *  their differences. */
export function columnsOf(outline: OutlineName, model: Model): readonly Column[] {
  const { comparison } = model.comparing;
  if (outline === "compare") return comparison?.measured?.length ? MEASURED : comparison?.diff?.summary.values_compared ? COMPARE : COMPARE.slice(0, -1);
  const overview = model.opened?.overview, chunks = overview?.files.reduce((sum, f) => sum + f.chunks, 0) ?? 0;
  return contentsOf(overview !== undefined && overview.objects + overview.opaque > 0, chunks > (overview?.tensors ?? 0));
}
