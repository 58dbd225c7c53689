/** What is whole of a checkpoint that does not open: of several files, those that open on their own, and of each file what is left of it.
 *  This script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { lostOf } from "../lost";
import { sizeOf, type Model } from "../model";
import type { Opened, Opening, Source } from "../protocol";
import { bytesText, objectTexts, plural, visible } from "../text";
import { useModel } from "./hooks";

const ALONE = /\.(safetensors|pt|pth|bin|ckpt)$/, MOST = 64;
interface State { readonly opening: Opening; readonly text: string; readonly opens: boolean }

const alone = (file: Source): Opening => ({ title: file.name.split("/").pop() ?? file.name, files: [file], primary: file.name });
const salvaged = (opening: Opening): Opening => ({ ...opening, salvage: true });

function textOf({ overview, findings }: Opened, { salvage }: Opening): string {
  const held = [plural(overview.tensors, "tensor"), bytesText(overview.bytes), ...objectTexts(overview)].join(", ");
  return salvage ? `${held} are whole; ${plural(lostOf(findings).count, "entry is", "entries are")} lost` : `opens on its own: ${held}`;
}

const lookingAt = ({ title }: Opening): string => `Looking at ${title}`;

/** Looks at the first of these ways to open a file that works. One that is cancelled is the last. */
async function stateOf(model: Model, ways: readonly Opening[]): Promise<State | undefined> {
  let why = "";
  for (const opening of ways) {
    const described = await model.runAside(lookingAt(opening), { a: opening }, undefined, (client) => client.call("describe", {}), ({ message }) => { why ||= message; });
    if (described && described.overview.tensors + described.overview.objects + described.overview.opaque > 0) return { opening, opens: true, text: textOf(described, opening) };
    if (!described && !why) break;
  }
  return ways[0] && { opening: ways[0], opens: false, text: why || "not looked at" };
}

/** The ways to open something of each file. All of a file is read to find what is whole of it, so a file at a URL is not looked at. */
function waysOf(opening: Opening): Opening[][] {
  if (opening.files.length > 1) return opening.files.filter(({ name }) => ALONE.test(name)).slice(0, MOST).map((file) => [alone(file), ...("url" in file ? [] : [salvaged(alone(file))])]);
  return opening.salvage || opening.files.some((f) => "url" in f) ? [] : [[salvaged(opening)]];
}

export function Whole({ opening }: { opening: Opening }): JSX.Element | null {
  const model = useModel(), [states, setStates] = useState<readonly State[]>([]);
  useEffect(() => {
    let isGone = false, end: () => void = () => undefined;
    void (async () => {
      setStates([]);
      for (const ways of waysOf(opening)) {
        end = () => { if (ways[0]) model.endAside(lookingAt(ways[0])); };
        const state = await stateOf(model, ways);
        if (isGone) return;
        if (state) setStates((before) => [...before, state]);
      }
    })();
    return () => { isGone = true; end(); };
  }, [opening]);
  const isRemote = opening.files.length === 1 && opening.files.some((f) => "url" in f) && !opening.salvage, others = opening.files.length - states.length;
  if (isRemote) return <p class="whole buttons"><button type="button" onClick={() => void model.open(async () => salvaged(opening))}>Look for what is whole of {visible(opening.title)}</button> <span class="quiet">reads all {bytesText(sizeOf(opening))}</span></p>;
  if (!states.some((s) => s.opens)) return null;
  return (
    <section class="whole" aria-label="What is whole">
      <h2>What is whole of {visible(opening.title)}</h2>
      <ul class="choices">{states.map(({ opening: way, text, opens }) => <li key={way.primary}>
        {opens ? <button type="button" onClick={() => void model.open(async () => way)}><strong>{visible(way.primary ?? way.title)}</strong><span>{text}</span></button>
          : <span class="failed"><strong>{visible(way.primary ?? way.title)}</strong> {visible(text)}</span>}
      </li>)}</ul>
      {opening.files.length > 1 && others > 0 && <p class="quiet">{plural(others, "other file")} cannot be opened alone.</p>}
    </section>
  );
}
