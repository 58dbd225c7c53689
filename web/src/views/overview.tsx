/** The right side of the page until an entry is chosen: where the bytes are, and what is worth looking at. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect } from "preact/hooks";
import { belowTerm } from "../filter";
import { rankOf } from "../ranks";
import type { View } from "../route";
import { bytesText, countText, exactText, objectTexts, plural, shortName, visible } from "../text";
import { useModel } from "./hooks";
import { Facts, LevelMark } from "./parts";
import { groupsOf, loneText } from "./problems";

const MOST_BARS = 8, MOST_RATES = 4, MOST_PROBLEMS = 3;
/** `bytes` may be another amount, if `text` writes it. */
interface Amount { readonly name: string; readonly bytes: number; readonly show?: (() => void) | undefined }

/** A name that may go on in a new line after a dot or an underscore. */
const breakable = (name: string): ComponentChildren => shortName(visible(name)).split(/(?<=[._])/).flatMap((part, i) => i ? [<wbr />, part] : [part]);

function Bars({ title, list, text = bytesText, isOrdered = false }: { title: string; list: readonly Amount[]; text?: (amount: number) => string; isOrdered?: boolean }): JSX.Element | null {
  const sorted = isOrdered && list.length <= MOST_BARS ? list : [...list].sort((a, b) => b.bytes - a.bytes), most = Math.max(1, ...sorted.slice(0, MOST_BARS).map((a) => a.bytes)), rest = sorted.slice(MOST_BARS);
  if (list.length === 0) return null;
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      <ul class="bars">
        {sorted.slice(0, MOST_BARS).map(({ name, bytes, show }) => (
          <li key={name}><span class="label">{show ? <button type="button" class="link" title={name} onClick={show}>{breakable(name)}</button> : breakable(name)}</span><span class="bar" aria-hidden="true"><span style={{ width: `${bytes / most * 100}%` }} /></span><span class="amount">{text(bytes)}</span></li>
        ))}
        {rest.length > 0 && <li class="quiet"><span class="label">{exactText(rest.length)} more</span><span /><span class="amount">{text(rest.reduce((sum, r) => sum + r.bytes, 0))}</span></li>}
      </ul>
    </section>
  );
}

function byRank(files: readonly { readonly name: string; readonly used: number }[]): Amount[] {
  const ranks = new Map<number, number>();
  for (const { name, used } of files) {
    const rank = rankOf(name);
    if (rank !== undefined && used) ranks.set(rank, (ranks.get(rank) ?? 0) + used);
  }
  return ranks.size > 1 ? [...ranks].sort(([a], [b]) => a - b).map(([rank, bytes]) => ({ name: `rank ${rank}`, bytes })) : [];
}

function TopProblems({ go }: { go: (view: View) => void }): JSX.Element | null {
  const model = useModel(), groups = groupsOf(model).filter((g) => g.level !== "note");
  if (groups.length === 0) return null;
  return (
    <section aria-label="Top problems">
      <h3>Top problems</h3>
      <ul class="top-problems">{groups.slice(0, MOST_PROBLEMS).map((g) => <li key={g.rule}><LevelMark level={g.level} /> {loneText(model, g) ?? <>{visible(g.findings[0]?.message ?? "")}{g.count > 1 && <span class="quiet"> and {exactText(g.count - 1)} more like it</span>}</>}</li>)}</ul>
      <p><button type="button" class="small" onClick={() => go("problems")}>Show all problems</button></p>
    </section>
  );
}

/** Whether tensors hold NaN or infinite values, as far as that is known. */
function ValuesFact(): JSX.Element {
  const model = useModel(), { scan, opened, findings } = model;
  const found = new Set([...scan?.suspects.filter((s) => s.nan || s.inf).map((s) => s.fqn) ?? [], ...findings?.list.filter((f) => f.rule === "values/nan").map((f) => f.fqn) ?? []]).size + (findings?.unlisted["values/nan"] ?? 0);
  if (found) return <span class="bad">{plural(found, "tensor")} with NaN or infinite values</span>;
  if (scan?.skipped.length) return <>none found; {plural(scan.skipped.length, "tensor")} could not be scanned</>;
  if (scan || model.isDeep) return <>no NaN, no infinite values</>;
  if (opened?.isMetadataOnly || opened?.overview.absent.length) return <>unknown: data files are absent</>;
  return <>not scanned <button type="button" class="small" onClick={() => void model.scanValues()}>Scan (reads {bytesText(opened?.overview.bytes ?? 0)})</button></>;
}

function Summary(): JSX.Element | null {
  const { opened, about } = useModel();
  if (!opened) return null;
  const { overview, amounts: { optimizer, parameters } } = opened, others = overview.bytes - optimizer.bytes - (parameters?.bytes ?? 0);
  const facts: [string, ComponentChildren][] = [];
  if (parameters && parameters.elements > 0) facts.push(["parameters", `${countText(parameters.elements)} · ${bytesText(parameters.bytes)}`]);
  if (!parameters && overview.elements > 0) facts.push(["elements", `${countText(overview.elements)} · ${bytesText(overview.bytes)}`]);
  if (optimizer.bytes > 0) facts.push(["optimizer state", bytesText(optimizer.bytes)]);
  if (parameters && others > 0) facts.push(["other tensors", bytesText(others)]);
  if (about?.layers) facts.push(["layers", <>{exactText(about.layers.count)} <span class="quiet">in {shortName(visible(about.layers.name))}</span></>]);
  for (const { name, value } of about?.steps ?? []) facts.push([visible(name), value]);
  if (about?.rates.length) facts.push(["learning rate", about.rates.slice(0, MOST_RATES).join(", ") + (about.rates.length > MOST_RATES ? " …" : "")]);
  if (about?.mesh) facts.push(["mesh", visible(about.mesh)]);
  if (overview.tensors > 0) facts.push(["values", <ValuesFact />]);
  return facts.length ? <section aria-label="Summary"><Facts facts={facts} /></section> : null;
}

function Metadata(): JSX.Element | null {
  const list = useModel().fileMetadata ?? [];
  if (list.length === 0) return null;
  return (
    <section aria-label="File metadata">
      <h3>File metadata</h3>
      {list.map(({ file, texts }) => (
        <details key={file} open={file === undefined}>
          <summary><code>__metadata__</code>{file === undefined ? ", in every safetensors file" : ` only of ${visible(file)}`} ({plural(Object.keys(texts).length, "text")})</summary>
          <Facts facts={Object.entries(texts).map(([key, text]) => [visible(key), visible(text)] as const)} />
        </details>
      ))}
    </section>
  );
}

export function OverviewPane({ go }: { go: (view: View) => void }): JSX.Element | null {
  const model = useModel(), { opened, about } = model, overview = opened?.overview;
  useEffect(() => { if (model.opened && model.about === undefined) void model.loadOverview(); }, [model.opened]);
  if (!overview) return null;
  const files = overview.files.filter((f) => f.chunks > 0), ranks = byRank(files), entries = overview.tensors + overview.objects + overview.opaque;
  return (
    <>
      <h2>Overview</h2>
      <p class="quiet">{plural(overview.tensors, "tensor")}{overview.per_rank > 0 && ` (${exactText(overview.per_rank)} of them ${overview.per_rank === 1 ? "differs" : "differ"} from rank to rank)`} in {plural(files.length || overview.files.length, "file")}{objectTexts(overview).map((text) => `, ${text}`)}.{entries > 0 && " Choose an entry to see how it is stored."}</p>
      <Summary />
      <TopProblems go={go} />
      {about && about.modules.length > 1 && about.modules.some((m) => m.isGroup) && <Bars title={opened?.amounts.parameters ? "Parameters by module" : "Elements by module"} text={countText} list={about.modules.map(({ name, elements, isGroup }) => ({ name, bytes: elements, show: () => { if (isGroup) void model.lists.filter("all", belowTerm(name)); else void model.reveal(name); } }))} />}
      {overview.dtypes.length > 1 && <Bars title="Bytes by dtype" list={overview.dtypes} />}
      <Bars title="File bytes by rank" list={ranks} isOrdered />
      {files.length > 1 && files.length !== ranks.length && <Bars title="Bytes by file" list={files.map((f) => ({ name: f.absent ? `${f.name} (absent)` : f.name, bytes: f.used }))} />}
      {about && about.largest.length > 1 && <Bars title="Largest tensors" list={about.largest.map(({ fqn, bytes }) => ({ name: fqn, bytes, show: () => { go("contents"); void model.reveal(fqn); } }))} />}
      {about === null && <p class="quiet">There are too many tensors to list the largest here; sort the tree by size.</p>}
      <Metadata />
    </>
  );
}
