import { createContext } from "preact";
import { useContext, useEffect, useReducer } from "preact/hooks";
import type { Model } from "../model";

export const ModelContext = createContext<Model | undefined>(undefined);

/** The model; the calling view is drawn again whenever it changes. */
export function useModel(): Model {
  const model = useContext(ModelContext);
  if (!model) throw new Error("no model");
  const [, redraw] = useReducer((n: number, _: undefined) => n + 1, 0);
  useEffect(() => model.subscribe(() => redraw(undefined)), [model]);
  return model;
}
