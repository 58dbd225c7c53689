/** A view whose script is fetched when it is opened for the first time. All properties except `load` are passed on to the
 *  view. */
import { createElement, type Attributes, type ComponentType, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Trouble } from "../protocol";
import { troubleOf } from "../trouble";
import { TroubleBox } from "./parts";

export function Later<P extends object>({ load, ...rest }: { load: () => Promise<ComponentType<P>> } & P): JSX.Element {
  const [view, setView] = useState<{ readonly View?: ComponentType<P>; readonly trouble?: Trouble }>({});
  useEffect(() => { load().then((View) => setView({ View }), (e: unknown) => setView({ trouble: troubleOf(e) })); }, []);
  if (view.trouble) return <TroubleBox trouble={view.trouble} />;
  return view.View ? createElement(view.View, rest as unknown as P & Attributes) : <p role="status">Loading …</p>;
}
