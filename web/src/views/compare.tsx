/** Compares two checkpoints of any format and sharding by name and shows them as one tree. Values are compared on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { NO_SOURCE, sourceOptions, type Command } from "../command";
import type { Comparison } from "../comparing";
import { saveText } from "../download";
import { castsOf, prefixOf } from "../fit";
import { mapNamed } from "../map_choice";
import { isFinitePair, type Diff } from "../protocol";
import { absentText, bytesText, exactText, plural, realText, visible } from "../text";
import { CopyCommand } from "./command";
import { Current } from "./current";
import { useModel } from "./hooks";
import { Later } from "./later";
import { FilterLine } from "./listing";
import { Opener } from "./opener";
import { Facts, More, TroubleBox } from "./parts";
import { Tree } from "./tree";

/** Every entry is counted once: one that was perhaps renamed is not counted as being only in A, and only in B. */
const countsOf = ({ changed, added, removed, renamed }: Diff) => ({ changed: changed.length, onlyA: removed.length - renamed.length, onlyB: added.length - renamed.length, renamed: renamed.length });

/** Returns a sentence that says what is known about the differences and what has not been compared. */
function verdictOf(diff: Diff, { atol, rtol }: Comparison["tolerance"]): string {
  const { summary, metadata } = diff, same = plural(summary.same, "entry", "entries"), { changed, onlyA, onlyB, renamed } = countsOf(diff);
  const texts = metadata.changed.length + metadata.added.length + metadata.removed.length;
  const rest = [changed && `${exactText(changed)} changed`, onlyA && `${exactText(onlyA)} only in A`, onlyB && `${exactText(onlyB)} only in B`, renamed && `${exactText(renamed)} perhaps renamed`, texts && `${plural(texts, "text")} of __metadata__ differ${texts === 1 ? "s" : ""}`].filter(Boolean);
  const matching = summary.values_compared ? `${same} equal, values included${atol || rtol ? ` (within ${[atol && `atol ${realText(atol)}`, rtol && `rtol ${realText(rtol)}`].filter(Boolean).join(" and ")})` : ""}` : `${same} with equal names, dtypes, shapes and objects; values not compared yet`;
  return [...rest, matching].join(", ");
}

/** The counts as sums: what each side has. */
function sumsText(diff: Diff): string {
  const { changed, onlyA, onlyB, renamed } = countsOf(diff), both = diff.summary.same + changed + renamed;
  return `A has ${plural(both + onlyA, "entry", "entries")}, B has ${exactText(both + onlyB)}; ${exactText(both)} of them are in both`;
}

/** The command that compares in the same way. A map that is not built in is a file. Undefined if B was opened by options of its own,
 *  because a command has one of each. */
function commandOf({ values, layout, canonical, tolerance: { atol, rtol }, map, opening }: Comparison, model: ReturnType<typeof useModel>): Command | undefined {
  const source = model.opening ?? NO_SOURCE, [ofA, ofB] = [source, opening].map((side) => JSON.stringify(sourceOptions(side)));
  if (ofB !== ofA && ofB !== "{}") return undefined;
  const isTolerant = atol > 0 || rtol > 0, fit = map.map !== undefined && model.mapChoice.name === "" ? { map: "map.json" } : {};
  return { name: "diff", operands: [source.title, opening.title], options: { values: values && !isTolerant, atol: atol || undefined, rtol: rtol || undefined, layout, canonical, ...mapNamed(model.mapChoice), ...fit, ...sourceOptions(source) } };
}

/** A field for a tolerance. What is not a number of 0 or more changes nothing. */
function Within({ label, title, value, set }: { label: string; title: string; value: number; set: (to: number) => void }): JSX.Element {
  const [typed, setTyped] = useState<string>(); // the view may be drawn again while something is typed
  const take = (text: string) => {
    const to = text.trim() === "" ? 0 : Number(text);
    setTyped(undefined);
    if (to >= 0 && Number.isFinite(to)) set(to);
  };
  return <label class="within" title={title}>{label}<input type="text" inputMode="decimal" value={typed ?? (value || "")} placeholder="0" spellcheck={false} onInput={(e) => setTyped(e.currentTarget.value)} onChange={(e) => take(e.currentTarget.value)} /></label>;
}

/** What would make more of both sides comparable, and what was done for that. */
function Offers({ comparison, diff }: { comparison: Comparison; diff: Diff }): JSX.Element | null {
  const { comparing, mapChoice } = useModel(), { fit } = comparison, prefix = prefixOf(diff), casts = castsOf(diff);
  if (mapChoice.name) return null;
  return (
    <>
      {prefix && !fit.prefix && <p class="offer">{plural(prefix.matches, "name")} would match without “{visible(prefix.text)}” in {prefix.side.toUpperCase()}. <button type="button" class="small" onClick={() => void comparing.setFit({ prefix, casts: [] })}>Strip {visible(prefix.text)}</button></p>}
      {fit.prefix && <p class="offer">Names are compared without “{visible(fit.prefix.text)}” in {fit.prefix.side.toUpperCase()}. <button type="button" class="small" onClick={() => void comparing.setFit({ casts: [] })}>Keep it</button></p>}
      {casts.length > 0 && fit.casts.length === 0 && <p class="offer">{plural(casts.length, "tensor")} {casts.length === 1 ? "has" : "have"} another floating-point dtype in B, so values are not compared. <button type="button" class="small" onClick={() => void comparing.setFit({ ...fit, casts })}>Compare across dtypes</button></p>}
      {fit.casts.length > 0 && <p class="offer">{plural(fit.casts.length, "tensor")} of A {fit.casts.length === 1 ? "is" : "are"} cast to B's dtype first. <button type="button" class="small" onClick={() => void comparing.setFit({ ...fit, casts: [] })}>Compare dtypes again</button></p>}
    </>
  );
}

const MOST_NAN = 8;
/** NaN and infinity come first: a difference has no size there. */
function NotFinite({ comparison: { measured = [] } }: { comparison: Comparison }): JSX.Element | null {
  const model = useModel(), nonFinite = measured.filter((pair) => !isFinitePair(pair));
  if (!nonFinite.length) return null;
  const text = ({ nan, inf }: { nan: number; inf: number }) => [nan && `${exactText(nan)} NaN`, inf && `${exactText(inf)} infinite`].filter(Boolean).join(", ") || "none";
  return (
    <section class="not-finite" aria-label="NaN and infinity">
      <h3>{plural(nonFinite.length, "changed tensor")} {nonFinite.length === 1 ? "has" : "have"} NaN or infinity</h3>
      <ul>{nonFinite.slice(0, MOST_NAN).map(({ fqn, a, b }) => <li key={fqn}><button type="button" class="link" onClick={() => void model.lists.filter("compare", fqn)}>{visible(fqn)}</button> A: {text(a)}; B: {text(b)}</li>)}</ul>
      {nonFinite.length > MOST_NAN && <p>… and {exactText(nonFinite.length - MOST_NAN)} more.</p>}
    </section>
  );
}

const loadSeries = async () => (await import("./series")).SeriesView;
const loadMapFields = async () => (await import("./map_fields")).MapFields;

/** What is compared, how it is shown, and what can be done with the result. */
function Heading({ comparison, isSeries, setSeries }: { comparison: Comparison; isSeries: boolean; setSeries: (to: boolean) => void }): JSX.Element {
  const model = useModel(), { comparing, mapChoice } = model, { map } = comparison, command = commandOf(comparison, model);
  return (
    <div class="buttons">
      <p class="pair"><span><strong>A</strong> {visible(model.opening?.title ?? "")}</span> <span><strong>B</strong> {visible(comparison.title)}</span></p>
      <span class="space" />
      <button type="button" class="ghost" aria-pressed={isSeries} onClick={() => setSeries(!isSeries)}>Layer by layer</button>
      <button type="button" class="ghost" onClick={() => comparing.stop()}>Another B</button>
      <More label="Export">
        {command && <CopyCommand command={command} result="diff" />}
        {typeof map.map === "string" && mapChoice.name === "" && <button type="button" class="ghost" onClick={() => saveText("map.json", map.map as string)}>Save map.json</button>}
        {comparison.diff && <button type="button" class="ghost" aria-disabled={!comparing.isCurrent} onClick={() => { if (comparing.isCurrent) saveText("diff.json", JSON.stringify(comparison.diff, null, 1)); }}>Export JSON</button>}
      </More>
    </div>
  );
}

function Toggles({ comparison }: { comparison: Comparison }): JSX.Element {
  const model = useModel(), { comparing, mapChoice } = model, { tolerance } = comparison, [isMapOpen, setMapOpen] = useState(mapChoice.name !== "");
  const lacking = ([["A", model.opened?.overview.absent], ["B", comparison.absent]] as const).flatMap(([side, files]) => files?.length ? [`${absentText(files.length)} in ${side}`] : []);
  return (
    <>
      <p class="buttons toggles" role="group" aria-label="Compare">
        {lacking.length > 0 ? <span class="quiet">Values cannot be compared, because {lacking.join(" and ")}.</span> : <><button type="button" aria-pressed={comparison.values} onClick={() => void comparing.toggle("values")}>Values{comparison.valueDiff ? "" : ` (reads up to ${bytesText(comparing.bytes)})`}</button>
        <span class="tolerance"><Within label="atol" title="Values may differ by this" value={tolerance.atol} set={(atol) => void comparing.setTolerance({ ...tolerance, atol })} />
        <Within label="rtol" title="Values may differ by this times the value in B" value={tolerance.rtol} set={(rtol) => void comparing.setTolerance({ ...tolerance, rtol })} /></span></>}
        <button type="button" aria-pressed={comparison.layout} onClick={() => void comparing.toggle("layout")}>Sharding</button>
        <button type="button" aria-pressed={comparison.canonical} onClick={() => void comparing.toggle("canonical")}>Canonical names</button>
        <button type="button" aria-expanded={isMapOpen} onClick={() => setMapOpen(!isMapOpen)}>{mapChoice.name ? `Map of A: ${visible(mapChoice.name)}` : "Map of A"}</button>
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
  const model = useModel(), { comparison, series, isCurrent } = model.comparing, [chosen, setSeries] = useState<boolean>(), isSeries = chosen ?? series.more.length > 0;
  useEffect(() => { void model.comparing.remap(); }, [model.mapChoice]);
  if (!comparison) return <section class="view" aria-label="Compare"><h2>Compare</h2><p class="quiet">Compare {visible(model.opening?.title ?? "")} with another checkpoint, of any format and sharding.</p><Opener about="the other checkpoint" open={(prepare) => void model.comparing.with(prepare)} /></section>;
  const { diff } = comparison;
  return (
    <section class="list" aria-label="Comparison" aria-busy={!isCurrent}>
      <div class="compared">
        <Heading comparison={comparison} isSeries={isSeries} setSeries={setSeries} />
        <Toggles comparison={comparison} />
        <Current isCurrent={isCurrent} waiting="Comparing">
          {diff && <>
            <p role="status" class="verdict-line">{verdictOf(diff, comparison.tolerance)}.</p>
            <p class="quiet sums">{sumsText(diff)}.</p>
            <NotFinite comparison={comparison} />
            <Offers comparison={comparison} diff={diff} />
            <MetadataDiff {...diff} />
          </>}
        </Current>
      </div>
      {isSeries ? <div class="series-view"><Later load={loadSeries} /></div>
        : diff && <><FilterLine outline="compare" chips={chipsOf(diff)} placeholder="Filter: text, **.weight, dtype:bfloat16, is:changed" /><Tree key="compare" outline="compare" label="Comparison" /></>}
    </section>
  );
}
