/** Opens the checkpoint again: one part of it, or with the tensors of its ranks joined. This script is loaded on demand. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { PART, SHARDS } from "../field_names";
import type { Opening } from "../protocol";
import { visible } from "../text";
import { useModel } from "./hooks";
import { JsonFile, type NamedText } from "./json_file";

const MAPS: readonly string[] = ["meta-llama", "megatron-gpt", "vllm"];
const isBuiltIn = (shards: string | undefined): boolean => shards === undefined || MAPS.includes(shards);

/** `why` is the text that may ask for it. A checkpoint that was opened so can always be opened otherwise. */
export function OpenAs({ why = "" }: { why?: string | undefined }): JSX.Element | null {
  const { opening } = useModel(), isNeeded = opening?.part !== undefined || opening?.shards !== undefined || /--(part|shards)\b/.test(why);
  return opening && isNeeded ? <Form key={opening} opening={opening} /> : null;
}

function Form({ opening }: { opening: Opening }): JSX.Element {
  const model = useModel(), [part, setPart] = useState(opening.part ?? ""), [shards, setShards] = useState(isBuiltIn(opening.shards) ? opening.shards ?? "" : "");
  const [file, setFile] = useState<NamedText | undefined>(isBuiltIn(opening.shards) ? undefined : { name: "shards.json", text: opening.shards ?? "" });
  const submit = (e: Event) => {
    e.preventDefault();
    const { part: _, shards: __, ...whole } = opening, map = file?.text ?? shards;
    void model.open(async () => ({ ...whole, ...(part.trim() ? { part: part.trim() } : {}), ...(map ? { shards: map } : {}) }));
  };
  return (
    <form aria-label="Open again" onSubmit={submit}>
      <p class="quiet">Open the checkpoint again with the command's --part or --shards:</p>
      <div class="fields">
        <label>{PART}<input type="text" value={part} placeholder="all of it, or module" list="parts" spellcheck={false} onInput={(e) => setPart(e.currentTarget.value)} /></label>
        <datalist id="parts">{model.parts?.map(({ name }) => <option key={name} value={name} />)}</datalist>
        <label>{SHARDS}<select aria-label={SHARDS} value={file ? file.name : shards} disabled={file !== undefined} onChange={(e) => setShards(e.currentTarget.value)}>
          <option value="">no map: they stay apart</option>
          {file && <option value={file.name}>{visible(file.name)}</option>}
          {MAPS.map((name) => <option key={name} value={name}>{name}</option>)}
        </select></label>
      </div>
      <JsonFile name={file?.name} what="map of shards" about="tessera.shards/1, if no built-in map fits." set={setFile} />
      <p class="buttons"><button type="submit">Open again</button></p>
    </form>
  );
}
