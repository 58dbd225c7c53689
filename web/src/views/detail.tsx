/** The right side of the page: the overview, or the chosen entry. */
import type { JSX, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Model } from "../model";
import type { View } from "../route";
import { aboutText } from "./header";
import { useModel, useNarrow } from "./hooks";
import { Later } from "./later";
import { OverviewPane } from "./overview";

/** Closes the entry. On a phone the entry is an entry of the browser's history, and that is
 *  undone. */
export function closeEntry(model: Model): void {
  if (isStep(history.state)) history.back();
  else model.deselect();
}

const isStep = (state: unknown): boolean => typeof state === "object" && state !== null && "entry" in state;

/** On a phone the detail covers the list. This adds an entry to the browser's history, so that the Back button leads to the
 *  list. */
function useHistoryStep(model: Model): void {
  const isNarrow = useNarrow(), isShown = model.selected !== undefined, isTaken = useRef(false);
  useEffect(() => {
    if (!isNarrow || !isShown) return;
    if (!isStep(history.state)) history.pushState({ entry: true }, "", location.href);
    isTaken.current = true;
  }, [isNarrow, isShown]);
  useEffect(() => {
    const hear = () => {
      if (!isTaken.current || isStep(history.state)) return; // This was a change of view, which leaves the entry open.
      isTaken.current = false;
      model.deselect();
    };
    addEventListener("popstate", hear);
    return () => removeEventListener("popstate", hear);
  }, [model]);
}

/** When the entry is closed, what was focused before it was shown is focused again. On a phone the entry covers the rest, so it has the
 *  focus. */
function useReturn(model: Model): RefObject<HTMLElement> {
  const box = useRef<HTMLElement>(null), isNarrow = useNarrow(), isShown = model.selected !== undefined;
  useLayoutEffect(() => {
    if (!isShown) return undefined;
    const before = document.activeElement;
    if (isNarrow) box.current?.focus();
    return () => {
      const { activeElement: active, body } = document, isElsewhere = active !== body && !box.current?.contains(active);
      if (model.selected || isElsewhere) return;
      if (before instanceof HTMLElement && before.isConnected && before !== body && !box.current?.contains(before)) before.focus();
      else document.querySelector<HTMLElement>(".grid")?.focus();
    };
  }, [isShown]);
  return box;
}

const loadEntry = async () => (await import("./entry")).EntryPane;

/** The overview on a phone, which has no room for a right side: one line above the list, which unfolds. */
export function FoldedOverview({ go }: { go: (view: View) => void }): JSX.Element {
  return <details class="folded"><summary>{aboutText(useModel())}</summary><OverviewPane go={go} /></details>;
}

/** The right side of the page: an overview until an entry is chosen, then that entry. */
export function SidePane({ go }: { go: (view: View) => void }): JSX.Element | null {
  const model = useModel(), { selected } = model, isNarrow = useNarrow();
  useHistoryStep(model);
  const box = useReturn(model);
  if (isNarrow && !selected) return null;
  return <aside ref={box} class="detail" aria-label={selected ? "Entry" : "Overview"} tabIndex={0}>{selected ? <Later load={loadEntry} selected={selected} /> : <OverviewPane go={go} />}</aside>;
}
