/** What was computed for the question that is asked now. While the answer to a newer question is awaited, the older one is dimmed and cannot
 *  be used, so that nobody takes it for the new one. */
import type { ComponentChildren, JSX } from "preact";
import { useRef } from "preact/hooks";

/** `children` are the answer. They are drawn again only while they are current. */
export function Current({ isCurrent, waiting, children }: { isCurrent: boolean; waiting: string; children: ComponentChildren }): JSX.Element {
  const latest = useRef<ComponentChildren>();
  if (isCurrent) latest.current = children;
  return (
    <div class="current" aria-busy={!isCurrent}>
      {!isCurrent && <p class="waiting quiet" role="status">{waiting} …</p>}
      <div inert={!isCurrent}>{latest.current ?? <p>{"\u00a0"}</p>}</div>
    </div>
  );
}
