/** The checkpoint's names in the form to which PyTorch canonicalizes them: which components are removed and why, and which
 *  names collide. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { saveText } from "../download";
import { NAMES_FIELDS, troubleInFields } from "../field_names";
import { mapOptionsOf } from "../map_choice";
import type { Model } from "../model";
import type { FqnDocument } from "../protocol";
import { exactText, plural, visible } from "../text";
import { useModel } from "./hooks";
import { MapFields } from "./map_fields";
import { TroubleBox } from "./parts";
import { Table } from "./table";

const MOST = 500;

/** Which components are removed and why, and what was assumed: once each, with the number of names. */
function Removed({ names }: { names: FqnDocument["names"] }): JSX.Element | null {
  const reasons = new Map<string, { why: string; count: number }>(), assumed = new Map<string, number>();
  for (const { component, why } of names.flatMap((n) => n.removed)) reasons.set(component, { why, count: (reasons.get(component)?.count ?? 0) + 1 });
  for (const { ambiguity, removed } of names) if (ambiguity && removed.length) assumed.set(ambiguity, (assumed.get(ambiguity) ?? 0) + 1);
  if (reasons.size + assumed.size === 0) return null;
  return (
    <>
      <h3>Removed components</h3>
      <ul class="names">{[...reasons].map(([component, { why, count }]) => <li key={component}><code>{visible(component)}</code>: {visible(why)} <span class="quiet">({plural(count, "name")})</span></li>)}</ul>
      {[...assumed].map(([text, count]) => <p key={text}>{text[0]?.toUpperCase()}{visible(text.slice(1))} <span class="quiet">({plural(count, "name")})</span></p>)}
    </>
  );
}

function Collisions({ collisions }: { collisions: FqnDocument["collisions"] }): JSX.Element | null {
  if (collisions.length === 0) return null;
  return (
    <>
      <h3>Collisions</h3>
      <p class="bad" role="status">{plural(collisions.length, "canonical name")} {collisions.length === 1 ? "has" : "have"} several originals. A model can load only one of them.</p>
      <ul class="names">{collisions.slice(0, MOST).map((c) => <li key={c.fqn}>{visible(c.fqn)} ← {c.raw.map(visible).join(", ")}</li>)}</ul>
    </>
  );
}

/** Canonicalizes the names that the chosen map makes, unless that was done. */
async function loadNames(model: Model): Promise<void> {
  const { mapChoice } = model, naming: Model["naming"] = { of: mapChoice, names: undefined, trouble: undefined };
  if (model.naming?.names && model.naming.of === mapChoice) return;
  model.naming = naming;
  naming.names = await model.run("Canonicalizing names", undefined, () => model.client.call("names", { map: mapOptionsOf(mapChoice) }), (trouble) => { naming.trouble = trouble; });
  model.changed();
}

export function NamesView(): JSX.Element {
  const model = useModel(), { names, trouble } = model.naming?.of === model.mapChoice ? model.naming : {}, [onlyChanged, setOnlyChanged] = useState(true);
  useEffect(() => { void loadNames(model); }, [model.mapChoice, model.opening]);
  const changed = names?.names.filter((n) => n.removed.length > 0 || n.ambiguity !== undefined || n.fqns.length !== 1) ?? [];
  const isAll = !onlyChanged || (changed.length === 0 && model.mapChoice.name !== ""); // the map made the names, so they are shown
  const list = isAll ? names?.names ?? [] : changed;
  return (
    <section class="view" aria-label="Names">
      <h2>Canonical names</h2>
      <p class="quiet">Wrappers such as DDP, torch.compile and activation checkpointing put components into names that PyTorch removes again when it loads or saves a state dict. This view judges by the names alone.</p>
      <MapFields />
      {trouble && <TroubleBox trouble={troubleInFields(trouble, NAMES_FIELDS)} isMapped={model.mapChoice.name !== ""} retry={() => void loadNames(model)} />}
      {names && <>
        <p role="status">{changed.length ? `${exactText(changed.length)} of ${plural(names.names.length, "name")} ${changed.length === 1 ? "changes" : "change"}.` : names.names.length === 0 ? "There are no names." : names.names.length === 1 ? "The name is canonical already." : `All ${plural(names.names.length, "name")} are canonical already.`}</p>
        <Collisions collisions={names.collisions} />
        <Removed names={names.names} />
        <p class="buttons">
          {changed.length > 0 && <button type="button" aria-pressed={!isAll} onClick={() => setOnlyChanged(!onlyChanged)}>Only names that change</button>}
          <button type="button" onClick={() => saveText("names.json", JSON.stringify(names, null, 1))}>Export JSON</button>
        </p>
        {list.length > 0 && <Table label="Names and canonical names" kind="wide" head={<><th>Name</th><th>Canonical name</th><th>Note</th></>} rows={list} most={MOST} more="; the export has them all"
          row={(n) => <tr key={n.raw}><td><code>{visible(n.raw)}</code></td><td><code>{n.fqns.map(visible).join(" ")}</code></td><td>{n.removed.length ? n.removed.map((r) => visible(r.component)).join(", ") : visible(n.ambiguity ?? "")}</td></tr>} />}
      </>}
    </section>
  );
}
