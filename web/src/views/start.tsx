/** The start page: what this site is, the ways to open a checkpoint, and the choice if several checkpoints were dropped
 *  together. */
import type { JSX } from "preact";
import type { Choice } from "../collect";
import { sizeOf } from "../model";
import { bytesText, exactText, plural, visible } from "../text";
import { useModel } from "./hooks";
import { Later } from "./later";
import { Opener } from "./opener";

/** More columns than these do not fit, and each checkpoint needs memory. */
const MOST_TOGETHER = 24, MOST_OTHERS = 4;

function Chooser({ choice }: { choice: Choice }): JSX.Element {
  const model = useModel();
  return (
    <section class="chooser" aria-label="Checkpoints">
      <h2>{visible(choice.title)} holds {plural(choice.options.length, "checkpoint")}. Which one?</h2>
      {choice.options.length > 1 && choice.options.length <= MOST_TOGETHER && <p class="buttons"><button type="button" onClick={() => void model.open(async () => ({ ...choice, areCompared: true }))}>Compare {choice.options.length === 2 ? "both" : `all ${exactText(choice.options.length)}`}</button></p>}
      <ul class="choices">
        {choice.options.map((o) => <li key={o.title}><button type="button" onClick={() => void model.open(async () => o)}><strong>{visible(o.title)}</strong><span>{plural(o.files.length, "file")}, {bytesText(sizeOf(o))}</span></button></li>)}
      </ul>
      {choice.others && choice.others.length > 0 && <p class="quiet">{choice.others.slice(0, MOST_OTHERS).map(visible).join(", ")}{choice.others.length > MOST_OTHERS && ` and ${exactText(choice.others.length - MOST_OTHERS)} more`} {choice.others.length === 1 ? "is" : "are"} not part of {choice.options.length === 2 ? "either" : "any"} of them.</p>}
    </section>
  );
}

const loadRecents = async () => (await import("./recent")).Recents;
const loadRememberDrops = async () => (await import("./recent")).RememberDrops;

export function Start({ back }: { back?: () => void }): JSX.Element {
  const model = useModel();
  return (
    <div class="start">
      <h1>Inspect a PyTorch checkpoint</h1>
      <p>See what a distributed checkpoint, a torch.save file or safetensors files contain, how they are sharded, whether they are sound, and how they differ.</p>
      {back && <p class="buttons"><button type="button" onClick={back}>Return to {visible(model.opening?.title ?? "the checkpoint")}</button></p>}
      {model.again && <p class="buttons"><button type="button" class="primary" onClick={() => void model.again?.open()}>Open {visible(model.again.title)} again</button> <span class="quiet">It was open before this page was reloaded.</span></p>}
      {model.choice && <Chooser choice={model.choice} />}
      <Opener about="a checkpoint" open={(prepare, handles) => void model.open(prepare, handles)} {...("indexedDB" in window ? { recent: <Later load={loadRecents} />, drops: <Later load={loadRememberDrops} /> } : {})} />
      <p class="quiet">Two checkpoints that are dropped together are compared. Nothing is uploaded, nothing in them is executed, and only the bytes that are needed are read.</p>
    </div>
  );
}
