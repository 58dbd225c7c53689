/** What is wrong, odd or worth knowing: the rules and words of `tessera validate`. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Finding, Level } from "../protocol";
import { sizeOf } from "../model";
import { bytesText, exactText, plural, visible } from "../text";
import { useModel } from "./hooks";
import { LevelMark, saveText } from "./parts";

const LEVELS: readonly Level[] = ["error", "warning", "note"];
const MOST = 500;

function Item({ finding, help, show }: { finding: Finding; help: string; show: (fqn: string) => void }): JSX.Element {
  const { fqn } = finding;
  return (
    <li class={finding.level}>
      <p><LevelMark level={finding.level} text /> <code>{finding.rule}</code></p>
      <p>{visible(finding.message)}</p>
      {help && <p class="quiet">{help}</p>}
      <p class="quiet">
        {finding.file !== undefined && <>In {visible(finding.file)}{finding.byte_offset !== undefined && <>, at byte {exactText(finding.byte_offset)}</>}. </>}
        {fqn !== undefined && <button type="button" class="link" onClick={() => show(fqn)}>{visible(fqn)}</button>}
      </p>
    </li>
  );
}

export function FindingsView({ show }: { show: (fqn: string) => void }): JSX.Element {
  const model = useModel();
  const [hidden, setHidden] = useState<ReadonlySet<Level>>(new Set());
  const all = model.findings?.list ?? [], list = all.filter((f) => !hidden.has(f.level));
  const flip = (level: Level) => setHidden((h) => { const next = new Set(h); if (!next.delete(level)) next.add(level); return next; });
  return (
    <section class="view" aria-label="Findings">
      <p class="buttons">
        {LEVELS.map((level) => {
          const n = all.filter((f) => f.level === level).length;
          return <button key={level} type="button" aria-pressed={!hidden.has(level)} disabled={n === 0} onClick={() => flip(level)}>{plural(n, level)}</button>;
        })}
        <button type="button" onClick={() => void model.deepCheck()}>Check every byte (reads {bytesText(sizeOf(model.opening))})</button>
        {all.length > 0 && <button type="button" onClick={() => saveText("findings.json", model.findings?.text ?? "")}>Export JSON</button>}
        {all.length > 0 && <button type="button" onClick={() => saveText("findings.sarif", model.findings?.sarif ?? "")}>Export SARIF</button>}
      </p>
      {all.length === 0 && <p class="fine">{model.isDeep ? "Every byte was checked. Nothing is wrong." : "Metadata, headers and sizes were checked. Nothing is wrong with them."}</p>}
      {all.length > 0 && model.isDeep && <p class="quiet">Every byte was checked.</p>}
      <ul class="findings">{list.slice(0, MOST).map((f, i) => <Item key={i} finding={f} help={model.findings?.help[f.rule] ?? ""} show={show} />)}</ul>
      {list.length > MOST && <p class="quiet">… and {exactText(list.length - MOST)} more; the export has them all.</p>}
    </section>
  );
}
