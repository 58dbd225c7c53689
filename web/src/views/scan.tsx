/** Lists the tensors with NaN or infinite values and the tensors that are all zero or constant. */
import type { JSX } from "preact";
import { bytesText, exactText, plural, visible } from "../text";
import { useModel } from "./hooks";

const MOST = 500;

export function ScanView({ show }: { show: (fqn: string) => void }): JSX.Element | null {
  const model = useModel(), { scan, opened } = model;
  if (!opened || opened.isMetadataOnly) return null;
  if (!scan) {
    return <p class="buttons"><button type="button" onClick={() => void model.scanValues()}>Scan the values of all tensors (reads {bytesText(opened.overview.bytes)})</button></p>;
  }
  const { suspects, scanned, skipped } = scan;
  return (
    <section aria-label="Values scan">
      <h2>Values</h2>
      <p class="fine" role="status">{plural(scanned, "tensor")} scanned: {suspects.length ? `${exactText(suspects.length)} with NaN, infinite, all-zero or constant values` : "none has NaN or infinite values, or is all zero or constant"}.</p>
      {suspects.length > 0 && <div class="scroll" tabIndex={0} role="region" aria-label="Suspect tensors">
        <table class="wide">
          <thead><tr><th>Tensor</th><th class="number">NaN</th><th class="number">Infinite</th><th>Values</th></tr></thead>
          <tbody>{suspects.slice(0, MOST).map((s) => <tr key={s.fqn}><td><button type="button" class="link" onClick={() => show(s.fqn)}>{visible(s.fqn)}</button></td><td class="number">{exactText(s.nan)}</td><td class="number">{exactText(s.inf)}</td><td>{s.is ?? ""}</td></tr>)}</tbody>
        </table>
      </div>}
      {suspects.length > MOST && <p class="quiet">… and {exactText(suspects.length - MOST)} more.</p>}
      {skipped.length > 0 && <details><summary>{plural(skipped.length, "tensor")} could not be scanned</summary><ul class="names">{skipped.slice(0, MOST).map((s) => <li key={s.fqn}>{visible(s.fqn)}: {visible(s.why)}</li>)}</ul></details>}
    </section>
  );
}
