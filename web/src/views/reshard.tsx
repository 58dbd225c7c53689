/** The Reshard view: what the ranks of another mesh would read, hold and send, before any byte is moved, and then the button
 *  that writes it. This script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { NO_SOURCE } from "../command";
import { nameFor, words } from "../convert_form";
import { saveText } from "../download";
import { EXPANSION, IGNORE_CRC, RESHARD_FIELDS, troubleInFields } from "../field_names";
import { mapNamed, mapOptionsOf } from "../map_choice";
import { choosePlace, hasPickers } from "../place";
import type { Plan, PlanRequest, Writing } from "../protocol";
import { PLACEMENTS, reshardCommand, targetText, type MeshDim, type TargetForm } from "../target";
import { bytesText, exactText, plural } from "../text";
import { SameCommand } from "./command";
import { useModel } from "./hooks";
import { MapFields } from "./map_fields";
import { OpenAs } from "./open_as";
import { Copy, Facts, TroubleBox } from "./parts";
import { Check, Save } from "./save";

const MOST_DIMS = 4, MOST_RANKS = 256, WAIT_MS = 150;

function Dim({ dim, number, set, remove }: { dim: MeshDim; number: number; set: (d: MeshDim) => void; remove?: () => void }): JSX.Element {
  const label = `mesh dim ${number + 1}`, [typed, setTyped] = useState<string>(); // what is typed need not be a size yet
  const type = (text: string, size: number) => {
    setTyped(text);
    if (size >= 1) set({ ...dim, size: Math.floor(size) });
  };
  return (
    <div class="dim">
      <label>Name<input type="text" aria-label={`Name of ${label}`} value={dim.name} size={6} onInput={(e) => set({ ...dim, name: e.currentTarget.value })} /></label>
      <label>Size<input type="number" aria-label={`Size of ${label}`} min={1} max={1_000_000} value={typed ?? dim.size} onInput={(e) => type(e.currentTarget.value, e.currentTarget.valueAsNumber)} onBlur={() => setTyped(undefined)} /></label>
      <label>Placement<select aria-label={`Placement on ${label}`} value={dim.placement} onChange={(e) => set({ ...dim, placement: e.currentTarget.value })}>
        {PLACEMENTS.map((p) => <option key={p} value={p}>{p}</option>)}
      </select></label>
      {remove && <button type="button" class="small" onClick={remove} aria-label={`Remove ${label}`}>✕</button>}
    </div>
  );
}

function Form({ form, set }: { form: TargetForm; set: (f: TargetForm) => void }): JSX.Element {
  const { dims } = form;
  return (
    <form class="target" aria-label="Target" onSubmit={(e) => e.preventDefault()}>
      {dims.map((dim, i) => <Dim key={i} dim={dim} number={i} set={(d) => set({ ...form, dims: dims.map((old, j) => j === i ? d : old) })}
        {...(dims.length > 1 ? { remove: () => set({ ...form, dims: dims.filter((_, j) => j !== i) }) } : {})} />)}
      <p class="buttons"><button type="button" disabled={dims.length >= MOST_DIMS} onClick={() => set({ ...form, dims: [...dims, { name: `dim${dims.length}`, size: 2, placement: "replicate" }] })}>Add a mesh dim</button></p>
      <label class="rules">Rules for some names, one per line; the first that matches wins
        <textarea rows={2} spellcheck={false} value={form.rules} placeholder={"**.weight  shard(0),shard(1)"} onInput={(e) => set({ ...form, rules: e.currentTarget.value })} /></label>
      <div class="fields">
        <label>Only names that match<input type="text" value={form.include ?? ""} placeholder="all, or model.**" spellcheck={false} onInput={(e) => set({ ...form, include: e.currentTarget.value })} /></label>
        <label>But not<input type="text" value={form.exclude ?? ""} placeholder="optim.**" spellcheck={false} onInput={(e) => set({ ...form, exclude: e.currentTarget.value })} /></label>
        <Check label={EXPANSION} isOn={form.allowExpansion} set={(allowExpansion) => set({ ...form, allowExpansion })} />
        <Check label={IGNORE_CRC} isOn={form.ignoreCrc} set={(ignoreCrc) => set({ ...form, ignoreCrc })} />
      </div>
    </form>
  );
}

function Ranks({ ranks, most }: { ranks: Plan["ranks"]; most: number }): JSX.Element {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Ranks">
      <table>
        <thead><tr><th class="number">Rank</th><th class="number">Holds</th><th><span class="hidden">Next to the fullest rank</span></th><th class="number">Reads</th><th class="number">Receives</th></tr></thead>
        <tbody>
          {ranks.slice(0, MOST_RANKS).map((r, i) => (
            <tr key={i}>
              <td class="number">{i}</td><td class="number">{bytesText(r.held)}</td>
              <td><svg class="strip" viewBox="0 0 200 10" preserveAspectRatio="none" aria-hidden="true"><rect class="strip-back" width="200" height="10" /><rect class="strip-taken" width={most ? r.held / most * 200 : 0} height="10" /></svg></td>
              <td class="number">{bytesText(r.read)}</td><td class="number">{bytesText(r.received)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {ranks.length > MOST_RANKS && <p class="quiet">… and {exactText(ranks.length - MOST_RANKS)} more ranks; the plan has them all.</p>}
    </div>
  );
}

function PlanView({ plan }: { plan: Plan }): JSX.Element {
  const t = plan.totals;
  return (
    <>
      <Facts facts={[
        ["ranks", exactText(t.ranks)], ["tensors", exactText(t.tensors)],
        ["reads", `${exactText(t.reads)} from ${plural(plan.files.length, "file")}, ${bytesText(t.bytes)} in all`],
        ["read amplification", t.read_amplification.toFixed(2)],
        ["a rank holds at most", bytesText(t.held_max)], ["imbalance", t.imbalance.toFixed(2)],
        ["peak memory of a rank", bytesText(t.peak_memory)],
      ]} />
      <Ranks ranks={plan.ranks} most={t.held_max} />
    </>
  );
}

type To = "" | "dcp" | "safetensors" | "torch";
const TO: readonly (readonly [To, string])[] = [["", "the form it has, or dcp"], ["dcp", "dcp: one file per rank"], ["safetensors", "safetensors: shards as PyTorch writes them"], ["torch", "torch: one file of DTensors per rank"]];

/** The options that a reshard and its plan share, and those of the reshard only. */
const namesOf = ({ include = "", exclude = "" }: TargetForm) => ({ ...(include.trim() ? { include: words(include) } : {}), ...(exclude.trim() ? { exclude: words(exclude) } : {}) });
const writingOf = ({ allowExpansion, ignoreCrc }: TargetForm) => ({ ...(allowExpansion ? { allowExpansion } : {}), ...(ignoreCrc ? { ignoreCrc } : {}) });

/** Offers to write what each rank holds, once the plan is there. */
function SaveRanks({ request, isPlanned, to, setTo }: { request: PlanRequest; isPlanned: boolean; to: To; setTo: (to: To) => void }): JSX.Element {
  const model = useModel(), saving = model.resharding;
  const name = saving.name ?? nameFor(model.opening?.title ?? "", "resharded"), writing: Writing = { what: "reshard", options: { ...request, ...writingOf(model.target), ...(to ? { to } : {}) } };
  useEffect(() => { if (isPlanned) void saving.ask(writing); }, [isPlanned, JSON.stringify(writing), model.opening]);
  return (
    <>
      <p class="fields"><label>Form<select aria-label="Form" value={to} onChange={(e) => setTo(e.currentTarget.value as To)}>{TO.map(([v, text]) => <option key={v} value={v}>{text}</option>)}</select></label></p>
      <Save saving={saving} isReady={isPlanned && saving.isPreviewOf(writing)} name={name} fields={RESHARD_FIELDS} fileName={(file) => file} isMapped={model.mapChoice.name !== ""} retry={() => void saving.ask(writing)} save={() => void saving.save(writing, () => choosePlace({ name, base: undefined, hasSidecar: false }))}
        goesTo={hasPickers() ? "The browser asks for a directory. A new directory with this name is made in it." : "This browser cannot write into directories, so an uncompressed zip is downloaded."} />
    </>
  );
}

export function Reshard(): JSX.Element {
  const model = useModel(), { preview, target: form } = model, source = model.opening ?? NO_SOURCE;
  const to = model.resharding.to as To, setTo = (form: To) => { model.resharding.to = form; model.changed(); };
  const target = targetText(form), request = { target, ...namesOf(form), ...mapOptionsOf(model.mapChoice) }, asked = JSON.stringify(request);
  const command = reshardCommand(form, source, { ...namesOf(form), ...writingOf(form), to: to || undefined, ...mapNamed(model.mapChoice) }), ranks = form.dims.reduce((n, d) => n * d.size, 1);
  useEffect(() => {
    const timer = setTimeout(() => void model.plan(request, ranks), preview ? WAIT_MS : 0);
    return () => clearTimeout(timer);
  }, [asked, model.opening]);
  return (
    <section class="view" aria-label="Reshard">
      <h2>Reshard</h2>
      <p class="quiet">Choose the mesh that is to load this checkpoint. The plan is made from what is known already; nothing is read for it.</p>
      <OpenAs why={(preview?.trouble ?? model.resharding.previewTrouble)?.message} />
      <Form form={form} set={(target) => { model.target = target; model.changed(); }} />
      <MapFields />
      {preview?.trouble && <TroubleBox trouble={troubleInFields(preview.trouble, RESHARD_FIELDS)} isMapped={model.mapChoice.name !== ""} retry={() => void model.plan(request, ranks)} />}
      {preview?.plan && <PlanView plan={preview.plan} />}
      <p class="buttons">
        <Copy text={target} what="target" label="Copy the target file" />
        <button type="button" onClick={() => saveText("target.json", target)}>Save target.json</button>
        {preview?.plan && <button type="button" onClick={() => saveText("plan.json", preview.text)}>Save plan.json</button>}
      </p>
      {preview?.plan && <SaveRanks request={request} isPlanned={JSON.stringify(preview.request) === asked} to={to} setTo={setTo} />}
      <SameCommand command={command} />
    </section>
  );
}
