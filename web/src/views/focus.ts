/** Keeps the keyboard's place. What is focused disappears when a view is replaced, or when a button has done its work. Browsers
 *  then focus nothing, and a person who uses the keyboard would have to start again at the top of the page. */
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

/** Focuses something that is not a control, such as a view. */
function focusPlace(place: HTMLElement): void {
  if (!place.hasAttribute("tabindex")) place.tabIndex = -1;
  place.focus();
}

const listIn = (place: Element): HTMLElement | null => place.querySelector<HTMLElement>(".grid");

/** Focuses the view that is shown: its list of entries, if it has one. */
export function focusView(): void {
  const panel = document.getElementById("panel");
  if (panel) focusPlace(listIn(panel) ?? panel);
}

/** If what was focused is gone, focuses what is left of its surroundings: the list of entries in them, or the chosen tab. Call it in
 *  the component that is drawn whenever the page changes. */
export function useKeptFocus(): void {
  const path = useRef<readonly EventTarget[]>([]);
  useLayoutEffect(() => {
    const hear = (e: FocusEvent) => { path.current = e.composedPath(); };
    addEventListener("focusin", hear);
    return () => removeEventListener("focusin", hear);
  }, []);
  useEffect(() => {
    const { activeElement: active, body } = document, elements = path.current.filter((e): e is HTMLElement => e instanceof HTMLElement), [last, ...around] = elements;
    if (active?.getAttribute("tabindex") === "-1") listIn(active)?.focus(); // its list has been fetched meanwhile
    if (!last || (active !== body && active !== null) || (last.isConnected && !last.matches(":disabled"))) return;
    const place = around.find((e) => e.isConnected && e !== body);
    if (place) focusPlace(listIn(place) ?? place.querySelector<HTMLElement>("[role=tab][aria-selected=true]") ?? place);
  });
}
