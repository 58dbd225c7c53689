/** The banner of a damaged file that is open: what is lost, and the way to what is whole. This script is loaded on demand. */
import type { JSX } from "preact";
import { damageOf, lostOf } from "../lost";
import { plural, visible } from "../text";
import type { View } from "../route";
import { useModel } from "./hooks";

const MOST = 5;

export function Damaged({ go }: { go: (view: View) => void }): JSX.Element | null {
  const model = useModel(), { opening, opened, findings } = model;
  if (!opening || !opened || !findings) return null;
  const { names, count } = lostOf(findings), missing = opened.overview.missing_chunks, title = visible(opening.title);
  if (opening.salvage) return (
    <div class="banner" role="status" aria-label="Damaged file">
      <p><strong>This is what is whole of {title}.</strong> {count === 0 ? "Nothing that it names is lost." : `${plural(count, "entry is", "entries are")} lost: ${names.slice(0, MOST).map(visible).join(", ")}${count > MOST ? " …" : ""}`}</p>
      {count > 0 && <button type="button" class="small" onClick={() => go("problems")}>Show what is lost</button>}
    </div>
  );
  return (
    <div class="banner" role="status" aria-label="Damaged file">
      <p><strong>{title} is damaged:</strong> {visible(damageOf(findings)?.message ?? "")}. {missing ? `The values of ${plural(missing, "tensor")} are lost.` : "All tensors are whole, but readers of safetensors reject the file. Convert writes it without the rest."}</p>
      {missing > 0 && <button type="button" class="small" onClick={() => void model.open(async () => ({ ...opening, salvage: true }))}>Open what is whole</button>}
    </div>
  );
}
