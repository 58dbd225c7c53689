/** Answers whether the checkpoint would load: what is missing, unexpected or different for a model or for another
 *  checkpoint. This script is loaded on demand. */
import type { JSX } from "preact";
import { CONVERT_START } from "../convert_form";
import { saveText } from "../download";
import { CHECKING } from "../load_check";
import type { Finding, LoadFindings } from "../protocol";
import type { Rename } from "../renames";
import { NO_SOURCE, shellText, sourceOptions } from "../command";
import { exactText, plural, visible } from "../text";
import { Current } from "./current";
import { useModel, useView } from "./hooks";
import { Opener } from "./opener";
import { Copy, TroubleBox } from "./parts";
import { Table } from "./table";

const MOST = 200;
/** Formats that are loaded by PyTorch's distributed checkpoint. */
const DCP: ReadonlySet<string> = new Set(["dcp", "dcp-safetensors", "megatron-dist", "lightning-dist", "accelerate-fsdp"]);
const CASTS: readonly string[] = ["layout/dtype"];

function Entries({ title, findings, show }: { title: string; findings: readonly Finding[]; show: (fqn: string) => void }): JSX.Element | null {
  if (findings.length === 0) return null;
  return (
    <section aria-label={title}>
      <h2>{title} <span class="quiet">({exactText(findings.length)})</span></h2>
      <ul class="names">
        {findings.slice(0, MOST).map((f, i) => <li key={i}>{visible(f.message)}{title !== "Missing" && f.fqn !== undefined && <> <button type="button" class="link" onClick={() => show(f.fqn ?? "")}>Show</button></>}</li>)}
      </ul>
      {findings.length > MOST && <p class="quiet">… and {exactText(findings.length - MOST)} more.</p>}
    </section>
  );
}

function Renames({ renames, use }: { renames: readonly Rename[]; use: (rule: string) => void }): JSX.Element | null {
  if (renames.length === 0) return null;
  return (
    <section aria-label="Suggested renames">
      <h2>Suggested renames</h2>
      <p class="quiet">Judged by names alone: each would give unexpected entries the names of missing ones. Shapes and dtypes are compared when you check the result.</p>
      <Table label="Renames" head={<><th>--rename</th><th class="number">Would fit</th><th>For example</th><th>Use</th></>} rows={renames} row={(r) => (
        <tr key={r.rule}><td><code>{visible(r.rule)}</code></td><td class="number">{exactText(r.fits)} of {exactText(r.changes)}</td><td><code>{visible(r.example[0])} → {visible(r.example[1])}</code></td>
          <td><Copy text={`--rename '${r.rule}'`} what={`--rename ${r.rule}`} /> <button type="button" class="small" onClick={() => use(r.rule)} aria-label={`Convert with ${r.rule}`}>Convert…</button></td></tr>
      )} />
    </section>
  );
}

/** What PyTorch does with each kind: a cast and entries that `dcp.load` does not ask for prevent nothing. */
function judged({ missing, unexpected, mismatched, unlisted }: LoadFindings, isDcp: boolean): { readonly isFine: boolean; readonly text: string } {
  const isCast = (f: Finding) => CASTS.includes(f.rule), cast = mismatched.filter(isCast).length, different = mismatched.length - cast;
  const count = (n: number, word: string) => n ? [`${exactText(n)} ${word}`] : [], refused = isDcp ? 0 : unexpected.length;
  const faults = [...count(missing.length, "missing"), ...count(refused, "unexpected"), ...count(different, "different")];
  const more = [
    ...(cast ? [`${plural(cast, "tensor")} with another dtype would be cast.`] : []),
    ...(unexpected.length && isDcp ? [`${exactText(unexpected.length)} more ${unexpected.length === 1 ? "entry is" : "entries are"} here; PyTorch reads only what it is asked for.`] : []),
    ...(refused ? ["load_state_dict refuses what is unexpected, unless strict is False."] : []),
    ...(unlisted ? [`${exactText(unlisted)} more were counted and are not listed.`] : []),
  ];
  const isFine = faults.length === 0;
  const start = !isFine ? `It would not load as it is: ${faults.join(", ")}.` : `It would load: every expected entry is here, with ${cast ? "its shape" : "what is stated of its dtype and shape"}. Values were not compared.`;
  return { isFine, text: [start, ...more].join(" ") };
}

function Result({ result }: { result: LoadFindings }): JSX.Element {
  const model = useModel(), [, go] = useView(), show = (fqn: string) => { void model.reveal(fqn); };
  const use = (rule: string) => {
    const form = model.convertForm ?? CONVERT_START;
    model.convertForm = { ...form, rename: [...form.rename.split("\n").filter(Boolean), rule].join("\n") };
    go("convert");
  };
  const { isFine, text } = judged(result, DCP.has(model.opened?.overview.format ?? ""));
  return (
    <>
      <p role="status" class={isFine ? "" : "bad"}><strong>{text}</strong></p>
      <Renames renames={result.renames} use={use} />
      <Entries title="Missing" findings={result.missing} show={show} />
      <Entries title="Different" findings={result.mismatched} show={show} />
      <Entries title="Unexpected" findings={result.unexpected} show={show} />
    </>
  );
}

function Contract(): JSX.Element {
  const model = useModel(), source = model.opening ?? NO_SOURCE, command = shellText({ name: "validate", operands: [source.title], options: { layout: "layout.json", format: "github", ...sourceOptions(source) } });
  const save = async (chunks: boolean) => {
    const text = await model.run("Writing the layout", undefined, () => model.client.call("layout", { chunks }), model.hear);
    if (text !== undefined) saveText("layout.json", text);
  };
  return (
    <section aria-label="Layout contract">
      <h2>Check it in CI</h2>
      <p class="quiet">The layout lists every name with its dtype and shape. Commit it, and let CI check later checkpoints against it.</p>
      <p class="buttons">
        <button type="button" onClick={() => void save(false)}>Export layout.json</button>
        <button type="button" onClick={() => void save(true)}>Export with sharding</button>
      </p>
      <p class="command"><code>{visible(command)}</code> <Copy text={command} what="command" /></p>
    </section>
  );
}

export function Load(): JSX.Element {
  const model = useModel(), check = model.loadCheck;
  return (
    <section class="view" aria-label="Would it load?">
      {check.title === undefined ? <>
        <h2>Would it load?</h2>
        <p class="quiet">Drop what is to load this checkpoint: a module tree (tessera.modules/1, which samples/describe_modules.py writes), a layout, an index, a JSON list of names, or another checkpoint.</p>
        {check.trouble && <TroubleBox trouble={check.trouble} />}
        <Opener about="a model's description or checkpoint" open={(prepare) => void check.against(prepare)} />
      </> : <>
        <h2>Would {visible(check.title)} load it?</h2>
        <div class="fields">
          <label>Only names with this prefix, without it<input type="text" value={check.prefix} placeholder="model." spellcheck={false} onInput={(e) => void check.set({ prefix: e.currentTarget.value })} /></label>
          <label class="check"><input type="checkbox" checked={check.allowsExtra} onChange={(e) => void check.set({ allowsExtra: e.currentTarget.checked })} /> Ignore unexpected entries</label>
        </div>
        <Current isCurrent={!check.isChecking} waiting={CHECKING}>
          {check.trouble && <TroubleBox trouble={check.trouble} />}
          {check.result && <Result result={check.result} />}
        </Current>
        <p class="buttons"><button type="button" onClick={() => { check.reset(); model.changed(); }}>Check against something else</button></p>
      </>}
      <Contract />
    </section>
  );
}
