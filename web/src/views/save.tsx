/** What will be written, the button that writes it, and what was written. */
import type { JSX } from "preact";
import { saveBlob } from "../download";
import { inFields, troubleInFields } from "../field_names";
import type { ConversionResult } from "../../../wasm/tessera.js";
import type { WritingPreview, Written } from "../protocol";
import { placeText } from "../place";
import { DECIDING, type Saving } from "../saving";
import { bytesText, exactText, plural, visible } from "../text";
import { Current } from "./current";
import { TroubleBox } from "./parts";
import { Table } from "./table";

const MOST = 100;
/** Why an entry is not in the checkpoint that was written, and the file that has it. */
const ASIDE = "written to the sidecar", SIDECAR = "objects.json";
const OWN = "The browser keeps a copy in its own storage until this page is closed.";

function FileTable({ files, label }: { files: readonly { readonly name: string; readonly size: number }[]; label: string }): JSX.Element {
  return <Table label={label} head={<><th>File</th><th class="number">Size</th></>} rows={files} most={MOST} more=" files"
    row={(f) => <tr key={f.name}><td class="path"><code>{visible(f.name)}</code></td><td class="number">{f.size ? bytesText(f.size) : "known when written"}</td></tr>} />;
}

function Preview({ preview: { files, bytes }, name }: { preview: WritingPreview; name: (file: string) => string }): JSX.Element {
  return (
    <>
      <p role="status">{bytesText(bytes)} of tensors; {plural(files.length, "file")}.</p>
      <FileTable label="Files that would be written" files={files.map((f) => ({ name: name(f.name), size: f.size }))} />
      {files.some((f) => /^[^.]/.test(f.name)) && <p class="quiet">A file that marks the checkpoint as complete, such as .metadata or an index, is written last and is not listed here.</p>}
    </>
  );
}

/** "35 entries left out (21 not selected, 14 objects)". */
function leftText(entries: ConversionResult["entries"], left: number): string {
  const reasons = new Map<string, number>();
  for (const { left_out: why } of entries) if (why !== undefined && why !== ASIDE) reasons.set(why, (reasons.get(why) ?? 0) + 1);
  const reason = (why: string, n: number) => why === "objects are dropped" ? plural(n, "object") : `${exactText(n)} ${visible(why)}`;
  return `${plural(left, "entry", "entries")} left out${reasons.size ? ` (${[...reasons].map(([why, n]) => reason(why, n)).join(", ")})` : ""}`;
}

function Result({ written: { result, files, download, title }, fields, omitted }: { written: Written & { readonly title: string }; fields: readonly string[]; omitted: string }): JSX.Element {
  const { summary: s, warnings, entries } = result;
  const whole = entries.filter((e) => e.replicated).length, aside = entries.filter((e) => e.left_out === ASIDE).length, left = s.left_out - aside;
  const more = [s.cast && `${plural(s.cast, "tensor")} cast`, s.kept && `${plural(s.kept, "scalar")} of optimizer state not cast`, s.copied && `${plural(s.copied, "tied tensor")} copied`, aside && `${plural(aside, "object")} as JSON in ${visible(files.find((f) => f.name.endsWith(SIDECAR))?.name ?? "")}`, left && leftText(entries, left), whole && `${plural(whole, "tensor")} replicated (too few dims)`].filter(Boolean);
  return (
    <div class="written" role="status">
      <p><strong>Wrote {[plural(s.tensors, "tensor"), ...(s.objects ? [plural(s.objects, "object")] : [])].join(" and ")} to {visible(title)}</strong>: {bytesText(files.reduce((sum, f) => sum + f.size, 0))} in {plural(files.length, "file")}{more.length > 0 && `; ${more.join(", ")}`}.</p>
      {omitted && <p>{omitted}</p>}
      <FileTable label="Files that were written" files={files} />
      {warnings.length > 0 && <ul class="names">{warnings.map((w) => <li key={w}>{visible(inFields(w, fields))}</li>)}</ul>}
      {download && <p class="buttons"><button type="button" onClick={() => saveBlob(download.name, download.blob)}>Download {visible(download.name)} again</button> <span class="quiet">{bytesText(download.blob.size)}. {OWN}</span></p>}
    </div>
  );
}

interface SaveProps {
  readonly saving: Saving;
  /** Whether the preview, or its error, belongs to the current state of the form. */
  readonly isCurrent: boolean;
  readonly name: string;
  /** The options of the command for which there is a field. */
  readonly fields: readonly string[];
  /** The name under which a file of the preview is shown. */
  readonly fileName: (file: string) => string;
  readonly save: () => void;
  /** Whether a single file is written. */
  readonly isFile: boolean;
  /** Asks for the preview again. */
  readonly retry: () => void;
  /** What the form leaves out, as a sentence. */
  readonly left?: string | undefined;
  /** Whether a map is applied to what is written. */
  readonly isMapped?: boolean;
}

export function Save({ saving, isCurrent, name, fields, fileName, save, isFile, retry, left = "", isMapped = false }: SaveProps): JSX.Element {
  const { preview, previewTrouble, trouble, written, isRunning, isCancelled } = saving, shown = `${saving.previewed} ${name}`, isWritten = written !== undefined && saving.saved === shown, isReady = isCurrent && preview !== undefined;
  const submit = () => {
    saving.saved = shown;
    saving.left = left;
    save();
  };
  return (
    <section aria-label="Save">
      <h2>{isWritten ? "What was written" : "What will be written"}</h2>
      <Current isCurrent={isCurrent} waiting={DECIDING}>
        {previewTrouble && <TroubleBox trouble={troubleInFields(previewTrouble, fields)} isMapped={isMapped} retry={retry} />}
        {preview && !isWritten && <Preview preview={preview} name={fileName} />}
        {preview && left && !isWritten && <p>{left}</p>}
      </Current>
      <form class="slice" onSubmit={(e) => { e.preventDefault(); if (isReady && !isRunning) submit(); }}>
        <label>Name <input type="text" value={name} spellcheck={false} onInput={(e) => saving.rename(e.currentTarget.value)} /></label>
        <button type="submit" class="primary" disabled={!isReady || !name.trim()} aria-disabled={isRunning}>{isRunning ? "Writing …" : "Save…"}</button>
      </form>
      {preview && <p class="quiet">{placeText(isFile)}</p>}
      {trouble && <TroubleBox trouble={troubleInFields(trouble, fields)} />}
      {isCancelled && <p role="status">Cancelled. Nothing was left behind.</p>}
      {written && <Result written={written} fields={fields} omitted={saving.left} />}
    </section>
  );
}
