/** The checkpoints that were opened before, and whether dropped ones are to be among them. This script is loaded on demand. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { rememberDrops, remembersDrops } from "../collect";
import { forget, openingOfRecent, recents, type Recent } from "../recent";
import { visible } from "../text";
import { useModel } from "./hooks";

const dateText = (when: number): string => new Date(when).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });

export function Recents(): JSX.Element | null {
  const model = useModel(), [list, setList] = useState<readonly Recent[]>([]);
  const load = () => void recents().then(setList, () => setList([])); // In a browser that stores nothing, the list is empty.
  useEffect(load, []);
  if (list.length === 0) return null;
  const open = (recent: Recent) => void model.open(() => openingOfRecent(recent), Promise.resolve(recent.handles));
  return (
    <section aria-label="Recent checkpoints">
      <h2>Recent</h2>
      <ul class="recents">
        {list.map((r) => <li key={r.id}>
          <button type="button" onClick={() => open(r)}><strong>{visible(r.title)}</strong><span>{dateText(r.when)}</span></button>
          <button type="button" class="small" onClick={() => void forget(r.id).then(load, load)} aria-label={`Forget ${visible(r.title)}`}>✕</button>
        </li>)}
      </ul>
    </section>
  );
}

/** Whether to ask for handles of what is dropped. The browser may ask a person about each of them. A browser that stores nothing, or provides
 *  no handles, is not offered that. */
export function RememberDrops(): JSX.Element | null {
  const isOn = remembersDrops();
  if (isOn === undefined || !("getAsFileSystemHandle" in DataTransferItem.prototype)) return null;
  return <label class="check"><input type="checkbox" checked={isOn} onChange={(e) => { e.currentTarget.checked = rememberDrops(e.currentTarget.checked); }} /> Also remember what is dropped (the browser may then ask about each drop)</label>;
}
