/** Values on demand: a slice of the tensor, and the statistics and the histogram of the whole tensor. */
import type { JSX } from "preact";
import type { Tally, TensorDetail } from "../protocol";
import { readableOf } from "../slice";
import { bytesText, exactText, realText } from "../text";
import { useModel } from "./hooks";
import { Facts, TroubleBox } from "./parts";
import { SliceView } from "./slice";

function Histogram({ tally }: { tally: Tally }): JSX.Element {
  const most = Math.max(1, ...tally.histogram), width = 360 / tally.histogram.length;
  const label = `${tally.histogram.length} bins from ${realText(tally.min)} to ${realText(tally.max)}; the fullest holds ${exactText(most)} values`;
  return (
    <figure class="histogram">
      <svg viewBox="0 0 360 90" role="img" aria-label={label}>
        {tally.histogram.map((n, i) => n > 0 && <rect key={i} class="bin" x={i * width} width={Math.max(1, width - 1)} y={88 - Math.max(1.5, n / most * 86)} height={Math.max(1.5, n / most * 86)}><title>{exactText(n)}</title></rect>)}
        <line class="axis" x1="0" x2="360" y1="88.5" y2="88.5" />
      </svg>
      <figcaption><span>{realText(tally.min)}</span><span>{realText(tally.max)}</span></figcaption>
    </figure>
  );
}

function TallyView({ tally }: { tally: Tally }): JSX.Element {
  return (
    <>
      {tally.min !== tally.max && <Histogram tally={tally} />}
      <Facts facts={[["min", realText(tally.min)], ["max", realText(tally.max)], ["mean", realText(tally.mean)], ["std", realText(tally.std)],
        ["zeros", exactText(tally.zero)], ["NaN", exactText(tally.nan)], ["infinite", exactText(tally.inf)]]} />
      {tally.byte_done < tally.byte_total && <p class="quiet">Of the first {bytesText(tally.byte_done)} of {bytesText(tally.byte_total)}.</p>}
    </>
  );
}

export function Values({ detail }: { detail: TensorDetail }): JSX.Element {
  const model = useModel(), selected = model.selected, tally = selected?.tally, isWhole = tally !== undefined && tally.byte_done >= tally.byte_total, lack = model.lackOf(detail);
  const title = selected?.compared ? "Values of A" : "Values"; // those of both sides are in the comparison
  if (lack) return <section aria-label={title}><h3>{title}</h3><p class="quiet">They cannot be read, because {lack}.</p></section>;
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      {!isWhole && detail.shape.some((size) => size !== 1) && readableOf(detail)?.isAll && <p class="buttons"><button type="button" aria-disabled={selected?.isCounting === true} onClick={() => void model.tally()}>Statistics and histogram (reads {bytesText(detail.bytes)})</button></p>}
      {selected?.tallyTrouble && <TroubleBox trouble={selected.tallyTrouble} />}
      {tally && <TallyView tally={tally} />}
      <SliceView detail={detail} />
    </section>
  );
}
