/** What is whole of a checkpoint that does not open: the files that open on their own. This script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Model } from "../model";
import type { Opening, Source } from "../protocol";
import { bytesText, plural, visible } from "../text";
import { useModel } from "./hooks";

const ALONE = /\.(safetensors|pt|pth|bin|ckpt)$/, MOST = 64;
interface State { readonly file: Source; readonly text: string; readonly opens: boolean }

const alone = (file: Source): Opening => ({ title: file.name.split("/").pop() ?? file.name, files: [file], primary: file.name });

async function stateOf(model: Model, file: Source): Promise<State> {
  let why = "";
  const described = await model.runAside(`Looking at ${file.name}`, { a: alone(file) }, undefined, (client) => client.call("describe", {}), ({ message }) => { why = message; });
  if (described) return { file, opens: true, text: `opens on its own: ${plural(described.overview.tensors, "tensor")}, ${bytesText(described.overview.bytes)}` };
  return { file, opens: false, text: why || "not looked at" };
}

export function Whole({ opening }: { opening: Opening }): JSX.Element | null {
  const model = useModel(), [states, setStates] = useState<readonly State[]>([]), files = opening.files.length > 1 ? opening.files.filter(({ name }) => ALONE.test(name)).slice(0, MOST) : [];
  useEffect(() => {
    let isGone = false;
    void (async () => {
      setStates([]);
      for (const file of files) {
        const state = await stateOf(model, file);
        if (isGone) return;
        setStates((before) => [...before, state]);
      }
    })();
    return () => { isGone = true; };
  }, [opening]);
  if (!states.some((s) => s.opens)) return null;
  return (
    <section aria-label="What is whole">
      <h2>What is whole of {visible(opening.title)}</h2>
      <ul class="choices">{states.map(({ file, text, opens }) => <li key={file.name}>
        {opens ? <button type="button" onClick={() => void model.open(async () => alone(file))}><strong>{visible(file.name)}</strong><span>{text}</span></button>
          : <span class="failed"><strong>{visible(file.name)}</strong> {visible(text)}</span>}
      </li>)}</ul>
      {opening.files.length > files.length && <p class="quiet">{plural(opening.files.length - files.length, "other file")} cannot be opened alone.</p>}
    </section>
  );
}
