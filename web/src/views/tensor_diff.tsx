/** Shows where the values of a tensor differ from those in B, as a heat map of A − B. This script is loaded on demand. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { differencesOf, type Differences } from "../differences";
import type { Compared, DiffOptions, Trouble } from "../protocol";
import { elementsOfSlice, firstSlice, MOST_SLICE } from "../slice";
import { exactText, realText } from "../text";
import { troubleOf } from "../trouble";
import { useModel } from "./hooks";
import { Facts, TroubleBox } from "./parts";
import { HeatMap } from "./slice";

interface DiffOf { readonly fqn: string; readonly shape: readonly number[]; readonly compared: Compared; readonly map: DiffOptions["map"] }

export function TensorDiff({ fqn, shape, compared, map }: DiffOf): JSX.Element {
  const model = useModel(), [slice, setSlice] = useState(firstSlice(shape)), [found, setFound] = useState<Differences>(), [trouble, setTrouble] = useState<Trouble>();
  const show = async () => {
    setTrouble(undefined);
    const count = elementsOfSlice(slice, shape);
    if (count !== undefined && count > MOST_SLICE) return setTrouble({ message: `the slice has ${exactText(count)} elements; at most ${exactText(MOST_SLICE)} are shown here`, status: "page" });
    try {
      const { a, b } = await model.client.call("slices", { fqn, other: compared.other ?? fqn, slice: slice.trim() || undefined, map });
      setFound(differencesOf(a, b));
    } catch (e) {
      setFound(undefined);
      setTrouble(troubleOf(e));
    }
  };
  return (
    <>
      <form class="slice" onSubmit={(e) => { e.preventDefault(); void show(); }}>
        {shape.length > 0 && <label>Slice <input type="text" aria-label="Slice to compare" value={slice} spellcheck={false} onInput={(e) => setSlice(e.currentTarget.value)} /></label>}
        <button type="submit">Show differences</button>
      </form>
      {trouble && <TroubleBox trouble={trouble} />}
      {found && <>
        <Facts facts={[["differing", `${exactText(found.differing)} of ${exactText(found.count)}`], ...(found.differing > found.apart ? [["largest finite |A − B|", realText(found.largest)] as const] : []), ...(found.apart ? [["differ as NaN, as infinity or in the sign of zero (yellow)", exactText(found.apart)] as const] : [])]} />
        <HeatMap elements={found.elements} what="differences A − B" />
      </>}
    </>
  );
}
