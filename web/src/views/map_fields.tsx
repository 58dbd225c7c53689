/** The fields that choose a map: one that is built in, or one in a file. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { NO_MAP, type MapChoice } from "../map_choice";
import type { Model } from "../model";
import type { Trouble } from "../protocol";
import { visible } from "../text";
import { useModel } from "./hooks";
import { JsonFile } from "./json_file";
import { TroubleBox } from "./parts";

/** Loads the names of the built-in maps. */
async function loadMaps(model: Model, hear: (trouble: Trouble) => void): Promise<void> {
  const maps = model.maps ?? await model.run("Looking for maps", undefined, () => model.client.call("maps", {}), hear);
  if (maps) model.maps = maps;
  model.changed();
}

export function MapFields({ label = "Names and layouts become" }: { label?: string }): JSX.Element {
  const model = useModel(), { maps = [], mapChoice: choice } = model, isBuiltIn = choice.text === undefined, [trouble, setTrouble] = useState<Trouble>();
  const set = (change: MapChoice) => { model.mapChoice = change; model.changed(); };
  const load = () => { setTrouble(undefined); void loadMaps(model, setTrouble); };
  useEffect(load, [model.opening]);
  return (
    <div role="group" aria-label="Map">
      <div class="fields">
        <label>{label}<select aria-label={label} value={choice.name} onChange={(e) => set({ name: e.currentTarget.value, inverse: choice.inverse })}>
          <option value="">(no change)</option>
          {!isBuiltIn && <option value={choice.name}>{visible(choice.name)}</option>}
          {maps.map((name) => <option key={name} value={name}>{name}</option>)}
        </select></label>
        {choice.name && <label class="check"><input type="checkbox" checked={choice.inverse} onChange={(e) => set({ ...choice, inverse: e.currentTarget.checked })} /> Apply the map backwards</label>}
      </div>
      {trouble && <TroubleBox trouble={trouble} retry={load} />}
      <JsonFile name={isBuiltIn ? undefined : choice.name} chosen={choice.name} what="map file" about="tessera.map/1, if no built-in map fits." set={(file) => set(file ? { ...file, inverse: model.mapChoice.inverse } : NO_MAP)} />
    </div>
  );
}
