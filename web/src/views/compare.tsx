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
import { Facts, TroubleBox } from "./parts";
import { Tree } from "./tree";

/** Every entry is counted once: one that was perhaps renamed is not counted as being only in A, and only in B. */
const countsOf = ({ changed, added, removed, renamed }: Diff) => ({ changed: changed.length, onlyA: removed.length - renamed.length, onlyB: added.length - renamed.length, renamed: renamed.length });

/** Returns a sentence that says what is known about the differences and what has not been compared. */
export function verdictOf(diff: Diff): string {
  const { summary, metadata } = diff, same = plural(summary.same, "entry", "entries"), { changed, onlyA, onlyB, renamed } = countsOf(diff);
  const texts = metadata.changed.length + metadata.added.length + metadata.removed.length;
  const rest = [changed && `${exactText(changed)} changed`, onlyA && `${exactText(onlyA)} only in A`, onlyB && `${exactText(onlyB)} only in B`, renamed && `${exactText(renamed)} perhaps renamed`, texts && `${plural(texts, "text")} of __metadata__ differ${texts === 1 ? "s" : ""}`].filter(Boolean);
  const matching = summary.values_compared ? `${same} equal, values included` : `${same} with equal names, dtypes, shapes and objects; values not compared yet`;
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

function chipsOf(diff: Diff): { term: string; label: string }[] {
  const { changed, onlyA, onlyB, renamed } = countsOf(diff);
  const counts: [string, string, number][] = [["is:different", "Differences", changed + onlyA + onlyB + renamed], ["is:changed", "Changed", changed], ["is:only-a", "Only in A", onlyA], ["is:only-b", "Only in B", onlyB], ["is:renamed", "Perhaps renamed", renamed]];
  return counts.filter(([, , n]) => n > 0).map(([term, label, n]) => ({ term, label: `${label} ${exactText(n)}` }));
}

/** What differs between the texts of both sides' safetensors files. */
function MetadataDiff({ metadata: { added, removed, changed } }: Diff): JSX.Element | null {
  const facts = [...changed.map(({ key, a, b }) => [key, `${visible(a)} → ${visible(b)}`] as const), ...removed.map(({ key, value }) => [key, `${visible(value)} (only in A)`] as const), ...added.map(({ key, value }) => [key, `${visible(value)} (only in B)`] as const)];
  return facts.length ? <details aria-label="Metadata that differs"><summary>{plural(facts.length, "text")} of <code>__metadata__</code> differ{facts.length === 1 && "s"}</summary><Facts facts={facts.map(([key, text]) => [visible(key), text])} /></details> : null;
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
        {diff && <MetadataDiff {...diff} />}
      </div>
      {diff && <><FilterLine outline="compare" chips={chipsOf(diff)} placeholder="Filter: text, **.weight, dtype:bfloat16, is:changed" /><Tree key="compare" outline="compare" label="Comparison" /></>}
    </section>
  );
}
