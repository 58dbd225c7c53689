/** Two checkpoints of any format and sharding, by name; values on demand. */
import type { JSX } from "preact";
import type { Diff, DiffSide } from "../protocol";
import { bytesText, exactText, plural, realText, shapeText, visible } from "../text";
import { useModel } from "./hooks";
import { Opener } from "./opener";
import { saveText } from "./parts";

const MOST = 500;
const sideText = (s: DiffSide) => s.kind === "tensor" ? `${s.dtype ?? ""} ${shapeText(s.shape ?? [])}` : s.repr ?? s.kind;

function Names({ title, mark, names, show }: { title: string; mark: string; names: readonly string[]; show?: (fqn: string) => void }): JSX.Element | null {
  if (names.length === 0) return null;
  return (
    <section aria-label={title}>
      <h2>{title} ({exactText(names.length)})</h2>
      <ul class={`names ${mark}`}>{names.slice(0, MOST).map((n) => <li key={n}>{show ? <button type="button" class="link" onClick={() => show(n)}>{visible(n)}</button> : visible(n)}</li>)}</ul>
      {names.length > MOST && <p class="quiet">… and {exactText(names.length - MOST)} more.</p>}
    </section>
  );
}

function Changed({ changed, show }: { changed: Diff["changed"]; show: (fqn: string) => void }): JSX.Element | null {
  if (changed.length === 0) return null;
  return (
    <section aria-label="Changed">
      <h2>Changed ({exactText(changed.length)})</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Changes">
        <table class="wide">
          <thead><tr><th>Name</th><th>What</th><th>A</th><th>B</th></tr></thead>
          <tbody>
            {changed.slice(0, MOST).map((c) => (
              <tr key={c.fqn}>
                <td><button type="button" class="link" onClick={() => show(c.fqn)}>{visible(c.fqn)}</button></td>
                <td>{c.what.join(", ")}{c.differing !== undefined && ` (${exactText(c.differing)} differ${c.max_abs === undefined ? "" : `, by at most ${realText(c.max_abs)}`})`}</td>
                <td>{visible(sideText(c.a))}</td><td>{visible(sideText(c.b))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Renamed({ renamed }: { renamed: Diff["renamed"] }): JSX.Element | null {
  if (renamed.length === 0) return null;
  return (
    <section aria-label="Perhaps renamed">
      <h2>Perhaps renamed ({exactText(renamed.length)})</h2>
      <ul class="names">{renamed.slice(0, MOST).map((r) => <li key={r.a}>{visible(r.a)} → {visible(r.b)} <span class="quiet">{r.why}</span></li>)}</ul>
    </section>
  );
}

export function Compare({ show }: { show: (fqn: string) => void }): JSX.Element {
  const model = useModel(), { comparison } = model;
  if (!comparison) return <section class="view" aria-label="Compare"><Opener about="the other checkpoint" open={(prepare) => void model.compareWith(prepare)} /></section>;
  const { diff } = comparison;
  return (
    <section class="view" aria-label="Compare">
      <p><strong>A</strong> {visible(model.opening?.title ?? "")} <strong>B</strong> {visible(comparison.title)}</p>
      <p class="buttons">
        <button type="button" onClick={() => void model.diff(true, false)}>Compare values too (reads up to {bytesText(model.byteTotal)})</button>
        <button type="button" onClick={() => void model.diff(false, true)}>Compare chunks too</button>
        <button type="button" onClick={() => saveText("diff.json", comparison.text)}>Export JSON</button>
        <button type="button" onClick={() => model.stopComparing()}>Another B</button>
      </p>
      {diff && <>
        <p class="fine">{diff.same ? "Same" : "Different"}: {plural(diff.summary.same, "name")} the same, {exactText(diff.changed.length)} changed, {exactText(diff.removed.length)} only in A, {exactText(diff.added.length)} only in B ({diff.summary.values_compared ? "values compared" : "values not compared"}).</p>
        <Changed changed={diff.changed} show={show} />
        <Names title="Only in A" mark="minus" names={diff.removed} show={show} />
        <Names title="Only in B" mark="plus" names={diff.added} />
        <Renamed renamed={diff.renamed} />
      </>}
    </section>
  );
}
