/** A view whose script is fetched when it is opened for the first time. After that it is shown immediately, so what is typed next reaches
 *  it. All properties except `load` are passed on to the view. */
import { createElement, type Attributes, type ComponentType, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Trouble } from "../protocol";
import { troubleOf } from "../trouble";
import { TroubleBox } from "./parts";

/** The views whose scripts have been fetched, by what fetches them. */
const loaded = new Map<unknown, unknown>();

export function Later<P extends object>({ load, ...rest }: { load: () => Promise<ComponentType<P>> } & P): JSX.Element {
  const View = loaded.get(load) as ComponentType<P> | undefined, [{ trouble }, setEnd] = useState<{ readonly trouble?: Trouble }>({});
  useEffect(() => {
    if (!View) load().then((view) => { loaded.set(load, view); setEnd({}); }, (e: unknown) => setEnd({ trouble: troubleOf(e) }));
  }, []);
  if (trouble) return <TroubleBox trouble={trouble} />;
  return View ? createElement(View, rest as unknown as P & Attributes) : <p role="status">Loading …</p>;
}
