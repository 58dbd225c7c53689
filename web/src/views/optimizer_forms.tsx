/** The optimizer's state in another form: a preview of its names, and the button that saves it. This script is loaded on
 *  demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { nameFor } from "../convert_form";
import { EXPANSION, inFields, OPTIMIZER_FIELDS, troubleInFields } from "../field_names";
import { choosePlace } from "../place";
import type { OptimizerPreview, Trouble, Writing } from "../protocol";
import { NO_SOURCE, sourceOptions, type Command } from "../command";
import { exactText, plural, shapeText, startOf, visible } from "../text";
import { troubleOf } from "../trouble";
import { SameCommand } from "./command";
import { Current } from "./current";
import { useModel } from "./hooks";
import { JsonFile, type NamedText } from "./json_file";
import { OpenAs } from "./open_as";
import { TroubleBox } from "./parts";
import { Check, Select } from "./questions";
import { Save } from "./save";
import { Table } from "./table";

type Action = (Writing & { what: "optimizer" })["action"];
const ACTIONS: readonly (readonly [Action, string])[] = [
  ["flatten", "flatten: one key per parameter and option"], ["unflatten", "unflatten: nested state and param groups"],
  ["to-fqn", "to-fqn: names for ids"], ["to-id", "to-id: ids for names"],
];
const SHOWN = 200, MOST_TEXT = 60;

function Entries({ preview: { entries, count, warnings } }: { preview: OptimizerPreview }): JSX.Element {
  return (
    <>
      <p role="status">{plural(count, "entry", "entries")} in the result.</p>
      {warnings.length > 0 && <ul class="names">{warnings.map((w) => <li key={w}>{visible(inFields(w, OPTIMIZER_FIELDS))}</li>)}</ul>}
      <Table label="Entries of the result" isTall head={<><th>Name</th><th>Value</th></>} rows={entries}
        row={(e) => <tr key={e.fqn}><td><code>{visible(e.fqn)}</code></td><td>{e.shape ? `${e.dtype ?? ""} ${shapeText(e.shape)}` : startOf(visible(e.text ?? ""), MOST_TEXT)}</td></tr>} />
      {count > entries.length && <p class="quiet">The first {exactText(entries.length)} are shown.</p>}
    </>
  );
}

interface OptimizerForm { readonly action: Action; readonly modules?: NamedText | undefined; readonly at: string; readonly allowExpansion?: boolean }
/** What was chosen for each checkpoint, which stays while other views are shown. */
const forms = new WeakMap<object, OptimizerForm>();
const START: OptimizerForm = { action: "flatten", at: "" };

/** What a form makes of the state, or why it cannot. */
interface Answer { readonly of?: OptimizerForm; readonly preview?: OptimizerPreview; readonly trouble?: Trouble }

/** An optimizer that does not have the form that an action reads need not be damaged. */
const plainly = (trouble: Trouble): Trouble => trouble.status === "malformed" ? { ...trouble, status: "page" } : trouble;

export function OptimizerForms(): JSX.Element {
  const model = useModel(), saving = model.optimizerSaving, opening = model.opening ?? START, form = forms.get(opening) ?? START, { action, modules, at, allowExpansion } = form;
  const set = (change: Partial<OptimizerForm>) => { forms.set(opening, { ...forms.get(opening) ?? START, ...change }); model.changed(); };
  const [{ of, preview, trouble }, setAnswer] = useState<Answer>({});
  const writing: Writing = { what: "optimizer", action, options: { ...(modules ? { modules: modules.text } : {}), ...(at.trim() ? { at: at.trim() } : {}), ...(allowExpansion ? { allowExpansion } : {}) } };
  const name = saving.name ?? nameFor(model.opening?.title ?? "", action), base = `${name}.pt`;
  const isCurrent = of === form;
  useEffect(() => {
    let isLatest = true;
    const show = (answer: Answer) => { if (isLatest) setAnswer({ of: form, ...answer }); };
    const timer = setTimeout(() => {
      model.client.call("optimizerPreview", { action, options: writing.options, count: SHOWN }).then((preview) => { show({ preview }); if (isLatest) void saving.ask(writing); }, (e: unknown) => show({ trouble: troubleOf(e) }));
    }, 100);
    return () => { isLatest = false; clearTimeout(timer); };
  }, [form, opening]);
  const source = model.opening ?? NO_SOURCE, command: Command = { name: "optim", operands: [action, source.title, base], options: { ...writing.options, modules: modules?.name, ...sourceOptions(source) } };
  return (
    <section aria-label="Another form">
      <h2>The state in another form</h2>
      <div class="fields">
        <Select label="Form" value={action} options={ACTIONS} set={(to) => set({ action: to })} />
        <label>The optimizer's key<input type="text" value={at} placeholder="found automatically" spellcheck={false} onInput={(e) => set({ at: e.currentTarget.value })} /></label>
        <Check label={EXPANSION} isOn={allowExpansion} set={(allowExpansion) => set({ allowExpansion })} />
      </div>
      <JsonFile name={modules?.name} what="module tree" about="tessera.modules/1, for names, frozen parameters and groups. Names for ids need it." set={(modules) => set({ modules })} />
      <Current isCurrent={isCurrent} waiting="Changing the form">
        {trouble && <TroubleBox trouble={troubleInFields(plainly(trouble), OPTIMIZER_FIELDS)} {...(trouble.status === "page" ? { retry: () => set({}) } : {})} />}
        {preview && <Entries preview={preview} />}
      </Current>
      <OpenAs why={trouble?.message} />
      {preview && <Save saving={saving} isCurrent={isCurrent && saving.isAnswered(writing)} name={name} fields={OPTIMIZER_FIELDS} fileName={(file) => base + file} retry={() => void saving.ask(writing)} save={() => void saving.save(writing, () => choosePlace({ name, base, hasSidecar: false }))} isFile />}
      <SameCommand command={command} />
    </section>
  );
}
