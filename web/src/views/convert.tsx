/** The Convert view: three questions, a preview of what will be written and how large it is, and the button that saves it.
 *  This script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { NO_SOURCE } from "../command";
import { convertCommand, convertedName, CONVERT_START, DTYPES, fileName, formOf, FORMS, formText, HUGGING_FACE, OBJECTS, optionsOf, QUANTIZED, type Convertible, type ConvertForm } from "../convert_form";
import { CANONICAL, CHECKSUMS, convertFields, EXCEPT, EXPANSION, FOR_TORCH, IGNORE_CRC, MEMORY, MODULES, PREFIX, RAW_CAST, WORLD_SIZE } from "../field_names";
import { lostOf } from "../lost";
import { mapNamed, mapOptionsOf } from "../map_choice";
import type { Model } from "../model";
import { choosePlace } from "../place";
import type { Writing, WritingPreview } from "../protocol";
import { amountText, bytesText, objectTexts, plural, shortName, visible } from "../text";
import { SameCommand } from "./command";
import { useModel } from "./hooks";
import { JsonFile } from "./json_file";
import { MapFields } from "./map_fields";
import { OpenAs } from "./open_as";
import { Answer, Asking, Check, Select, Text } from "./questions";
import { Save } from "./save";

const WAIT_MS = 200;
type Set = (change: Partial<ConvertForm>) => void;

function Parts({ form, set }: { form: ConvertForm; set: Set }): JSX.Element | null {
  const parts = useModel().parts?.filter(({ name }) => name); // a part without a name has no prefix to select
  if (!parts?.length) return null;
  const words = form.what === "choose" ? form.include.split(/\s+/).filter(Boolean) : [];
  const flip = (term: string) => set({ what: "choose", include: (words.includes(term) ? words.filter((w) => w !== term) : [...words, term]).join(" ") });
  return <p class="chip-line" role="group" aria-label="Parts to write">Parts: {parts.map(({ name }) => <button key={name} type="button" class="chip" aria-pressed={words.includes(`${name}.**`)} onClick={() => flip(`${name}.**`)}>{visible(name)}</button>)}</p>;
}

interface Asked { readonly form: ConvertForm; readonly set: Set; readonly source: Convertible }

function What({ form, set, source: { objects, weights: { prefix, others } } }: Asked): JSX.Element {
  const { opened } = useModel(), overview = opened?.overview, parameters = opened?.amounts.parameters;
  const weights = [parameters?.elements && `${amountText(parameters.elements, "parameter")}, ${bytesText(parameters.bytes)}`, prefix && `the tensors whose names begin with “${visible(prefix)}”`, !prefix && others.length > 0 && `no ${others.map((glob) => visible(glob.replace(/\.\*\*$/, ""))).join(", ")}`].filter(Boolean).join("; ");
  const choose = (what: ConvertForm["what"]) => () => set({ what });
  return (
    <fieldset>
      <legend>What?</legend>
      <Answer name="what" label="Weights only" isChosen={form.what === "weights"} choose={choose("weights")}>{weights || "every tensor"}{objects > 0 && "; no objects"}</Answer>
      <Answer name="what" label="Everything" isChosen={form.what === "everything"} choose={choose("everything")}>{overview && [`${plural(overview.tensors, "tensor")}, ${bytesText(overview.bytes)}`, ...objectTexts(overview)].join("; ")}</Answer>
      <Answer name="what" label="Choose" isChosen={form.what === "choose"} choose={choose("choose")}>by name or by part</Answer>
      {form.what === "choose" && <div class="fields">
        <Text label="Only names that match" value={form.include} hint="all, or model.**" set={(include) => set({ include })} />
        <Text label="But not" value={form.exclude} hint="optim.**" set={(exclude) => set({ exclude })} />
      </div>}
      <Parts form={form} set={set} />
    </fieldset>
  );
}

function ToForm({ form, set, source }: Asked): JSX.Element {
  const to = formOf(form, source);
  return (
    <fieldset>
      <legend>To which format?</legend>
      <div class="fields"><Select label="Form" text="" value={to} options={FORMS} set={(form) => set({ to: form })} /></div>
      <p class="quiet">{formText(to)}{form.to === undefined && source.isBeyondSafetensors && " It is suggested because safetensors cannot have all of these tensors."}</p>
    </fieldset>
  );
}

function UnderNames({ form, set, source: { weights: { prefix } } }: Asked): JSX.Element {
  const example = useModel().largest?.find(({ fqn }) => prefix && fqn.startsWith(prefix))?.fqn;
  return (
    <fieldset>
      <legend>Under which names?</legend>
      {prefix && <>
        <Answer name="names" label="As they are stored" isChosen={form.names === "stored"} choose={() => set({ names: "stored" })}>{example && <code>{shortName(visible(example))}</code>}</Answer>
        <Answer name="names" label={`Without “${visible(prefix)}”`} isChosen={form.names === "stripped"} choose={() => set({ names: "stripped" })}>{example && <code>{shortName(visible(example.slice(prefix.length)))}</code>}</Answer>
      </>}
      <MapFields />
    </fieldset>
  );
}

/** Whether an option is chosen that only the part below "Advanced" shows. */
const isAdvanced = ({ dtype, objects, quantized, rename, allowExpansion, ignoreCrc, canonical, prefix, forTorch, maxMem, noChecksums }: ConvertForm): boolean =>
  [dtype, objects, quantized, rename, allowExpansion, ignoreCrc, canonical, prefix, forTorch, maxMem, noChecksums].some(Boolean);

function Advanced({ form, set, source }: Asked): JSX.Element {
  const to = formOf(form, source), [isOpen] = useState(isAdvanced(form));
  return (
    <details class="advanced" open={isOpen}>
      <summary>Advanced</summary>
      <div class="fields">
        <Select label="Floating-point tensors become" value={form.dtype} options={[["", "(no change)"], ...DTYPES.map((d) => [d, d] as const)]} set={(dtype) => set({ dtype })} />
        <Select label="Weights become" value={form.quantized} options={QUANTIZED} set={(quantized) => set({ quantized })} />
        {form.quantized === "fp8-block" && <Text label={EXCEPT} value={form.noQuantize} hint="lm_head.**" set={(noQuantize) => set({ noQuantize })} />}
        <Select label="Non-tensor objects" value={form.objects} options={OBJECTS} set={(objects) => set({ objects })} />
        {to === "safetensors" && <Text label="Shards of at most" value={form.maxShardSize} hint="one file, or 5GB" set={(maxShardSize) => set({ maxShardSize })} />}
        {to === "ranks" && <Text label={WORLD_SIZE} value={form.worldSize} hint="8" set={(worldSize) => set({ worldSize })} />}
        {form.what !== "weights" && <Text label={PREFIX} value={form.prefix} hint="model." set={(prefix) => set({ prefix })} />}
        <Text label={FOR_TORCH} value={form.forTorch} hint="2.4, or the oldest that can" set={(forTorch) => set({ forTorch })} />
        <Text label={MEMORY} value={form.maxMem} hint="16MiB" set={(maxMem) => set({ maxMem })} />
        <label class="broad">Renames, one per line<textarea rows={2} value={form.rename} placeholder={"model.=\n*.gamma=*.weight"} spellcheck={false} onInput={(e) => set({ rename: e.currentTarget.value })} /></label>
        <Check label={CANONICAL} isOn={form.canonical} set={(canonical) => set({ canonical })} />
        {form.canonical && <div class="broad"><JsonFile name={form.modules?.name} what="module tree" about={MODULES} set={(modules) => set({ modules })} /></div>}
        {form.dtype && <Check label={RAW_CAST} isOn={form.rawCast} set={(rawCast) => set({ rawCast })} />}
        <Check label={EXPANSION} isOn={form.allowExpansion} set={(allowExpansion) => set({ allowExpansion })} />
        <Check label={IGNORE_CRC} isOn={form.ignoreCrc} set={(ignoreCrc) => set({ ignoreCrc })} />
        <Check label={CHECKSUMS} isOn={form.noChecksums} set={(noChecksums) => set({ noChecksums })} />
      </div>
      <p class="quiet">Two options need a second checkpoint and are left to the command: <code>--lora</code> folds an adapter in, and <code>--against</code> refuses what would not load.</p>
    </details>
  );
}

/** What becomes of the texts in safetensors' `__metadata__`. */
function Texts({ to }: { to: ConvertForm["to"] }): JSX.Element | null {
  const model = useModel(), { texts = {} } = model.fileMetadata?.find(({ file }) => file === undefined) ?? {};
  useEffect(() => { if (model.opened && model.largest === undefined) void model.loadOverview(); }, [model.opened]);
  const isKept = to === "safetensors", keys = Object.keys(texts).filter((key) => key !== "DCP_SHARDING_INFO" && (isKept || key !== "format" || texts[key] !== "pt"));
  return keys.length ? <p class="quiet">The texts of <code>__metadata__</code> {isKept ? "are carried over" : "have no place in this form and are dropped"}: {keys.map(visible).join(", ")}.</p> : null;
}

/** States what the answers leave out, before it is written. */
function leftOut(form: ConvertForm, { objects, weights: { prefix, others } }: Convertible, decided: string | undefined, lost: number): string | undefined {
  const things = [
    ...(form.what === "weights" ? prefix ? [`every tensor whose name does not begin with “${visible(prefix)}”`] : others.map((glob) => visible(glob.replace(/\.\*\*$/, ""))) : []),
    ...(decided === "drop" && objects ? [plural(objects, "object")] : []),
    ...(lost ? [`${plural(lost, "entry", "entries")} of the source whose bytes are lost`] : []),
  ];
  return things.length ? `Left out: ${things.join(", and ")}.` : undefined;
}

const isSingle = (preview: WritingPreview | undefined): boolean => preview?.files.some((f) => f.name === "") === true;
const BEYOND = /^(complex(32|128)|bits|q?u?int[1-7]$|quint|qint)/;

/** What the form has to know. Undefined until it has been asked. */
function convertibleOf({ weights, opened }: Model): Convertible | undefined {
  if (!weights || !opened) return undefined;
  const { objects, opaque, dtypes } = opened.overview;
  return { objects, weights, isBeyondSafetensors: opaque > 0 || dtypes.some(({ name }) => BEYOND.test(name)) };
}

function Questions({ source }: { source: Convertible }): JSX.Element {
  const model = useModel(), opening = model.opening ?? NO_SOURCE, { title } = opening, form = model.convertForm ?? CONVERT_START, to = formOf(form, source);
  const saving = model.converting, { preview } = saving, isOne = isSingle(preview), name = saving.name ?? convertedName(title, to, isOne);
  const options = optionsOf(form, source), writing: Writing = { what: "convert", options: { ...options, ...mapOptionsOf(model.mapChoice) } };
  const set: Set = (change) => { model.convertForm = { ...model.convertForm ?? CONVERT_START, ...change }; model.changed(); };
  useEffect(() => {
    const timer = setTimeout(() => void saving.ask(writing), preview ? WAIT_MS : 0);
    return () => clearTimeout(timer);
  }, [JSON.stringify(writing), model.opening]);
  const base = isOne ? fileName(name, to) : undefined, asked = { form, set, source };
  const save = () => void saving.save(writing, () => choosePlace({ name, base, hasSidecar: (preview?.files.length ?? 0) > 1 }));
  const command = convertCommand(form, source, opening, base ?? name, mapNamed(model.mapChoice)), left = leftOut(form, source, options.objects, model.findings ? lostOf(model.findings).count : 0);
  return (
    <Asking questions={<>
      <p class="buttons"><button type="button" onClick={() => set(HUGGING_FACE)}>Weights for Hugging Face</button> <span class="quiet">weights only, in safetensors, under the model's own names</span></p>
      <OpenAs why={(saving.previewTrouble ?? saving.trouble)?.message} />
      <form class="questions" aria-label="Conversion" onSubmit={(e) => e.preventDefault()}>
        <What {...asked} />
        <ToForm {...asked} />
        <UnderNames {...asked} />
        <Advanced {...asked} />
      </form>
    </>}>
      <Save saving={saving} isCurrent={saving.isAnswered(writing)} name={name} fields={convertFields(form, to)} fileName={(file) => (isOne ? base ?? "" : "") + file} save={save} isMapped={model.mapChoice.name !== ""}
        retry={() => void saving.ask(writing)} left={left} isFile={isOne && preview?.files.length === 1} />
      <Texts to={to} />
      <SameCommand command={command} />
    </Asking>
  );
}

export function Convert(): JSX.Element {
  const model = useModel(), source = convertibleOf(model);
  useEffect(() => { void model.loadParts(); void model.loadWeights(); }, [model.opening]);
  return (
    <section class="view" aria-label="Convert">
      <h2>Convert</h2>
      <p class="quiet">Writes the same bytes as the command line. No tensor is cast, left out or renamed unless you ask for it.</p>
      {source ? <Questions source={source} /> : <p role="status">Loading …</p>}
    </section>
  );
}
