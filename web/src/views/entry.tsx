/** One entry: its facts, its shard map, its values and the findings about it. This script is fetched when the first entry is chosen. */
import type { JSX } from "preact";
import { belowTerm } from "../filter";
import type { Selected } from "../model";
import { isDense, type Detail, type ObjectDetail, type PerRankDetail, type TensorDetail } from "../protocol";
import { bytesText, exactText, fullBytesText, plural, realText, shapeText, visible } from "../text";
import { closeEntry } from "./detail";
import { useModel, useNarrow, useView } from "./hooks";
import { Later } from "./later";
import { Copy, Facts, LevelMark, TroubleBox } from "./parts";
import { ShardMapView } from "./shard_map";
import { markText } from "./tree_columns";
import { Values } from "./values";

function TensorFacts({ detail }: { detail: TensorDetail }): JSX.Element {
  const elements = detail.shape.reduce((a, b) => a * b, 1);
  const facts: [string, string][] = [["dtype", detail.dtype], ["shape", shapeText(detail.shape)], ...(detail.shape.length > 1 ? [["elements", exactText(elements)] as [string, string]] : []), ["size", fullBytesText(detail.bytes)]];
  if (detail.mesh) facts.push(["mesh", detail.mesh]);
  if (detail.placements) facts.push(["placements", detail.placements]);
  if (detail.requires_grad) facts.push(["requires_grad", "yes"]);
  if (detail.parameter) facts.push(["parameter", "yes"]);
  if (detail.shares_storage_with) facts.push(["shares storage with", detail.shares_storage_with.map(visible).join(", ")]);
  if (detail.replicas) facts.push(["replicas", plural(detail.replicas.length, "further chunk")]);
  return <Facts facts={facts} />;
}

function ObjectView({ detail }: { detail: ObjectDetail }): JSX.Element {
  const { text } = detail, facts: [string, string][] = [["kind", detail.kind], ["type", visible(detail.type)]];
  if (detail.dtype) facts.push(["dtype", detail.dtype]);
  if (detail.shape) facts.push(["shape", shapeText(detail.shape)]);
  if (detail.mesh) facts.push(["mesh", detail.mesh]);
  if (detail.placements) facts.push(["placements", detail.placements]);
  for (const { name, dtype, shape } of detail.inner ?? []) facts.push([`inner tensor ${visible(name)}`, `${dtype}${shape ? ` ${shapeText(shape)}` : ""}`]);
  return (
    <>
      <Facts facts={facts} />
      {text === undefined ? <p class="quiet">Its value cannot be shown.</p> : <pre tabIndex={0} aria-label="Value">{text}</pre>}
    </>
  );
}

function PerRankView({ detail: { dtype, dtypes, shapes, bytes } }: { detail: PerRankDetail }): JSX.Element {
  const held = shapes.map((shape, rank) => [`rank ${rank}`, shape ? `${dtype ?? dtypes?.[rank] ?? ""} ${shapeText(shape)}` : "–"] as const);
  return <><p class="quiet">Each rank has a tensor of its own under this name.</p><Facts facts={[...held, ["size of all", bytesText(bytes)]]} /></>;
}

function Body({ detail }: { detail: Detail }): JSX.Element {
  if (detail.per_rank) return <PerRankView detail={detail} />;
  if (detail.kind !== "tensor") return <ObjectView detail={detail} />;
  return <><TensorFacts detail={detail} /><ShardMapView detail={detail} /><Values detail={detail} /></>;
}

/** The name of the entry. Each module in it shows what it holds. */
function Breadcrumb({ selected: { fqn, compared } }: { selected: Selected }): JSX.Element {
  const model = useModel(), [, go] = useView(), isNarrow = useNarrow(), parts = fqn.split("."), last = parts.pop() ?? "";
  const show = (module: string) => {
    if (isNarrow) model.deselect(); // it covers the list
    if (!compared) go("contents");
    void model.lists.filter(compared ? "compare" : "all", belowTerm(module));
  };
  return <h2 aria-label={visible(fqn)}><span class="quiet crumbs">{parts.map((p, i) => [i > 0 && "\u200b", <button key={i} type="button" class="link" title="Show what is in it" onClick={() => show(parts.slice(0, i + 1).join("."))}>{visible(p)}.</button>])}</span>{visible(last)}</h2>;
}

const loadDiff = async () => (await import("./tensor_diff")).TensorDiff;

function ComparedFacts({ selected: { compared, fqn, detail, map } }: { selected: Selected }): JSX.Element | null {
  if (!compared) return null;
  const facts: [string, string][] = [["change", markText(compared)]];
  if (compared.differing !== undefined) facts.push(["values that differ", exactText(compared.differing)]);
  if (compared.maxAbs !== undefined) facts.push(["largest difference", compared.maxAbs === 0 ? "none between numbers: they differ as NaN or in the sign of zero" : `${realText(compared.maxAbs)}, where both are numbers`]);
  return <section aria-label="Comparison with B"><h3>Comparison</h3><Facts facts={facts} /><Later key={`${fqn} ${compared.other}`} load={loadDiff} fqn={fqn} detail={detail} compared={compared} map={map} /></section>;
}

export function EntryPane({ selected }: { selected: Selected }): JSX.Element {
  const model = useModel(), findings = selected.map.map === undefined && model.findings?.list.filter((f) => f.fqn === selected.fqn) || []; // they have A's own names
  return (
    <>
      <header>
        <Breadcrumb selected={selected} />
        <Copy text={selected.fqn} what="name" />
        <button type="button" class="small" onClick={() => closeEntry(model)} aria-label="Close entry" title="Esc">✕</button>
      </header>
      {selected.trouble && <TroubleBox trouble={selected.trouble} />}
      {!model.opened?.isMetadataOnly && findings.map((f, i) => <p key={i} class={`finding ${f.level}`}><LevelMark level={f.level} /> <code>{f.rule}</code> {visible(f.message)}</p>)}
      <ComparedFacts selected={selected} />
      {selected.detail && (selected.compared && isDense(selected.detail) ? <Values key={selected.entry} detail={selected.detail} /> : <Body key={selected.entry} detail={selected.detail} />)}
    </>
  );
}
