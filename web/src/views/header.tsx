/** One line about the checkpoint: its name, format and sizes, a verdict, and the actions that are possible. */
import type { JSX } from "preact";
import type { View } from "../route";
import { amountText, bytesText, exactText, plural, visible } from "../text";
import { useModel } from "./hooks";
import { problemCount } from "./problems";

function Verdict({ go }: { go: (view: View) => void }): JSX.Element | null {
  const model = useModel(), { opened } = model;
  if (!opened) return null;
  const { errors, warnings } = problemCount(model), { absent, files } = opened.overview;
  const data = files.filter((f) => f.absent || f.chunks > 0).length;
  const [kind, text] = opened.isMetadataOnly ? ["warning", `Metadata only: ${exactText(absent.length)} of ${plural(data, "data file")} absent`]
    : absent.length ? ["error", `${exactText(absent.length)} of ${plural(data, "data file")} absent`]
    : errors + warnings ? [errors ? "error" : "warning", plural(errors + warnings, "problem")]
    : model.isDeep ? ["fine", "Every byte checked: OK"] : ["fine", "Structure OK — bytes not checked"];
  return <button type="button" class={`chip verdict ${kind}`} onClick={() => go("problems")}>{text}</button>;
}

const ACTIONS: readonly (readonly [View, string])[] = [["compare", "Compare"], ["convert", "Convert…"], ["reshard", "Reshard…"], ["load", "Would it load?"], ["names", "Names"], ["share", "Share"]];

export function Header({ view, go }: { view: View; go: (view: View) => void }): JSX.Element | null {
  const model = useModel(), { opened } = model;
  if (!opened) return null;
  const { overview, amounts: { optimizer, parameters } } = opened, others = overview.bytes - optimizer.bytes - (parameters?.bytes ?? 0);
  return (
    <>
      <h1>{visible(model.opening?.title ?? "")}</h1>
      <ul class="chips" aria-label="Summary">
        <li class="chip"><strong>{overview.format}</strong></li>
        {!parameters ? overview.elements > 0 && <><li class="chip">{amountText(overview.elements, "element")}</li><li class="chip">{bytesText(overview.bytes)} in all</li></>
          : parameters.elements > 0 && <><li class="chip">{amountText(parameters.elements, "parameter")}</li><li class="chip">{bytesText(parameters.bytes)} weights</li></>}
        {optimizer.bytes > 0 && <li class="chip">{bytesText(optimizer.bytes)} optimizer</li>}
        {parameters && others > 0 && <li class="chip">{bytesText(others)} other tensors</li>}
      </ul>
      <Verdict go={go} />
      <span class="space" />
      <nav class="actions" aria-label="Actions">
        {ACTIONS.map(([to, name]) => <button key={to} type="button" aria-current={view === to ? "page" : undefined} onClick={() => go(to)}>{name}</button>)}
        <button type="button" onClick={() => { model.close(); go("start"); }}>Open another</button>
      </nav>
    </>
  );
}
