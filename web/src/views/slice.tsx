/** A slice of a tensor: as a grid of numbers, as a figure, and as a file. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { sourceOptions } from "../command";
import { saveBlob } from "../download";
import { csvOf, npyOf, numbersOf, shortText, statisticsOf, textsOf, type Elements } from "../elements";
import type { TensorDetail } from "../protocol";
import { alongOf, alongText, firstSlice, indicesOf, moved, type Along } from "../slice";
import { exactText, plural, shapeText } from "../text";
import { CopyCommand } from "./command";
import { useModel } from "./hooks";
import { TroubleBox } from "./parts";
import { Plot } from "./plot";

const MOST_ROWS = 32, MOST_COLUMNS = 16;

interface GridOf { readonly elements: Elements; readonly along: readonly Along[] | undefined; readonly label?: string; readonly most?: readonly [number, number]; readonly against?: Elements | undefined }

/** The values as a table. With `against`, what differs from that is marked. */
export function Grid({ elements, along, label = "Table of values", most: [mostRows, mostColumns] = [MOST_ROWS, MOST_COLUMNS], against }: GridOf): JSX.Element | null {
  const texts = textsOf(elements), others = against && textsOf(against), columns = Math.max(1, elements.shape.at(-1) ?? 1), { row, column } = indicesOf(elements.shape, along), isScalar = elements.shape.length === 0, hasRows = elements.shape.length > 1;
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
        <Plot elements={elements} along={along} />
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
