/** The Reshard view: what the ranks of another mesh would read, hold and send, before any byte is moved, and then the button
 *  that writes it. This script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { NO_SOURCE } from "../command";
import { nameFor, words } from "../convert_form";
import { saveText } from "../download";
import { EXPANSION, IGNORE_CRC, RESHARD_FIELDS, troubleInFields } from "../field_names";
import { mapNamed, mapOptionsOf } from "../map_choice";
import { coordinatesOf, coordinatesText, type MeshAxis } from "../mesh";
import { PLANNING } from "../model";
import { choosePlace } from "../place";
import type { Plan, PlanRequest, Writing } from "../protocol";
import { meshOf, PLACEMENTS, reshardCommand, targetText, type MeshDim, type TargetForm } from "../target";
import { bytesText, exactText, plural, visible } from "../text";
import { SameCommand } from "./command";
import { Current } from "./current";
import { useModel } from "./hooks";
import { MapFields } from "./map_fields";
import { OpenAs } from "./open_as";
import { Copy, Facts, TroubleBox } from "./parts";
import { Answer, Asking, Check, Select, Text } from "./questions";
import { Save } from "./save";
import { Table } from "./table";

const MOST_DIMS = 4, MOST_RANKS = 256, WAIT_MS = 150;

type To = "" | "dcp" | "safetensors" | "torch";
const TO: readonly (readonly [To, string])[] = [["", "the same format, or dcp"], ["dcp", "dcp: one file per rank"], ["safetensors", "safetensors: shards as PyTorch writes them"], ["torch", "torch: one file of DTensors per rank"]];

type Set = (change: Partial<TargetForm>) => void;

/** A number of at least 1. What is typed need not be one yet. */
function Size({ label, value, set }: { label: string; value: number; set: (size: number) => void }): JSX.Element {
  const [typed, setTyped] = useState<string>();
  const type = (text: string, size: number) => {
    setTyped(text);
    if (size >= 1) set(Math.floor(size));
  };
  return <input type="number" aria-label={label} min={1} max={1_000_000} value={typed ?? value} onInput={(e) => type(e.currentTarget.value, e.currentTarget.valueAsNumber)} onBlur={() => setTyped(undefined)} />;
}

function Dim({ dim, number, set, remove }: { dim: MeshDim; number: number; set: (d: MeshDim) => void; remove?: () => void }): JSX.Element {
  const label = `mesh dim ${number + 1}`;
  return (
    <div class="dim">
      <label>Name<input type="text" aria-label={`Name of ${label}`} value={dim.name} size={6} onInput={(e) => set({ ...dim, name: e.currentTarget.value })} /></label>
      <label>Size<Size label={`Size of ${label}`} value={dim.size} set={(size) => set({ ...dim, size })} /></label>
      <Select label={`Placement on ${label}`} text="Along it, each tensor is" value={dim.placement} options={PLACEMENTS} set={(placement) => set({ ...dim, placement })} />
      {remove && <button type="button" class="small" onClick={remove} aria-label={`Remove ${label}`}>✕</button>}
    </div>
  );
}

function Mesh({ form, set }: { form: TargetForm; set: Set }): JSX.Element {
  const { dims } = form;
  return (
    <>
      {dims.map((dim, i) => <Dim key={i} dim={dim} number={i} set={(d) => set({ dims: dims.map((old, j) => j === i ? d : old) })}
        {...(dims.length > 1 ? { remove: () => set({ dims: dims.filter((_, j) => j !== i) }) } : {})} />)}
      <p class="buttons"><button type="button" disabled={dims.length >= MOST_DIMS} onClick={() => set({ dims: [...dims, { name: `dim${dims.length}`, size: 2, placement: "replicate" }] })}>Add a mesh dim</button></p>
      <label class="rules">Rules for some names, one per line; the first that matches wins
        <textarea rows={2} spellcheck={false} value={form.rules} placeholder={"**.weight  shard(0),shard(1)"} onInput={(e) => set({ rules: e.currentTarget.value })} /></label>
    </>
  );
}

function ForRanks({ form, set }: { form: TargetForm; set: Set }): JSX.Element {
  const { dims, isMesh = false } = form, [dim, ...others] = dims, setDim = (change: Partial<MeshDim>) => { if (dim) set({ dims: [{ ...dim, ...change }, ...others] }); };
  return (
    <fieldset>
      <legend>For how many ranks?</legend>
      <Answer name="ranks" label="A number of ranks" isChosen={!isMesh} choose={() => set({ isMesh: false })}>that all divide the tensors in one way</Answer>
      {!isMesh && dim && <div class="fields">
        <label>Ranks<Size label="Ranks" value={dim.size} set={(size) => setDim({ size })} /></label>
        <Select label="Each tensor is" value={dim.placement} options={PLACEMENTS} set={(placement) => setDim({ placement })} />
      </div>}
      <Answer name="ranks" label="A device mesh" isChosen={isMesh} choose={() => set({ isMesh: true })}>of several dims, or with rules for some names</Answer>
      {isMesh && <Mesh form={form} set={set} />}
    </fieldset>
  );
}

function Form({ form, set, to, setTo }: { form: TargetForm; set: Set; to: To; setTo: (to: To) => void }): JSX.Element {
  const overview = useModel().opened?.overview, { chooses = false } = form;
  return (
    <form class="questions target" aria-label="Target" onSubmit={(e) => e.preventDefault()}>
      <ForRanks form={form} set={set} />
      <fieldset>
        <legend>What?</legend>
        <Answer name="what" label="Everything" isChosen={!chooses} choose={() => set({ chooses: false })}>{overview && `${plural(overview.tensors, "tensor")}, ${bytesText(overview.bytes)}`}</Answer>
        <Answer name="what" label="Choose" isChosen={chooses} choose={() => set({ chooses: true })}>by name</Answer>
        {chooses && <div class="fields">
          <Text label="Only names that match" value={form.include} hint="all, or model.**" set={(include) => set({ include })} />
          <Text label="But not" value={form.exclude} hint="optim.**" set={(exclude) => set({ exclude })} />
        </div>}
      </fieldset>
      <fieldset>
        <legend>To which format?</legend>
        <div class="fields"><Select label="Form" text="" value={to} options={TO} set={setTo} /></div>
      </fieldset>
      <fieldset>
        <legend>Under which names?</legend>
        <MapFields />
      </fieldset>
      <details class="advanced" open={form.allowExpansion || form.ignoreCrc}>
        <summary>Advanced</summary>
        <div class="fields">
          <Check label={EXPANSION} isOn={form.allowExpansion} set={(allowExpansion) => set({ allowExpansion })} />
          <Check label={IGNORE_CRC} isOn={form.ignoreCrc} set={(ignoreCrc) => set({ ignoreCrc })} />
        </div>
      </details>
    </form>
  );
}

const MOST_COLUMNS = 64, COLUMN = 10, HIGH = 80;

/** What each rank holds, as columns. */
function PlanFigure({ plan: { ranks, totals: { held_max: most } } }: { plan: Plan }): JSX.Element {
  const shown = ranks.slice(0, MOST_COLUMNS), least = Math.min(...ranks.map((r) => r.held));
  const each = least === most ? `each of ${plural(ranks.length, "rank")} holds ${bytesText(most)}` : `${plural(ranks.length, "rank")} hold ${bytesText(least)} to ${bytesText(most)}`;
  return (
    <figure class="plan-figure">
      <svg viewBox={`0 0 ${shown.length * COLUMN} ${HIGH}`} role="img" aria-label={`What the ranks hold: ${each}`} style={{ width: `${Math.min(100, shown.length * 4)}%` }} preserveAspectRatio="none">
        {shown.map((r, i) => { const high = most ? r.held / most * HIGH : 0; return <rect key={i} class="strip-taken" x={i * COLUMN + 1} width={COLUMN - 2} y={HIGH - high} height={high}><title>{`rank ${i} holds ${bytesText(r.held)}, reads ${bytesText(r.read)} and receives ${bytesText(r.received)}`}</title></rect>; })}
      </svg>
      <figcaption>{each[0]?.toUpperCase()}{each.slice(1)}{ranks.length > shown.length && `; the first ${shown.length} are drawn`}.</figcaption>
    </figure>
  );
}

function Ranks({ ranks, most, axes }: { ranks: Plan["ranks"]; most: number; axes: readonly MeshAxis[] }): JSX.Element {
  const head = <><th class="number">Rank</th><th>Mesh</th><th class="number">Holds</th><th><span class="hidden">Next to the fullest rank</span></th><th class="number">Reads</th><th class="number">Receives</th></>;
  return (
    <Table label="Ranks" head={head} rows={ranks} most={MOST_RANKS} more=" ranks; the plan has them all" row={(r, i) => (
      <tr key={i}>
        <td class="number">{i}</td><td>{visible(coordinatesText(coordinatesOf(i, axes), axes))}</td><td class="number">{bytesText(r.held)}</td>
        <td><svg class="strip" viewBox="0 0 200 10" preserveAspectRatio="none" aria-hidden="true"><rect class="strip-back" width="200" height="10" /><rect class="strip-taken" width={most ? r.held / most * 200 : 0} height="10" /></svg></td>
        <td class="number">{bytesText(r.read)}</td><td class="number">{bytesText(r.received)}</td>
      </tr>
    )} />
  );
}

function PlanView({ plan, axes }: { plan: Plan; axes: readonly MeshAxis[] }): JSX.Element {
  const t = plan.totals;
  return (
    <>
      <PlanFigure plan={plan} />
      <Facts facts={[
        ["tensors", exactText(t.tensors)],
        ["reads", `${exactText(t.reads)} from ${plural(plan.files.length, "file")}, ${bytesText(t.bytes)} in all`],
        ["read amplification", t.read_amplification.toFixed(2)],
        ["imbalance", t.imbalance.toFixed(2)],
        ["peak memory of a rank", bytesText(t.peak_memory)],
      ]} />
      <Ranks ranks={plan.ranks} most={t.held_max} axes={axes} />
    </>
  );
}

/** The options that a reshard and its plan share, and those of the reshard only. */
const namesOf = ({ chooses = false, include = "", exclude = "" }: TargetForm) => !chooses ? {} : ({ ...(include.trim() ? { include: words(include) } : {}), ...(exclude.trim() ? { exclude: words(exclude) } : {}) });
const writingOf = ({ allowExpansion, ignoreCrc }: TargetForm) => ({ ...(allowExpansion ? { allowExpansion } : {}), ...(ignoreCrc ? { ignoreCrc } : {}) });

/** Offers to write what each rank holds, once the plan is there. */
function SaveRanks({ request, isPlanned, to }: { request: PlanRequest; isPlanned: boolean; to: To }): JSX.Element {
  const model = useModel(), saving = model.resharding;
  const name = saving.name ?? nameFor(model.opening?.title ?? "", "resharded"), writing: Writing = { what: "reshard", options: { ...request, ...writingOf(model.target), ...(to ? { to } : {}) } };
  useEffect(() => { if (isPlanned) void saving.ask(writing); }, [isPlanned, JSON.stringify(writing), model.opening]);
  return (
    <Save saving={saving} isCurrent={isPlanned && saving.isAnswered(writing)} name={name} fields={RESHARD_FIELDS} fileName={(file) => file} isMapped={model.mapChoice.name !== ""} retry={() => void saving.ask(writing)} save={() => void saving.save(writing, () => choosePlace({ name, base: undefined, hasSidecar: false }))} isFile={false} />
  );
}

export function Reshard(): JSX.Element {
  const model = useModel(), { preview, target: form } = model, source = model.opening ?? NO_SOURCE;
  const to = model.resharding.to as To, setTo = (form: To) => { model.resharding.to = form; model.changed(); };
  const target = targetText(form), request = { target, ...namesOf(form), ...mapOptionsOf(model.mapChoice) }, asked = JSON.stringify(request);
  const command = reshardCommand(form, source, { ...namesOf(form), ...writingOf(form), to: to || undefined, ...mapNamed(model.mapChoice) }), { dims } = meshOf(form), ranks = dims.reduce((n, d) => n * d.size, 1), isPlanned = JSON.stringify(preview?.request) === asked;
  useEffect(() => {
    const timer = setTimeout(() => void model.plan(request, ranks), preview ? WAIT_MS : 0);
    return () => clearTimeout(timer);
  }, [asked, model.opening]);
  return (
    <section class="view" aria-label="Reshard">
      <h2>Reshard</h2>
      <p class="quiet">Say which ranks are to load this checkpoint. The plan is made from what is known already; nothing is read or written for it.</p>
      <Asking questions={<>
        <OpenAs why={(preview?.trouble ?? model.resharding.previewTrouble)?.message} />
        <Form form={form} set={(change) => { model.target = { ...model.target, ...change }; model.changed(); }} to={to} setTo={setTo} />
      </>}>
        <h2>The plan</h2>
        <Current isCurrent={isPlanned} waiting={PLANNING}>
          {preview?.trouble && <TroubleBox trouble={troubleInFields(preview.trouble, RESHARD_FIELDS)} isMapped={model.mapChoice.name !== ""} retry={() => void model.plan(request, ranks)} />}
          {preview?.plan && <PlanView plan={preview.plan} axes={dims} />}
        </Current>
        <p class="buttons">
          <Copy text={target} what="target" label="Copy the target file" />
          <button type="button" onClick={() => saveText("target.json", target)}>Save target.json</button>
          {preview?.plan && <button type="button" aria-disabled={!isPlanned} onClick={() => { if (isPlanned) saveText("plan.json", preview.text); }}>Save plan.json</button>}
        </p>
        {preview?.plan && <SaveRanks request={request} isPlanned={isPlanned} to={to} />}
        <SameCommand command={command} />
      </Asking>
    </section>
  );
}
