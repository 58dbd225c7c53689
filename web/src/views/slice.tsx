/** A slice of a tensor: as a grid of numbers, as a heat map with its scale, and as a file. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { sourceOptions } from "../command";
import { saveBlob } from "../download";
import { csvOf, npyOf, numbersOf, shortText, statisticsOf, textsOf, type Elements } from "../elements";
import type { TensorDetail } from "../protocol";
import { alongOf, alongText, firstSlice, moved, type Along } from "../slice";
import { exactText, plural, realText, shapeText } from "../text";
import { CopyCommand } from "./command";
import { useModel } from "./hooks";
import { TroubleBox } from "./parts";

const MOST_ROWS = 32, MOST_COLUMNS = 16, MOST_PIXELS = 512;
type Rgb = readonly [number, number, number];
const LOW: Rgb = [33, 102, 172], MIDDLE: Rgb = [247, 247, 247], HIGH: Rgb = [178, 24, 43], NAN: Rgb = [240, 200, 0];

const mix = (a: Rgb, b: Rgb, t: number): Rgb => [0, 1, 2].map((i) => Math.round((a[i] ?? 0) + ((b[i] ?? 0) - (a[i] ?? 0)) * t)) as unknown as Rgb;

/** Blue means below zero, red above zero and white zero. Values that are not finite are yellow. */
function colorOf(value: number, most: number): Rgb {
  if (!Number.isFinite(value)) return NAN;
  return value < 0 ? mix(MIDDLE, LOW, most ? -value / most : 0) : mix(MIDDLE, HIGH, most ? value / most : 0);
}

export function HeatMap({ elements, what = "values" }: { elements: Elements; what?: string }): JSX.Element | null {
  const canvas = useRef<HTMLCanvasElement>(null), numbers = numbersOf(elements);
  const columns = elements.shape.at(-1) ?? 1, rows = numbers ? Math.ceil(numbers.length / Math.max(1, columns)) : 0;
  const [width, height] = [Math.min(columns, MOST_PIXELS), Math.min(rows, MOST_PIXELS)];
  let most = 0;
  for (let i = 0; i < (numbers?.length ?? 0); i++) { const n = Math.abs(numbers?.[i] ?? 0); if (Number.isFinite(n) && n > most) most = n; }
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context || !numbers || !width || !height) return;
    const image = context.createImageData(width, height);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) image.data.set([...colorOf(numbers[y * columns + x] ?? NaN, most), 255], (y * width + x) * 4);
    }
    context.putImageData(image, 0, 0);
  }, [elements]);
  if (!numbers || !width || !height) return null;
  return (
    <figure class="heat">
      <canvas ref={canvas} width={width} height={height} role="img" aria-label={`Heat map of ${exactText(rows)} × ${exactText(columns)} ${what} from ${realText(-most)} to ${realText(most)}`} />
      <figcaption><span>{realText(-most)}</span><span class="scale" aria-hidden="true" /><span>{realText(most)}</span></figcaption>
      {(width < columns || height < rows) && <p class="quiet">The first {height} × {width} are drawn.</p>}
    </figure>
  );
}

/** The names of the rows and columns: their indices in the tensor. A row of more than two dimensions has several. */
function indicesOf(elements: Elements, along: readonly Along[] | undefined): { readonly row: (r: number) => string; readonly column: (c: number) => string } {
  const starts = along?.flatMap((a) => "at" in a ? [] : [a.from]) ?? elements.shape.map(() => 0), outer = elements.shape.slice(0, -1);
  const row = (r: number): string => {
    const at: number[] = [];
    for (let d = outer.length - 1, rest = r; d >= 0; d--) { const size = outer[d] ?? 1; at.unshift(rest % size + (starts[d] ?? 0)); rest = Math.floor(rest / size); }
    return at.join(",");
  };
  return { row, column: (c) => String(c + (starts[outer.length] ?? 0)) };
}

interface GridOf { readonly elements: Elements; readonly along: readonly Along[] | undefined; readonly label?: string; readonly most?: readonly [number, number]; readonly against?: Elements | undefined }

/** The values as a table. With `against`, what differs from that is marked. */
export function Grid({ elements, along, label = "Table of values", most: [mostRows, mostColumns] = [MOST_ROWS, MOST_COLUMNS], against }: GridOf): JSX.Element | null {
  const texts = textsOf(elements), others = against && textsOf(against), columns = Math.max(1, elements.shape.at(-1) ?? 1), { row, column } = indicesOf(elements, along), isScalar = elements.shape.length === 0, hasRows = elements.shape.length > 1;
  if (!texts) return <p class="quiet">Elements of {elements.dtype} cannot be shown one by one.</p>;
  if (texts.length === 0) return <p>The slice has no elements.</p>;
  const rows = Array.from({ length: Math.min(mostRows, Math.ceil(texts.length / columns)) }, (_, r) => texts.slice(r * columns, r * columns + Math.min(columns, mostColumns)));
  const classOf = (text: string, at: number) => [/nan|inf/.test(text) && "bad", others && others[at] !== text && "differs"].filter(Boolean).join(" ");
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table class="values">
        {!isScalar && <thead><tr>{hasRows && <td />}{rows[0]?.map((_, c) => <th key={c} scope="col">{column(c)}</th>)}</tr></thead>}
        <tbody>{rows.map((r, i) => <tr key={i}>{hasRows && <th scope="row">{row(i)}</th>}{r.map((v, j) => <td key={j} class={classOf(v, i * columns + j)} title={v}>{shortText(v)}</td>)}</tr>)}</tbody>
      </table>
      {texts.length > rows.length * (rows[0]?.length ?? 0) && <p class="quiet">The first {hasRows && `${rows.length} × `}{rows[0]?.length ?? 0} of {hasRows && `${shapeText(elements.shape)}: `}{plural(texts.length, "value")}.</p>}
    </div>
  );
}

/** Statistics of the values that were read. */
export function StatisticsLine({ elements, isWhole }: { elements: Elements; isWhole: boolean }): JSX.Element | null {
  const numbers = elements.dtype === "bool" ? undefined : numbersOf(elements), s = numbers && numbers.length > 1 ? statisticsOf(numbers) : undefined;
  if (!s) return null;
  const isFinite = Number.isFinite(s.mean), short = (n: number) => shortText(String(n));
  return (
    <p class="statistics" role="status"><span class="quiet">{isWhole ? "All values:" : "These values:"}</span> {isFinite && <>min {short(s.min)} · max {short(s.max)} · mean {short(s.mean)} · std {short(s.std)}</>}
      {s.zeros > 0 && ` · ${plural(s.zeros, "zero", "zeros")}`}{s.nan > 0 && <span class="bad"> · {exactText(s.nan)} NaN</span>}{s.inf > 0 && <span class="bad"> · {exactText(s.inf)} infinite</span>}</p>
  );
}

/** Buttons that move the slice along each dimension of which it shows only a part. At an end a button keeps the focus. */
function Steppers({ shape, along, go }: { shape: readonly number[]; along: readonly Along[]; go: (text: string) => void }): JSX.Element | null {
  const dims = along.map((a, d) => ({ a, d })).filter(({ a, d }) => "at" in a ? (shape[d] ?? 0) > 1 : a.to - a.from < (shape[d] ?? 0));
  if (dims.length === 0) return null;
  const isFirst = (a: Along) => ("at" in a ? a.at : a.from) === 0, isLast = (a: Along, d: number) => ("at" in a ? a.at + 1 : a.to) >= (shape[d] ?? 0);
  const step = (d: number, by: 1 | -1) => go(alongText(moved(along, d, by, shape), shape));
  return (
    <div class="steppers" role="group" aria-label="Position">
      {dims.map(({ a, d }) => <span key={d}><span class="quiet">dim {d}</span> <button type="button" class="small ghost" aria-label={`Back along dim ${d}`} aria-disabled={isFirst(a)} onClick={() => { if (!isFirst(a)) step(d, -1); }}>‹</button>
        <code>{"at" in a ? a.at : `${a.from}:${a.to}`}</code><span class="quiet"> of {shape[d]}</span><button type="button" class="small ghost" aria-label={`Forward along dim ${d}`} aria-disabled={isLast(a, d)} onClick={() => { if (!isLast(a, d)) step(d, 1); }}>›</button></span>)}
    </div>
  );
}

export function SliceView({ detail }: { detail: TensorDetail }): JSX.Element {
  const model = useModel(), { selected, opening } = model, elements = selected?.elements, { shape } = detail;
  const [text, setText] = useState(firstSlice(detail));
  const along = selected?.slice === undefined ? undefined : alongOf(selected.slice, shape), name = detail.fqn.replace(/[^\w.-]+/g, "_");
  const isShown = elements !== undefined && selected?.slice === text && !selected.valuesTrouble, npy = isShown && npyOf(elements);
  const go = (to: string) => { setText(to); void model.readSlice(to); };
  const isOwn = selected?.map.map === undefined, reference = `${detail.fqn}${shape.length && text.trim() ? `[${text.trim()}]` : ""}`;
  return (
    <>
      <form class="slice" onSubmit={(e) => { e.preventDefault(); void model.readSlice(text); }}>
        {shape.length > 0 && <label>Slice <input type="text" aria-label="Slice" value={text} spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} /></label>}
        {!isShown && <button type="submit">Show values</button>}
      </form>
      {along && elements && <Steppers shape={shape} along={along} go={go} />}
      {selected?.valuesTrouble && <TroubleBox trouble={selected.valuesTrouble} />}
      {elements && <>
        <StatisticsLine elements={elements} isWhole={elements.shape.reduce((a, b) => a * b, 1) === shape.reduce((a, b) => a * b, 1)} />
        <Grid elements={elements} along={along} />
        {elements.shape.some((size) => size > 1) && <HeatMap elements={elements} />}
      </>}
      <p class="buttons">
        {npy && <button type="button" class="small" onClick={() => saveBlob(`${name}.npy`, npy)}>Save .npy</button>}
        {isShown && numbersOf(elements) && <button type="button" class="small" onClick={() => { const csv = csvOf(elements); if (csv) saveBlob(`${name}.csv`, csv); }}>Save CSV</button>}
        {isOwn && opening && <CopyCommand command={{ name: "get", operands: [opening.title, reference], options: sourceOptions(opening), shell: { print: true } }} result="values" />}
        {isShown && !npy && <span class="quiet">NumPy has no {elements.dtype}, so there is no .npy of it.</span>}
      </p>
    </>
  );
}
