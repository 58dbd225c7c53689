/** One entry in A and in B, side by side: shapes, chunks and values, and where the values differ as a heat map of A − B. This
 *  script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { differencesOf, type Differences } from "../differences";
import { shortText, textsOf, type Elements } from "../elements";
import { isDense, type Compared, type Detail, type DiffOptions, type Trouble } from "../protocol";
import { elementsOfSlice, firstSlice, MOST_SLICE } from "../slice";
import { exactText, realText, shapeText, visible } from "../text";
import { troubleOf } from "../trouble";
import { useModel } from "./hooks";
import { Facts, TroubleBox } from "./parts";
import { ShardMapView } from "./shard_map";
import { HeatMap } from "./slice";

interface DiffOf { readonly fqn: string; readonly detail: Detail | undefined; readonly compared: Compared; readonly map: DiffOptions["map"] }
interface Found extends Differences { readonly a: Elements; readonly b: Elements }

const factsOf = (detail: Detail): [string, string][] => isDense(detail)
  ? [["dtype", detail.dtype], ["shape", shapeText(detail.shape)], ["chunks", exactText(detail.chunks.length)], ...(detail.placements ? [["placements", detail.placements] as [string, string]] : []), ...(detail.mesh ? [["mesh", detail.mesh] as [string, string]] : [])]
  : [["kind", detail.per_rank ? "tensor per rank" : detail.type], ...(!detail.per_rank && detail.text !== undefined ? [["value", detail.text] as [string, string]] : [])];

function Side({ name, title, detail }: { name: string; title: string; detail: Detail | undefined }): JSX.Element {
  return <section aria-label={`${name} of the comparison`}><h4><strong>{name}</strong> {visible(title)}</h4>{!detail ? <p class="quiet">It is not in {name}.</p> : <><Facts facts={factsOf(detail)} />{isDense(detail) && <ShardMapView detail={detail} of={name} />}</>}</section>;
}

const MOST_ROWS = 8, MOST_COLUMNS = 6;
/** The corner of A and of B: rows of A above those of B, and what differs is marked. */
function Corner({ a, b }: { a: Elements; b: Elements }): JSX.Element | null {
  const [x, y] = [textsOf(a), textsOf(b)], columns = Math.max(1, a.shape.at(-1) ?? 1), shown = Math.min(MOST_COLUMNS, columns);
  if (!x || !y || x.length === 0) return null;
  const rows = Math.min(MOST_ROWS, Math.ceil(x.length / columns)), table = (own: string[], other: string[], name: string) => (
    <section aria-label={`Values of ${name}`} class="scroll" tabIndex={0}>
      <h4>{name}</h4>
      <table class="corner"><tbody>{Array.from({ length: rows }, (_, r) => <tr key={r}>{Array.from({ length: shown }, (__, c) => { const at = r * columns + c, text = own[at] ?? ""; return <td key={c} title={text} class={text === "nan" ? "nan" : text !== other[at] ? "differs" : ""}>{shortText(text)}</td>; })}</tr>)}</tbody></table>
    </section>
  );
  return <><div class="sides">{table(x, y, "A")}{table(y, x, "B")}</div>{x.length > rows * shown && <p class="quiet">The first {rows} × {shown} values of the slice. What differs is marked.</p>}</>;
}

/** Whether both sides are tensors of one shape. */
const isComparable = ({ a, b }: Compared): boolean => a?.kind === "tensor" && b?.kind === "tensor" && a.shape?.join() === b.shape?.join();

export function TensorDiff({ fqn, detail, compared, map }: DiffOf): JSX.Element {
  const model = useModel(), [other, setOther] = useState<Detail>();
  useEffect(() => {
    let isGone = false;
    if (compared.b) void model.client.call("entryOfB", { fqn: compared.other ?? fqn }).then((found) => { if (!isGone && found) setOther(found); }, () => undefined);
    return () => { isGone = true; };
  }, [fqn]);
  const lack = isDense(detail) && model.lackOf(detail) || isDense(other) && model.lackOf(other, model.comparing.comparison?.absent);
  return (
    <>
      <div class="sides"><Side name="A" title={model.opening?.title ?? ""} detail={compared.a ? detail : undefined} /><Side name="B" title={model.comparing.comparison?.title ?? ""} detail={other} /></div>
      {isDense(detail) && isComparable(compared) && (lack ? <p class="quiet">Their values cannot be compared, because {lack}.</p> : <Values fqn={fqn} shape={detail.shape} compared={compared} map={map} />)}
    </>
  );
}

function Values({ fqn, shape, compared, map }: { fqn: string; shape: readonly number[]; compared: Compared; map: DiffOptions["map"] }): JSX.Element {
  const model = useModel(), [slice, setSlice] = useState(firstSlice(shape)), [found, setFound] = useState<Found>(), [shown, setShown] = useState<string>(), [trouble, setTrouble] = useState<Trouble>();
  const show = async () => {
    setTrouble(undefined);
    const count = elementsOfSlice(slice, shape);
    if (count !== undefined && count > MOST_SLICE) return setTrouble({ message: `the slice has ${exactText(count)} elements; at most ${exactText(MOST_SLICE)} are shown here`, status: "page" });
    try {
      const { a, b } = await model.client.call("slices", { fqn, other: compared.other ?? fqn, slice: slice.trim() || undefined, map });
      setFound({ ...differencesOf(a, b), a, b });
      setShown(slice);
    } catch (e) {
      setFound(undefined);
      setTrouble(troubleOf(e));
    }
  };
  return (
    <>
      <form class="slice" onSubmit={(e) => { e.preventDefault(); void show(); }}>
        {shape.length > 0 && <label>Slice <input type="text" aria-label="Slice to compare" value={slice} spellcheck={false} onInput={(e) => setSlice(e.currentTarget.value)} /></label>}
        {!(found && shown === slice) && <button type="submit">Show differences</button>}
      </form>
      {trouble && <TroubleBox trouble={trouble} />}
      {found && <>
        <Facts facts={[...(shown && shape.length ? [["slice", shown] as const] : []), ["differing", `${exactText(found.differing)} of ${exactText(found.count)}`], ...(found.differing > found.apart ? [["largest finite |A − B|", realText(found.largest)] as const] : []), ...(found.apart ? [["differ as NaN, as infinity or in the sign of zero (yellow)", exactText(found.apart)] as const] : []), ...(found.differing && Number.isFinite(found.relative) ? [["relative error ‖A − B‖ / ‖B‖", realText(found.relative)] as const] : []), ...(found.differing && Number.isFinite(found.cosine) ? [["cosine of A and B", realText(found.cosine)] as const] : [])]} />
        <Corner a={found.a} b={found.b} />
        <HeatMap elements={found.elements} what="differences A − B" />
      </>}
    </>
  );
}
