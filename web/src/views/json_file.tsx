/** A button that asks for a JSON file, and another one that forgets the file. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import type { Trouble } from "../protocol";
import { visible } from "../text";
import { troubleOf } from "../trouble";
import { TroubleBox } from "./parts";

export interface NamedText { readonly name: string; readonly text: string }

/** Reads a document. A text that is not one would be taken for the name of a map. */
async function documentIn(file: File): Promise<NamedText> {
  const text = await file.text().catch((e: unknown) => { throw new Error(`'${file.name}' cannot be read (${troubleOf(e).message}); choose it again`); });
  try {
    JSON.parse(text);
    if (/^\s*\{/.test(text)) return { name: file.name, text };
  } catch (e) {
    throw new Error(`'${file.name}' is not JSON: ${troubleOf(e).message}`);
  }
  throw new Error(`'${file.name}' is not a JSON object`);
}

/** What the file replaces may have changed by the time that it has been read: `set` starts from what is chosen then. */
export function JsonFile({ name, what, about, set }: { name: string | undefined; what: string; about: string; set: (file: NamedText | undefined) => void }): JSX.Element {
  const input = useRef<HTMLInputElement>(null), [trouble, setTrouble] = useState<Trouble>();
  const take = (file: File) => documentIn(file).then((document) => { setTrouble(undefined); set(document); }, (e: unknown) => setTrouble(troubleOf(e)));
  return (
    <>
      <p class="buttons">
        <button type="button" onClick={() => input.current?.click()}>{name === undefined ? `Choose the ${what}…` : visible(name)}</button>
        {name !== undefined && <button type="button" class="small" onClick={() => set(undefined)} aria-label={`Forget the ${what}`}>✕</button>}
        <input ref={input} type="file" accept=".json" hidden tabIndex={-1} aria-hidden="true" onChange={(e) => { const [file] = e.currentTarget.files ?? []; if (file) void take(file); e.currentTarget.value = ""; }} />
        <span class="quiet">{about}</span>
      </p>
      {trouble && <TroubleBox trouble={trouble} />}
    </>
  );
}
