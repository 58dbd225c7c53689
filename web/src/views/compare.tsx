/** Compares two checkpoints of any format and sharding by name and shows them as one tree. Values are compared on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Comparison } from "../comparing";
import { saveText } from "../download";
import type { Diff } from "../protocol";
import { bytesText, exactText, plural, visible } from "../text";
import { useModel } from "./hooks";
import { Later } from "./later";
import { FilterLine } from "./listing";
import { Opener } from "./opener";
import { TroubleBox } from "./parts";
import { Tree } from "./tree";

/** Returns a sentence that says what is known about the differences and what has not been compared. */
export function verdictOf({ changed, added, removed, renamed, summary }: Diff): string {
  const same = plural(summary.same, "entry", "entries");
  const rest = [changed.length && `${exactText(changed.length)} changed`, removed.length && `${exactText(removed.length)} only in A`, added.length && `${exactText(added.length)} only in B`, renamed.length && `${exactText(renamed.length)} of them perhaps renamed`].filter(Boolean);
  const matching = summary.values_compared ? `${same} equal, values included` : `${same} with equal names, dtypes and shapes; values not compared yet`;
  return [...rest, matching].join(", ");
}

const loadMapFields = async () => (await import("./map_fields")).MapFields;

function Toggles({ comparison }: { comparison: Comparison }): JSX.Element {
  const { comparing, mapChoice } = useModel(), [isMapOpen, setMapOpen] = useState(mapChoice.name !== "");
  return (
    <>
      <p class="buttons toggles" role="group" aria-label="Compare">
        <button type="button" aria-pressed={comparison.values} onClick={() => void comparing.toggle("values")}>Values{comparison.valueDiff ? "" : ` (reads up to ${bytesText(comparing.bytes)})`}</button>
        <button type="button" aria-pressed={comparison.layout} onClick={() => void comparing.toggle("layout")}>Sharding</button>
        <button type="button" aria-pressed={comparison.canonical} onClick={() => void comparing.toggle("canonical")}>Canonical names</button>
        <button type="button" aria-expanded={isMapOpen} onClick={() => setMapOpen(!isMapOpen)}>{mapChoice.name ? `Map of A: ${visible(mapChoice.name)}` : "Map of A"}</button>
        <span class="space" />
        {comparison.diff && <button type="button" onClick={() => saveText("diff.json", JSON.stringify(comparison.diff, null, 1))}>Export JSON</button>}
        <button type="button" onClick={() => comparing.stop()}>Another B</button>
      </p>
      {isMapOpen && <Later load={loadMapFields} label="Names and layouts of A become" />}
      {comparison.trouble && <TroubleBox trouble={comparison.trouble} isMapped={mapChoice.name !== ""} />}
    </>
  );
}

function chipsOf({ changed, added, removed, renamed }: Diff): { term: string; label: string }[] {
  const counts: [string, string, number][] = [["is:different", "Differences", changed.length + removed.length + added.length], ["is:changed", "Changed", changed.length], ["is:only-a", "Only in A", removed.length], ["is:only-b", "Only in B", added.length], ["is:renamed", "Renamed", renamed.length]];
  return counts.filter(([, , n]) => n > 0).map(([term, label, n]) => ({ term, label: `${label} ${exactText(n)}` }));
}

export function Compare(): JSX.Element {
  const model = useModel(), { comparison } = model.comparing;
  useEffect(() => { void model.comparing.remap(); }, [model.mapChoice]);
  if (!comparison) return <section class="view" aria-label="Compare"><Opener about="the other checkpoint" open={(prepare) => void model.comparing.with(prepare)} /></section>;
  const { diff } = comparison;
  return (
    <section class="list" aria-label="Comparison">
      <div class="compared">
        <p><strong>A</strong> {visible(model.opening?.title ?? "")} <strong>B</strong> {visible(comparison.title)}</p>
        <Toggles comparison={comparison} />
        {diff && <p role="status" class="verdict-line">{verdictOf(diff)}.</p>}
      </div>
      {diff && <><FilterLine outline="compare" chips={chipsOf(diff)} placeholder="Filter: text, **.weight, dtype:bfloat16, is:changed" /><Tree key="compare" outline="compare" label="Comparison" /></>}
    </section>
  );
}
