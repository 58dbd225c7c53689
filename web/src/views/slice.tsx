/** A slice of a tensor: as a grid of numbers, as a heat map with its scale, and as a file. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { saveBlob } from "../download";
import { csvOf, npyOf, numbersOf, textsOf, type Elements } from "../elements";
import type { TensorDetail } from "../protocol";
import { firstSlice } from "../slice";
import { exactText, realText, shapeText } from "../text";
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
      <canvas ref={canvas} width={width} height={height} role="img" aria-label={`Heat map of ${rows} × ${columns} ${what} from ${realText(-most)} to ${realText(most)}`} />
      <figcaption><span>{most > 0 && "−"}{realText(most)}</span><span class="scale" aria-hidden="true" /><span>{realText(most)}</span></figcaption>
      {(width < columns || height < rows) && <p class="quiet">The first {height} × {width} are drawn.</p>}
    </figure>
  );
}

function Grid({ elements }: { elements: Elements }): JSX.Element | null {
  const texts = textsOf(elements), columns = Math.max(1, elements.shape.at(-1) ?? 1);
  if (!texts) return <p class="quiet">Elements of {elements.dtype} cannot be shown one by one.</p>;
  if (texts.length === 0) return <p>The slice has no elements.</p>;
  const rows = Array.from({ length: Math.min(MOST_ROWS, Math.ceil(texts.length / columns)) }, (_, r) => texts.slice(r * columns, r * columns + Math.min(columns, MOST_COLUMNS)));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Values">
      <table class="values"><tbody>{rows.map((r, i) => <tr key={i}>{r.map((v, j) => <td key={j}>{v}</td>)}</tr>)}</tbody></table>
      <p class="quiet">{texts.length > rows.length * (rows[0]?.length ?? 0) ? `The first ${rows.length} × ${rows[0]?.length ?? 0} of ` : ""}{shapeText(elements.shape)}: {exactText(texts.length)} {texts.length === 1 ? "value" : "values"}.</p>
    </div>
  );
}

export function SliceView({ detail }: { detail: TensorDetail }): JSX.Element {
  const model = useModel(), { selected } = model, elements = selected?.elements;
  const [text, setText] = useState(firstSlice(detail.shape));
  const npy = elements && npyOf(elements), name = detail.fqn.replace(/[^\w.-]+/g, "_");
  return (
    <>
      <form class="slice" onSubmit={(e) => { e.preventDefault(); void model.readSlice(text); }}>
        {detail.shape.length > 0 && <label>Slice <input type="text" aria-label="Slice" value={text} spellcheck={false} onInput={(e) => setText(e.currentTarget.value)} /></label>}
        <button type="submit">Show values</button>
      </form>
      {selected?.valuesTrouble && <TroubleBox trouble={selected.valuesTrouble} />}
      {elements && <>
        <Grid elements={elements} />
        {elements.shape.length > 0 && <HeatMap elements={elements} />}
        <p class="buttons">
          {npy && <button type="button" onClick={() => saveBlob(`${name}.npy`, npy)}>Save .npy</button>}
          {numbersOf(elements) && <button type="button" onClick={() => { const csv = csvOf(elements); if (csv) saveBlob(`${name}.csv`, csv); }}>Save CSV</button>}
          {!npy && <span class="quiet">NumPy has no {elements.dtype}, so there is no .npy of it.</span>}
        </p>
      </>}
    </>
  );
}
