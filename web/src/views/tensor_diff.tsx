/** One entry in A and in B, side by side: shapes, chunks and values, and where the values differ as a figure of A − B. This
 *  script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { differencesOf, type Differences } from "../differences";
import type { Elements } from "../elements";
import { isCheap } from "../model";
import { isDense, type Compared, type Detail, type DiffOptions, type TensorDetail, type Trouble } from "../protocol";
import { alongOf, elementsOfSlice, firstSlice, MOST_SLICE, readableOf } from "../slice";
import { exactText, realText, shapeText, visible } from "../text";
import { troubleOf } from "../trouble";
import { useModel } from "./hooks";
import { Facts, TroubleBox } from "./parts";
import { ShardMapView } from "./shard_map";
import { Plot } from "./plot";
import { Grid, StatisticsLine } from "./slice";

interface DiffOf { readonly fqn: string; readonly detail: Detail | undefined; readonly compared: Compared; readonly map: DiffOptions["map"] }
/** What was read, and the slice that it is. */
interface Found { readonly a: Elements | undefined; readonly b: Elements | undefined; readonly slice: string; readonly differences: Differences | undefined }

const factsOf = (detail: Detail): [string, string][] => isDense(detail)
  ? [["dtype", detail.dtype], ["shape", shapeText(detail.shape)], ["chunks", exactText(detail.chunks.length)], ...(detail.placements ? [["placements", detail.placements] as [string, string]] : []), ...(detail.mesh ? [["mesh", detail.mesh] as [string, string]] : [])]
  : [["kind", detail.per_rank ? "tensor per rank" : detail.type], ...(!detail.per_rank && detail.text !== undefined ? [["value", detail.text] as [string, string]] : [])];

/** `lack` says why there is no detail. */
function Side({ name, title, detail, lack }: { name: string; title: string; detail: Detail | undefined; lack: string }): JSX.Element {
  return <section aria-label={`${name} of the comparison`}><h4><strong>{name}</strong> {visible(title)}</h4>{!detail ? <p class="quiet">{lack}</p> : <><Facts facts={factsOf(detail)} />{isDense(detail) && <ShardMapView detail={detail} of={name} />}</>}</section>;
}

export function TensorDiff({ fqn, detail, compared, map }: DiffOf): JSX.Element {
  const model = useModel(), [other, setOther] = useState<Detail>(), [trouble, setTrouble] = useState<Trouble>(), fqnOfB = compared.other ?? fqn, a = compared.a && detail, areHere = (!compared.a || a) && (!compared.b || other);
  useEffect(() => {
    let isGone = false;
    if (compared.b) void model.client.call("entryOfB", { fqn: fqnOfB }).then((found) => { if (!isGone && found) setOther(found); }, (e: unknown) => { if (!isGone) setTrouble(troubleOf(e)); });
    return () => { isGone = true; };
  }, [fqn]);
  const lackOf = (name: string, isThere: boolean, hasFailed: boolean) => !isThere ? `It is not in ${name}.` : hasFailed ? "It cannot be read." : "Reading …";
  return (
    <>
      {trouble && <TroubleBox trouble={trouble} />}
      <div class="sides"><Side name="A" title={model.opening?.title ?? ""} detail={a} lack={lackOf("A", compared.a !== undefined, model.selected?.trouble !== undefined)} /><Side name="B" title={model.comparing.comparison?.title ?? ""} detail={other} lack={lackOf("B", compared.b !== undefined, trouble !== undefined)} /></div>
      {areHere && isDense(other) && <Values a={isDense(a) ? { ...a, fqn } : undefined} b={{ ...other, fqn: fqnOfB }} map={map} />}
    </>
  );
}

const MOST_CELLS = [8, 6] as const;

/** The values of both sides. Where the shapes are equal it is one slice of both, with its differences. They are read without being asked for where
 *  that is little. */
function Values({ a, b, map }: { a: TensorDetail | undefined; b: TensorDetail; map: DiffOptions["map"] }): JSX.Element | null {
  const model = useModel(), { comparison } = model.comparing, isOne = a?.shape.join() === b.shape.join();
  const [slice, setSlice] = useState(firstSlice(isOne && a && !readableOf(a)?.isAll ? a : b)), [found, setFound] = useState<Found>(), [trouble, setTrouble] = useState<Trouble>();
  const lack = a && model.lackOf(a) || model.lackOf(b, comparison?.absent);
  const latest = useRef(0), show = async (isAsked: boolean) => {
    const asked = ++latest.current;
    setTrouble(undefined);
    const count = isOne ? elementsOfSlice(slice, b.shape) : 0;
    if (count !== undefined && count > MOST_SLICE) return setTrouble({ message: `the slice has ${exactText(count)} elements; at most ${exactText(MOST_SLICE)} are shown here`, status: "page" });
    const wanted = (side: TensorDetail) => ({ fqn: side.fqn, slice: (isOne ? slice : firstSlice(side)).trim() || undefined });
    try {
      const read = await model.client.call("slices", { a: a && wanted(a), b: wanted(b), map });
      if (latest.current === asked) setFound({ ...read, slice, differences: isOne && read.a && read.b ? differencesOf(read.a, read.b) : undefined });
    } catch (e) {
      if (latest.current !== asked) return;
      setFound(undefined);
      if (isAsked) setTrouble(troubleOf(e));
    }
  };
  useEffect(() => { if (!lack && map.map === undefined && model.opening && comparison && (!a || isCheap(a, model.opening)) && isCheap(b, comparison.opening)) void show(false); }, []);
  if (lack) return <p class="quiet">{isOne ? "Their values cannot be compared" : "The values cannot be read"}, because {lack}.</p>;
  return (
    <>
      <form class="slice" onSubmit={(e) => { e.preventDefault(); void show(true); }}>
        {isOne && b.shape.length > 0 && <label>Slice <input type="text" aria-label="Slice to compare" value={slice} spellcheck={false} onInput={(e) => setSlice(e.currentTarget.value)} /></label>}
        {found?.slice !== slice && <button type="submit">{isOne ? "Show differences" : a ? "Show values of both" : "Show values of B"}</button>}
      </form>
      {trouble && <TroubleBox trouble={trouble} />}
      {found?.differences && <Facts facts={factsOfDifferences(found.differences, found.slice === slice ? "" : found.slice)} />}
      {found && <div class="sides"><Corner name="A" detail={a} found={found} isOne={isOne} /><Corner name="B" detail={b} found={found} isOne={isOne} /></div>}
      {found?.differences && <Plot elements={found.differences.elements} along={alongOf(found.slice, b.shape)} what="differences A − B" />}
    </>
  );
}

/** `slice` is what the differences are of, where the field names another one. */
function factsOfDifferences({ differing, count, apart, largest, relative, cosine }: Differences, slice: string): readonly (readonly [string, string])[] {
  return [
    ...(slice ? [["slice", slice] as const] : []), ["differing", `${exactText(differing)} of ${exactText(count)}`],
    ...(differing > apart ? [["largest finite |A − B|", realText(largest)] as const] : []), ...(apart ? [["differ as NaN, as infinity or in the sign of zero (yellow)", exactText(apart)] as const] : []),
    ...(differing && Number.isFinite(relative) ? [["relative error ‖A − B‖ / ‖B‖", realText(relative)] as const] : []), ...(differing && Number.isFinite(cosine) ? [["cosine of A and B", realText(cosine)] as const] : []),
  ];
}

/** The first values of one side. */
function Corner({ name, detail, found, isOne }: { name: "A" | "B"; detail: TensorDetail | undefined; found: Found; isOne: boolean }): JSX.Element {
  const [own, other] = name === "A" ? [found.a, found.b] : [found.b, found.a];
  if (!own || !detail) return <div />;
  return <div><StatisticsLine elements={own} isWhole={own.shape.reduce((x, y) => x * y, 1) === detail.shape.reduce((x, y) => x * y, 1)} /><Grid elements={own} along={alongOf(isOne ? found.slice : firstSlice(detail), detail.shape)} label={`Slice of ${name}`} most={MOST_CELLS} against={isOne ? other : undefined} /></div>;
}
