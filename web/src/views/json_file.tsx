/** A button that asks for a JSON file, and another one that forgets the file. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import type { Trouble } from "../protocol";
import { visible } from "../text";
import { troubleOf } from "../trouble";
import { useModel } from "./hooks";
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

interface JsonFileProps {
  readonly name: string | undefined;
  /** What the file would replace, if that may be something other than a file. */
  readonly chosen?: string | undefined;
  readonly what: string;
  readonly about: string;
  /** Other fields may have changed by the time that the file has been read: this starts from what is chosen then. */
  readonly set: (file: NamedText | undefined) => void;
}

/** A file is dropped if, while it was read, another one or something else was chosen in its place, or another checkpoint was opened. */
export function JsonFile({ name, chosen = name, what, about, set }: JsonFileProps): JSX.Element {
  const model = useModel(), input = useRef<HTMLInputElement>(null), [trouble, setTrouble] = useState<Trouble>(), latest = useRef<{ chosen: string | undefined; file?: File }>({ chosen });
  latest.current.chosen = chosen;
  const take = async (file: File) => {
    const { opening } = model, isWanted = () => latest.current.file === file && latest.current.chosen === chosen && model.opening === opening;
    latest.current.file = file;
    const found = await documentIn(file).catch(troubleOf);
    if (!isWanted()) return;
    setTrouble("text" in found ? undefined : found);
    if ("text" in found) set(found);
  };
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
