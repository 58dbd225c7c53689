/** The Convert view: a form, a preview of what will be written and how large it is, and the button that saves it. This
 *  script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { convertCommand, CONVERT_START, DTYPES, fileName, FORMS, nameFor, OBJECTS, optionsOf, QUANTIZED, type ConvertForm } from "../convert_form";
import { convertFields, EXCEPT, EXPANSION, IGNORE_CRC, RAW_CAST } from "../field_names";
import { mapCommand, mapOptionsOf } from "../map_choice";
import { choosePlace, hasPickers } from "../place";
import type { Writing, WritingPreview } from "../protocol";
import { NO_SOURCE } from "../target";
import { visible } from "../text";
import { useModel } from "./hooks";
import { MapFields } from "./map_fields";
import { OpenAs } from "./open_as";
import { Copy } from "./parts";
import { Check, Save } from "./save";

const WAIT_MS = 200;
type Set = (change: Partial<ConvertForm>) => void;

function Select({ label, value, options, set }: { label: string; value: string; options: readonly (readonly [string, string])[]; set: (value: string) => void }): JSX.Element {
  return <label>{label}<select aria-label={label} value={value} onChange={(e) => set(e.currentTarget.value)}>{options.map(([v, text]) => <option key={v} value={v}>{text}</option>)}</select></label>;
}

function Parts({ form, set }: { form: ConvertForm; set: Set }): JSX.Element | null {
  const parts = useModel().parts?.filter(({ name }) => name); // a part without a name has no prefix to select
  if (!parts?.length) return null;
  const words = form.include.split(/\s+/).filter(Boolean);
  const flip = (term: string) => set({ include: (words.includes(term) ? words.filter((w) => w !== term) : [...words, term]).join(" ") });
  return <p class="chip-line" role="group" aria-label="Parts to write">Parts: {parts.map(({ name }) => <button key={name} type="button" class="chip" aria-pressed={words.includes(`${name}.**`)} onClick={() => flip(`${name}.**`)}>{visible(name)}</button>)}</p>;
}

function Fields({ form, set }: { form: ConvertForm; set: Set }): JSX.Element {
  return (
    <form class="fields" aria-label="Conversion" onSubmit={(e) => e.preventDefault()}>
      <Select label="Form" value={form.to} options={FORMS} set={(to) => set({ to: to as ConvertForm["to"] })} />
      <Select label="Floating-point tensors become" value={form.dtype} options={[["", "what they are"], ...DTYPES.map((d) => [d, d] as const)]} set={(dtype) => set({ dtype })} />
      <Select label="Non-tensor objects" value={form.objects} options={OBJECTS} set={(objects) => set({ objects: objects as ConvertForm["objects"] })} />
      <Select label="Weights become" value={form.quantized} options={QUANTIZED} set={(quantized) => set({ quantized: quantized as ConvertForm["quantized"] })} />
      {form.quantized === "fp8-block" && <label>{EXCEPT}<input type="text" value={form.noQuantize ?? ""} placeholder="lm_head.**" spellcheck={false} onInput={(e) => set({ noQuantize: e.currentTarget.value })} /></label>}
      {form.to === "safetensors" && <label>Shards of at most<input type="text" value={form.maxShardSize} placeholder="one file, or 5GB" spellcheck={false} onInput={(e) => set({ maxShardSize: e.currentTarget.value })} /></label>}
      <label>Only names that match<input type="text" value={form.include} placeholder="all, or model.**" spellcheck={false} onInput={(e) => set({ include: e.currentTarget.value })} /></label>
      <label>But not<input type="text" value={form.exclude} placeholder="optim.**" spellcheck={false} onInput={(e) => set({ exclude: e.currentTarget.value })} /></label>
      <label class="broad">Renames, one per line<textarea rows={2} value={form.rename} placeholder={"model.=\n*.gamma=*.weight"} spellcheck={false} onInput={(e) => set({ rename: e.currentTarget.value })} /></label>
      {form.dtype && <Check label={RAW_CAST} isOn={form.rawCast} set={(rawCast) => set({ rawCast })} />}
      <Check label={EXPANSION} isOn={form.allowExpansion} set={(allowExpansion) => set({ allowExpansion })} />
      <Check label={IGNORE_CRC} isOn={form.ignoreCrc} set={(ignoreCrc) => set({ ignoreCrc })} />
    </form>
  );
}

/** The refusal of objects names the option that settles it, in parentheses. */
const OBJECTS_REFUSED = / \([^(]*--objects[^)]*\)/;

/** Asks what becomes of objects where the form cannot store them and nothing was chosen. */
function askObjects(message: string, set: Set): JSX.Element | undefined {
  if (!OBJECTS_REFUSED.test(message)) return undefined;
  return (
    <div class="asked" role="group" aria-label="What becomes of objects">
      <p>{visible(message.replace(OBJECTS_REFUSED, ""))}. <strong>What should become of these objects?</strong></p>
      <p class="buttons">
        <button type="button" onClick={() => set({ objects: "drop" })}>Leave them out</button>
        <button type="button" onClick={() => set({ objects: "sidecar" })}>Write them as JSON next to it</button>
      </p>
    </div>
  );
}

/** What becomes of the texts in safetensors' `__metadata__`. */
function Texts({ to }: { to: ConvertForm["to"] }): JSX.Element | null {
  const model = useModel(), { texts = {} } = model.fileMetadata?.find(({ file }) => file === undefined) ?? {};
  useEffect(() => { if (model.opened && model.largest === undefined) void model.loadOverview(); }, [model.opened]);
  const isKept = to === "safetensors", keys = Object.keys(texts).filter((key) => key !== "DCP_SHARDING_INFO" && (isKept || key !== "format" || texts[key] !== "pt"));
  return keys.length ? <p class="quiet">The texts of <code>__metadata__</code> {isKept ? "are carried over" : "have no place in this form and are dropped"}: {keys.map(visible).join(", ")}.</p> : null;
}

const isSingle = (preview: WritingPreview | undefined): boolean => preview?.files.some((f) => f.name === "") === true;

export function Convert(): JSX.Element {
  const model = useModel(), opening = model.opening ?? NO_SOURCE, { title } = opening, form = model.convertForm ?? CONVERT_START;
  const saving = model.converting, { preview } = saving, name = saving.name ?? nameFor(title, form.to), isOne = isSingle(preview);
  const writing: Writing = { what: "convert", options: { ...optionsOf(form), ...mapOptionsOf(model.mapChoice) } };
  const set: Set = (change) => { model.convertForm = { ...form, ...change }; model.changed(); };
  useEffect(() => {
    const timer = setTimeout(() => void saving.ask(writing), preview ? WAIT_MS : 0);
    return () => clearTimeout(timer);
  }, [JSON.stringify(writing), model.opening]);
  useEffect(() => { void model.loadParts(); }, [model.opening]);
  const base = isOne ? fileName(name, form.to) : undefined;
  const save = () => void saving.save(writing, () => choosePlace({ name, base, hasSidecar: (preview?.files.length ?? 0) > 1 }));
  const command = convertCommand(form, opening, base ?? name) + mapCommand(model.mapChoice);
  return (
    <section class="view" aria-label="Convert">
      <h2>Convert</h2>
      <p class="quiet">Writes the same bytes as the command line. No tensor is cast, left out or renamed unless you ask for it.</p>
      <OpenAs why={(saving.previewTrouble ?? saving.trouble)?.message} />
      <Parts form={form} set={set} />
      <Fields form={form} set={set} />
      <MapFields />
      <Texts to={form.to} />
      <Save saving={saving} isReady={saving.isPreviewOf(writing)} name={name} fields={convertFields(form)} fileName={(file) => (isOne ? base ?? "" : "") + file} save={save} isMapped={model.mapChoice.name !== ""}
        retry={() => void saving.ask(writing)} {...(form.objects === "" ? { asking: (message: string) => askObjects(message, set) } : {})}
        goesTo={hasPickers() ? isOne ? "The browser asks where to put the file." : "The browser asks for a directory. A new directory with this name is made in it." : `This browser cannot write into directories, so ${isOne ? "the file" : "an uncompressed zip"} is downloaded.`} />
      <h2>The same on the command line</h2>
      <p class="command"><code>{visible(command)}</code> <Copy text={command} what="command" /></p>
    </section>
  );
}
