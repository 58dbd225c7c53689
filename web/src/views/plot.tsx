/** Values as a figure: a vector as a line, everything else as a heat map with its scale. What the pointer is on is said below. */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { numbersOf, type Elements } from "../elements";
import { indicesOf, type Along } from "../slice";
import { exactText, realText } from "../text";
import { useWidth } from "./hooks";

const MOST_PIXELS = 512, HEIGHT = 120, EDGE = 4, MOST_MARKS = 256;
type Rgb = readonly [number, number, number];
const LOW: Rgb = [33, 102, 172], MIDDLE: Rgb = [247, 247, 247], HIGH: Rgb = [178, 24, 43], NAN: Rgb = [240, 200, 0];

interface PlotOf { readonly elements: Elements; readonly along: readonly Along[] | undefined; readonly what?: string }
interface Drawn { readonly numbers: ArrayLike<number>; readonly what: string; readonly point: (at: number | undefined) => void }

export function Plot({ elements, along, what = "values" }: PlotOf): JSX.Element | null {
  const numbers = useMemo(() => numbersOf(elements), [elements]), [pointed, point] = useState<number>(), columns = elements.shape.at(-1) ?? 1, long = elements.shape.filter((size) => size > 1).length;
  if (!numbers?.length || long === 0) return null;
  const { row, column } = indicesOf(elements.shape, along), at = pointed !== undefined && pointed < numbers.length ? pointed : undefined;
  const placeOf = (i: number) => {
    const places = [row(Math.floor(i / columns)), column(i % columns)].filter(Boolean).join().split(",");
    return `[${(along ?? elements.shape).map((a) => typeof a === "object" && "at" in a ? a.at : places.shift()).join(", ")}]`;
  };
  return (
    <figure class="plot" onPointerLeave={() => point(undefined)}>
      {long === 1 ? <Line numbers={numbers} what={what} point={point} at={at} ends={[placeOf(0), placeOf(numbers.length - 1)]} /> : <HeatMap numbers={numbers} columns={columns} what={what} point={point} />}
      <p class="quiet" aria-hidden="true">{at === undefined ? "\u00a0" : `${placeOf(at)}  ${realText(numbers[at] ?? NaN)}`}</p>
    </figure>
  );
}

const mix = (a: Rgb, b: Rgb, t: number): Rgb => [0, 1, 2].map((i) => Math.round((a[i] ?? 0) + ((b[i] ?? 0) - (a[i] ?? 0)) * t)) as unknown as Rgb;

/** Blue means below zero, red above zero and white zero. Values that are not finite are yellow. */
function colorOf(value: number, most: number): Rgb {
  if (!Number.isFinite(value)) return NAN;
  return value < 0 ? mix(MIDDLE, LOW, most ? -value / most : 0) : mix(MIDDLE, HIGH, most ? value / most : 0);
}

/** The number of the pixel under the pointer, along one side of a drawing. */
const under = (place: number, from: number, size: number, count: number): number => Math.max(0, Math.min(count - 1, Math.floor((place - from) / size * count)));

function HeatMap({ numbers, columns, what, point }: Drawn & { columns: number }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null), rows = Math.ceil(numbers.length / columns), [width, height] = [Math.min(columns, MOST_PIXELS), Math.min(rows, MOST_PIXELS)];
  const most = useMemo(() => { let found = 0; for (let i = 0; i < numbers.length; i++) { const n = Math.abs(numbers[i] ?? 0); if (Number.isFinite(n) && n > found) found = n; } return found; }, [numbers]);
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const image = context.createImageData(width, height);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) image.data.set([...colorOf(numbers[y * columns + x] ?? NaN, most), 255], (y * width + x) * 4);
    }
    context.putImageData(image, 0, 0);
  }, [numbers]);
  const hear = (e: PointerEvent) => {
    const box = canvas.current?.getBoundingClientRect();
    if (box) point(under(e.clientY, box.top, box.height, height) * columns + under(e.clientX, box.left, box.width, width));
  };
  return (
    <>
      <canvas ref={canvas} width={width} height={height} role="img" aria-label={`Heat map of ${exactText(rows)} × ${exactText(columns)} ${what} from ${realText(-most)} to ${realText(most)}`} onPointerMove={hear} />
      <figcaption><span>{realText(-most)}</span><span class="scale" aria-hidden="true" /><span>{realText(most)}</span></figcaption>
      {(width < columns || height < rows) && <p class="quiet">The first {height} × {width} are drawn.</p>}
    </>
  );
}

interface Course { readonly path: string; readonly low: number; readonly high: number; readonly odd: readonly number[]; readonly y: (value: number) => number }

/** The line through the values, with gaps where they are not finite. Where several share a pixel, it goes from the least of them to the
 *  largest. */
function courseOf(numbers: ArrayLike<number>, width: number): Course {
  const count = numbers.length, odd: number[] = [];
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < count; i++) {
    const n = numbers[i] ?? NaN;
    if (!Number.isFinite(n)) odd.push(i);
    else { low = Math.min(low, n); high = Math.max(high, n); }
  }
  if (low > high) low = high = 0;
  const y = (value: number) => high > low ? EDGE + (high - value) / (high - low) * (HEIGHT - 2 * EDGE) : HEIGHT / 2;
  const steps = Math.max(1, Math.min(count, Math.floor(width))), parts: string[] = [];
  let isOn = false;
  for (let step = 0; step < steps; step++) {
    const from = Math.floor(step * count / steps), to = Math.floor((step + 1) * count / steps);
    let least = Infinity, most = -Infinity;
    for (let i = from; i < to; i++) { const n = numbers[i] ?? NaN; if (Number.isFinite(n)) { least = Math.min(least, n); most = Math.max(most, n); } }
    if (least > most) { isOn = false; continue; }
    parts.push(`${isOn ? "L" : "M"}${((step + 0.5) / steps * width).toFixed(1)} ${y(most).toFixed(1)}${isOn && least === most ? "" : `V${(y(least) + (least === most ? 0.01 : 0)).toFixed(2)}`}`); // a lone value is a dot
    isOn = true;
  }
  return { path: parts.join(""), low, high, odd, y };
}

function Line({ numbers, what, point, at, ends }: Drawn & { at: number | undefined; ends: readonly [string, string] }): JSX.Element {
  const [box, width] = useWidth(), count = numbers.length, { path, low, high, odd, y } = useMemo(() => courseOf(numbers, width), [numbers, width]), x = (i: number) => (i + 0.5) / count * width;
  const hear = (e: PointerEvent) => { const room = box.current?.getBoundingClientRect(); if (room) point(under(e.clientX, room.left, room.width, count)); };
  return (
    <>
      <svg ref={box} viewBox={`0 0 ${width} ${HEIGHT}`} height={HEIGHT} role="img" aria-label={`Line of ${exactText(count)} ${what} from ${realText(low)} to ${realText(high)}`} onPointerMove={hear}>
        {low < 0 && high > 0 && <line class="axis" x2={width} y1={y(0)} y2={y(0)} />}
        {odd.slice(0, MOST_MARKS).map((i) => <line key={i} class="odd" x1={x(i)} x2={x(i)} y2={HEIGHT} />)}
        {at !== undefined && <line class="at" x1={x(at)} x2={x(at)} y2={HEIGHT} />}
        <path d={path} />
      </svg>
      <figcaption><span>{ends[0]}</span><span class="space" /><span>{realText(low)} to {realText(high)}</span><span class="space" /><span>{ends[1]}</span></figcaption>
    </>
  );
}
