/** The fields that choose a map: one that is built in, or one in a file. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { NO_MAP, type MapChoice } from "../map_choice";
import { visible } from "../text";
import { useModel } from "./hooks";
import { JsonFile } from "./json_file";

export function MapFields({ label = "Names and layouts become" }: { label?: string }): JSX.Element {
  const model = useModel(), { maps = [], mapChoice: choice } = model, isBuiltIn = choice.text === undefined;
  const set = (change: MapChoice) => { model.mapChoice = change; model.changed(); };
  useEffect(() => { void model.loadMaps(); }, []);
  return (
    <div role="group" aria-label="Map">
      <div class="fields">
        <label>{label}<select aria-label={label} value={choice.name} onChange={(e) => set({ name: e.currentTarget.value, inverse: choice.inverse })}>
          <option value="">what they are</option>
          {!isBuiltIn && <option value={choice.name}>{visible(choice.name)}</option>}
          {maps.map((name) => <option key={name} value={name}>{name}</option>)}
        </select></label>
        {choice.name && <label class="check"><input type="checkbox" checked={choice.inverse} onChange={(e) => set({ ...choice, inverse: e.currentTarget.checked })} /> Apply the map backwards</label>}
      </div>
      <JsonFile name={isBuiltIn ? undefined : choice.name} what="map file" about="tessera.map/1, if no built-in map fits." set={(file) => set(file ? { ...file, inverse: choice.inverse } : NO_MAP)} />
    </div>
  );
}
