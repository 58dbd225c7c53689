/** The right side of the page until an entry is chosen: where the bytes are, and what is worth looking at. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { rankOf } from "../ranks";
import type { View } from "../route";
import { bytesText, exactText, plural, visible } from "../text";
import { useModel } from "./hooks";
import { Facts, LevelMark } from "./parts";

const MOST_BARS = 8;
interface Amount { readonly name: string; readonly bytes: number; readonly show?: () => void }

function Bars({ title, list }: { title: string; list: readonly Amount[] }): JSX.Element | null {
  const sorted = [...list].sort((a, b) => b.bytes - a.bytes), most = Math.max(1, sorted[0]?.bytes ?? 0), rest = sorted.slice(MOST_BARS);
  if (list.length === 0) return null;
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      <ul class="bars">
        {sorted.slice(0, MOST_BARS).map(({ name, bytes, show }) => (
          <li key={name}><span class="label">{show ? <button type="button" class="link" onClick={show}>{visible(name)}</button> : visible(name)}</span><span class="bar" aria-hidden="true"><span style={{ width: `${bytes / most * 100}%` }} /></span><span class="amount">{bytesText(bytes)}</span></li>
        ))}
        {rest.length > 0 && <li class="quiet"><span class="label">{exactText(rest.length)} more</span><span /><span class="amount">{bytesText(rest.reduce((sum, r) => sum + r.bytes, 0))}</span></li>}
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
  return ranks.size > 1 ? [...ranks].map(([rank, bytes]) => ({ name: `rank ${rank}`, bytes })) : [];
}

function TopProblems({ go }: { go: (view: View) => void }): JSX.Element | null {
  const model = useModel(), list = model.findings?.list.filter((f) => f.level !== "note") ?? [];
  const rules = [...new Map(list.map((f) => [f.rule, f])).values()].slice(0, 3);
  if (rules.length === 0) return null;
  return (
    <section aria-label="Top problems">
      <h3>Top problems</h3>
      <ul class="top-problems">{rules.map((f) => <li key={f.rule}><LevelMark level={f.level} /> {visible(f.message)}</li>)}</ul>
      <p><button type="button" class="small" onClick={() => go("problems")}>Show all problems</button></p>
    </section>
  );
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
  const model = useModel(), overview = model.opened?.overview;
  useEffect(() => { if (model.opened && model.largest === undefined) void model.loadOverview(); }, [model.opened]);
  if (!overview) return null;
  const files = overview.files.filter((f) => f.chunks > 0), entries = overview.tensors + overview.objects + overview.opaque;
  return (
    <>
      <h2>Overview</h2>
      <p class="quiet">{plural(overview.tensors, "tensor")}{overview.per_rank > 0 && ` (${exactText(overview.per_rank)} of them ${overview.per_rank === 1 ? "differs" : "differ"} from rank to rank)`} in {plural(files.length || overview.files.length, "file")}{overview.objects > 0 && `, ${plural(overview.objects, "object")}`}{overview.opaque > 0 && `, ${plural(overview.opaque, "opaque entry", "opaque entries")}`}.{entries > 0 && " Choose an entry to see how it is stored."}</p>
      <TopProblems go={go} />
      <Bars title="Bytes by dtype" list={overview.dtypes} />
      <Bars title="Bytes by rank" list={byRank(files)} />
      <Bars title="Bytes by file" list={files.map((f) => ({ name: f.absent ? `${f.name} (absent)` : f.name, bytes: f.used }))} />
      {model.largest && <Bars title="Largest tensors" list={model.largest.map(({ fqn, bytes }) => ({ name: fqn, bytes, show: () => { go("contents"); void model.reveal(fqn); } }))} />}
      {model.largest === null && <p class="quiet">There are too many tensors to list the largest here; sort the tree by size.</p>}
      <Metadata />
    </>
  );
}
