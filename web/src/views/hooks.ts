import { createContext } from "preact";
import type { RefObject } from "preact";
import { useContext, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import type { Model } from "../model";
import { entryOf, hashOf, viewOf, type View } from "../route";

export const ModelContext = createContext<Model | undefined>(undefined);

/** The model; the calling view is drawn again whenever it changes. */
export function useModel(): Model {
  const model = useContext(ModelContext);
  if (!model) throw new Error("no model");
  const [, redraw] = useReducer((n: number, _: undefined) => n + 1, 0);
  useLayoutEffect(() => model.subscribe(() => redraw(undefined)), [model]); // before anything can change: an effect would wait for a frame
  return model;
}

/** The view that the address names, and the way to another, which Back undoes. */
export function useView(): [View, (view: View) => void] {
  const [view, setView] = useState<View>(viewOf(location.hash));
  useLayoutEffect(() => {
    const hear = () => setView(viewOf(location.hash));
    addEventListener("popstate", hear); // no hashchange is fired if the query changes as well
    return () => removeEventListener("popstate", hear);
  }, []);
  return [view, (to) => { if (to !== viewOf(location.hash)) location.hash = hashOf(to, entryOf(location.hash)); setView(to); }];
}

/** The width of a drawing on the page, in pixels. Its texts have the same size at every width, then. */
export function useWidth(): [RefObject<SVGSVGElement>, number] {
  const box = useRef<SVGSVGElement>(null), [width, setWidth] = useState(400);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.round(entry?.contentRect.width ?? 0) || 400));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

/** On a Mac, Ctrl K deletes to the end of a line in a field. */
export const isMac = /^(Mac|iP)/.test(navigator.platform);
/** The key that opens the list of commands. */
export const GO_TO = isMac ? "⌘ K" : "Ctrl K";

/** Whether a media query matches, now and whenever that changes. */
export function useMedia(media: string): boolean {
  const [matches, setMatches] = useState(matchMedia(media).matches);
  useLayoutEffect(() => {
    const query = matchMedia(media), hear = () => setMatches(query.matches);
    query.addEventListener("change", hear);
    return () => query.removeEventListener("change", hear);
  }, []);
  return matches;
}

/** Whether the page has the width of a phone. */
export const useNarrow = (): boolean => useMedia("(max-width: 640px)");
