/** The files by size. For each file: how much of it the entries use, and which places. */
import { hierarchy, treemap } from "d3-hierarchy";
import type { JSX } from "preact";
import { fileTerm } from "../filter";
import type { Model } from "../model";
import type { FileUse } from "../protocol";
import { absentText, bytesText, exactText, missingText, plural, shortName, visible } from "../text";
import { useModel, useWidth } from "./hooks";
import { Table } from "./table";

interface Leaf { readonly file?: FileUse; readonly children?: readonly Leaf[] }
const HEIGHT = 220, LOW = 60, MOST = 400, MOST_NAMES = 12;

function Treemap({ files, show }: { files: readonly FileUse[]; show: (name: string) => void }): JSX.Element {
  const root = hierarchy<Leaf>({ children: files.map((file) => ({ file })) }, (n) => n.children).sum((n) => n.file?.size ?? 0).sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
  const height = files.length > 1 ? HEIGHT : LOW, [box, width] = useWidth();
  const leaves = treemap<Leaf>().size([width, height]).padding(2).round(true)(root).leaves();
  return (
    <svg ref={box} class="treemap" viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`${plural(files.length, "file")} by size; the table below says the same`}>
      <defs><pattern id="absent" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="map-back" width="6" height="6" /><rect class="away-line" width="1" height="6" /></pattern></defs>
      {leaves.map(({ data: { file }, x0, y0, x1, y1 }) => file && (
        <g key={file.name} onClick={() => show(file.name)}>
          <rect class={`file${file.absent ? " absent" : file.chunks === 0 ? " unused" : ""}`} x={x0} y={y0} width={x1 - x0} height={y1 - y0}><title>{`${visible(file.name)}: ${bytesText(file.size)}, ${bytesText(file.used)} in use`}</title></rect>
          {x1 - x0 > 60 && y1 - y0 > 24 && <text x={x0 + 8} y={y0 + 20}>{shortName(visible(file.name), Math.floor((x1 - x0 - 12) / 8))}</text>}
        </g>
      ))}
    </svg>
  );
}

function Strip({ file }: { file: FileUse }): JSX.Element {
  return (
    <svg class="strip" viewBox="0 0 200 10" preserveAspectRatio="none" role="img" aria-label={`${Math.round(file.used / Math.max(1, file.size) * 100)} % in use`}>
      <rect class="strip-back" width="200" height="10" />
      {file.taken.map(([at, size], i) => <rect key={i} class="strip-taken" x={at / file.size * 200} width={Math.max(0.4, size / file.size * 200)} height="10" />)}
    </svg>
  );
}

/** Whether a file of this name lists the entries of a checkpoint and the files that hold them. */
const isIndex = (name: string): boolean => /(^|\/)(\.metadata|__\d+\.metadata|[^/]*\.index\.json)$/.test(name);

async function findTwins(model: Model): Promise<void> {
  const { opening: a, opened } = model;
  if (!a || !opened) return;
  const twins = await model.runAside("Looking for equal tensors", { a }, opened.overview.bytes, (client) => client.call("twins", {}));
  if (twins) model.twins = twins;
  model.changed();
}

/** Tensors with equal bytes. They could be tied, or they were saved twice. */
function Duplicates({ show }: { show: (fqn: string) => void }): JSX.Element {
  const model = useModel(), groups = model.twins?.groups, absent = model.opened?.overview.absent.length ?? 0;
  const wasted = groups?.reduce((sum, g) => sum + g.bytes * (g.stored - 1), 0) ?? 0;
  return (
    <section aria-label="Duplicates">
      <h2>Duplicates</h2>
      {!groups && absent > 0 && <p class="quiet">Tensors cannot be compared with each other, because {absentText(absent)}.</p>}
      {!groups && absent === 0 && <p class="buttons"><button type="button" onClick={() => void findTwins(model)}>Look for tensors with equal bytes (reads up to {bytesText(model.opened?.overview.bytes ?? 0)})</button></p>}
      {groups && <p class="fine" role="status">{groups.length ? `${plural(groups.length, "group")} of tensors ${groups.length === 1 ? "holds" : "hold"} equal bytes, ${wasted ? `${bytesText(wasted)} more than once` : groups.length === 1 ? "which are stored once" : "each stored once"}.` : "No two tensors hold equal bytes."}</p>}
      {groups && <ul class="names">{groups.slice(0, MOST).map((g) => (
        <li key={g.fqns[0]}>{bytesText(g.bytes)}{g.stored < g.fqns.length && ` (stored ${g.stored === 1 ? "once" : `${exactText(g.stored)} times`})`}: {g.fqns.slice(0, MOST_NAMES).map((n, i) => <>{i > 0 && ", "}<button type="button" class="link" onClick={() => show(n)}>{visible(n)}</button></>)}{g.fqns.length > MOST_NAMES && `… and ${exactText(g.fqns.length - MOST_NAMES)} more`}</li>
      ))}</ul>}
    </section>
  );
}

export function Files({ showFile, show }: { showFile: (term: string) => void; show: (fqn: string) => void }): JSX.Element {
  const overview = useModel().opened?.overview, files = overview?.files ?? [], missing = overview?.missing_chunks ?? 0;
  const bySize = [...files].sort((a, b) => b.size - a.size).slice(0, MOST);
  return (
    <section class="view" aria-label="Files">
      <p class="quiet">The bytes in use are those of dense tensors and, in a DCP, of all items. The rest of a sound file is headers, metadata, objects and padding. Choose a file to see its tensors.</p>
      {overview && overview.absent.length > 0 && <p class="bad" role="status">{absentText(overview.absent.length)}, and with {overview.absent.length === 1 ? "it" : "them"} {plural(missing, "chunk")}. An absent file has at least the size that the metadata implies.</p>}
      {overview?.absent.length === 0 && missing > 0 && <p class="bad" role="status">{missingText(missing)}; Problems says why.</p>}
      <Treemap files={bySize} show={(name) => showFile(fileTerm(name))} />
      <Table label="File table" kind="wide" head={<><th>File</th><th class="number">Size</th><th class="number">In use</th><th class="number">Chunks</th><th>Where</th></>} rows={bySize} row={(f) => (
        <tr key={f.name}>
          <td class="path"><button type="button" class="link" onClick={() => showFile(fileTerm(f.name))}>{visible(f.name)}</button>{f.absent ? <span class="bad"> absent</span> : f.chunks === 0 && <span class="quiet"> {isIndex(f.name) ? "lists the entries" : missing === 0 && "has no dense tensors of this checkpoint"}</span>}</td>
          <td class="number">{bytesText(f.size)}</td><td class="number">{bytesText(f.used)}</td><td class="number">{exactText(f.chunks)}</td><td><Strip file={f} /></td>
        </tr>
      )} />
      {files.length > MOST && <p class="quiet">The {MOST} largest of {exactText(files.length)} files.</p>}
      <Duplicates show={show} />
    </section>
  );
}
