/** Lists the tensors with NaN or infinite values and the tensors that are all zero or constant. */
import type { JSX } from "preact";
import type { Scan } from "../protocol";
import { exactText, plural, visible } from "../text";
import { useModel } from "./hooks";
import { Table } from "./table";

const MOST = 500;
type Suspect = Scan["suspects"][number];

/** NaN and infinite values are a problem; tensors that are all zero or constant may be as they should be. */
export const isBad = ({ nan, inf }: Suspect): boolean => nan > 0 || inf > 0;

export function ScanView({ show }: { show: (fqn: string) => void }): JSX.Element | null {
  const { scan } = useModel();
  if (!scan) return null;
  const { scanned, skipped } = scan, bad = scan.suspects.filter(isBad), suspects = [...bad, ...scan.suspects.filter((s) => !isBad(s))], even = suspects.length - bad.length;
  return (
    <section aria-label="Values scan">
      <h2>Scan of values</h2>
      <p class="fine" role="status">{plural(scanned, "tensor")} scanned{scanned > 0 && ": "}{bad.length ? <strong class="bad">{exactText(bad.length)} with NaN or infinite values</strong> : scanned > 0 && "no NaN, no infinite values"}{even > 0 && `, ${exactText(even)} all zero or constant`}.</p>
      {suspects.length > 0 && <Table label="Suspect tensors" kind="wide" head={<><th>Tensor</th><th class="number">NaN</th><th class="number">Infinite</th><th>Values</th></>} rows={suspects} most={MOST}
        row={(s) => <tr key={s.fqn}><td><button type="button" class="link" onClick={() => show(s.fqn)}>{visible(s.fqn)}</button></td><td class={s.nan ? "number bad" : "number"}>{exactText(s.nan)}</td><td class={s.inf ? "number bad" : "number"}>{exactText(s.inf)}</td><td>{s.is ?? ""}</td></tr>} />}
      {skipped.length > 0 && <details><summary>{plural(skipped.length, "tensor")} could not be scanned</summary><ul class="names">{skipped.slice(0, MOST).map((s) => <li key={s.fqn}>{visible(s.fqn)}: {visible(s.why)}</li>)}</ul></details>}
    </section>
  );
}
