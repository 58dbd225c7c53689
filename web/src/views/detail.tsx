/** One entry: facts, shard map, values, findings about it. */
import type { JSX } from "preact";
import type { Model } from "../model";
import type { Detail, ObjectDetail, TensorDetail } from "../protocol";
import { bytesText, exactText, shapeText, visible } from "../text";
import { useModel } from "./hooks";
import { Copy, Facts, LevelMark, TroubleBox } from "./parts";
import { ShardMapView } from "./shard_map";
import { Values } from "./values";

function TensorFacts({ detail }: { detail: TensorDetail }): JSX.Element {
  const elements = detail.shape.reduce((a, b) => a * b, 1);
  const facts: [string, string][] = [["dtype", detail.dtype], ["shape", shapeText(detail.shape)], ["elements", exactText(elements)], ["size", `${bytesText(detail.bytes)} (${exactText(detail.bytes)} bytes)`]];
  if (detail.mesh) facts.push(["mesh", detail.mesh]);
  if (detail.placements) facts.push(["placements", detail.placements]);
  if (detail.requires_grad) facts.push(["requires_grad", "yes"]);
  if (detail.parameter) facts.push(["parameter", "yes"]);
  if (detail.shares_storage_with) facts.push(["shares storage with", detail.shares_storage_with.map(visible).join(", ")]);
  if (detail.replicas) facts.push(["further copies", `${detail.replicas.length} chunks`]);
  return <Facts facts={facts} />;
}

function ObjectView({ detail }: { detail: ObjectDetail }): JSX.Element {
  const text = detail.value === undefined ? detail.repr : JSON.stringify(detail.value, null, 2);
  return (
    <>
      <Facts facts={[["kind", detail.kind], ["type", visible(detail.type)], ...(detail.dtype ? [["dtype", detail.dtype] as const] : []), ...(detail.shape ? [["shape", shapeText(detail.shape)] as const] : [])]} />
      {text === undefined ? <p class="quiet">Nothing of it can be shown.</p> : <pre tabIndex={0} aria-label="Value">{text}</pre>}
    </>
  );
}

function Body({ detail }: { detail: Detail }): JSX.Element {
  if (detail.kind !== "tensor") return <ObjectView detail={detail} />;
  return <><TensorFacts detail={detail} /><ShardMapView detail={detail} /><Values detail={detail} /></>;
}

/** And back to the list. */
export function closeEntry(model: Model): void {
  model.deselect();
  setTimeout(() => document.querySelector<HTMLElement>(".grid")?.focus());
}

export function DetailPane(): JSX.Element | null {
  const model = useModel(), selected = model.selected;
  if (!selected) return null;
  const findings = model.findings?.list.filter((f) => f.fqn === selected.fqn) ?? [];
  return (
    <aside class="detail" aria-label="Entry">
      <header>
        <h2>{visible(selected.fqn)}</h2>
        <Copy text={selected.fqn} what="name" />
        <button type="button" class="small" onClick={() => closeEntry(model)} aria-label="Close entry" title="Esc">✕</button>
      </header>
      {selected.trouble && <TroubleBox trouble={selected.trouble} />}
      {findings.map((f, i) => <p key={i} class="note"><LevelMark level={f.level} /> <code>{f.rule}</code> {visible(f.message)}</p>)}
      {selected.detail && <Body detail={selected.detail} />}
    </aside>
  );
}
