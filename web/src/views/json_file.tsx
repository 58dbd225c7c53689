/** A button that asks for a JSON file, and another one that forgets the file. */
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { visible } from "../text";

export interface NamedText { readonly name: string; readonly text: string }

export function JsonFile({ name, what, about, set }: { name: string | undefined; what: string; about: string; set: (file: NamedText | undefined) => void }): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  const take = async (file: File) => { set({ name: file.name, text: await file.text() }); };
  return (
    <p class="buttons">
      <button type="button" onClick={() => input.current?.click()}>{name === undefined ? `Choose the ${what}…` : visible(name)}</button>
      {name !== undefined && <button type="button" class="small" onClick={() => set(undefined)} aria-label={`Forget the ${what}`}>✕</button>}
      <input ref={input} type="file" accept=".json" hidden tabIndex={-1} aria-hidden="true" onChange={(e) => { const [file] = e.currentTarget.files ?? []; if (file) void take(file); e.currentTarget.value = ""; }} />
      <span class="quiet">{about}</span>
    </p>
  );
}
