/** The ways to open a checkpoint: pickers, samples and a URL. Dropping works anywhere on the page. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { checkpointsOf, filesOf, filesOfPicker, openingOfSample, samplesHere, type Prepare, type Sample } from "../collect";
import { isElsewhere, mayReadOthers } from "../elsewhere";
import type { openingOfRemote, Remote } from "../remote";
import { bytesText, visible } from "../text";
import { useModel } from "./hooks";

/** `handles` are the handles of the chosen files, if the browser gives them. With them the files can be opened again
 *  later. */
type Open = (prepare: Prepare, handles?: Promise<readonly FileSystemHandle[]>) => void;

interface Pickers { showDirectoryPicker?(): Promise<FileSystemDirectoryHandle>; showOpenFilePicker?(options: { multiple: boolean }): Promise<FileSystemFileHandle[]> }

/** Returns what a person chose in the browser's own dialog: undefined if the browser has no such dialog, and an empty list
 *  if the dialog was dismissed. */
function chosenHandles(directory: boolean): Promise<FileSystemHandle[]> | undefined {
  const { showDirectoryPicker, showOpenFilePicker } = window as unknown as Pickers;
  if (!showDirectoryPicker || !showOpenFilePicker) return undefined;
  return (directory ? showDirectoryPicker.call(window).then((d) => [d]) : showOpenFilePicker.call(window, { multiple: true })).catch((e: unknown) => {
    if (e instanceof DOMException && e.name === "AbortError") return [];
    throw e;
  });
}

function Picker({ label, directory, open }: { label: string; directory: boolean; open: Open }): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => { if (directory) input.current?.setAttribute("webkitdirectory", ""); }, [directory]);
  const take = () => {
    const { current } = input;
    if (!current?.files?.length) return;
    const found = filesOfPicker(current.files);
    current.value = ""; // Otherwise choosing the same files again would cause no event.
    open(() => checkpointsOf(found));
  };
  const choose = async () => {
    const chosen = chosenHandles(directory);
    if (!chosen) return input.current?.click();
    const handles = await chosen.catch((e: unknown) => e as Error);
    if (!Array.isArray(handles)) return open(() => Promise.reject(handles));
    if (handles.length) open(async () => checkpointsOf(await filesOf(handles)), Promise.resolve(handles));
  };
  return (
    <>
      <button type="button" onClick={() => void choose()}>{label}</button>
      <input ref={input} type="file" multiple hidden tabIndex={-1} aria-hidden="true" onChange={take} />
    </>
  );
}

const remotePage = (url: string): string => `remote.html?url=${encodeURIComponent(url.trim())}`;
const openingAt = async (...args: Parameters<typeof openingOfRemote>) => (await import("../remote")).openingOfRemote(...args);

/** A URL that can be read by ranges is opened at once. If the whole file must be downloaded, the page asks first. A URL on another
 *  site is opened in the page that may read it, unless a checkpoint is open here. */
function UrlForm({ open }: { open: Open }): JSX.Element {
  const [url, setUrl] = useState(""), [whole, setWhole] = useState<Remote>();
  const mayOthers = mayReadOthers(), isBarred = !mayOthers && isElsewhere(url), model = useModel(), { opened } = model;
  const asking = useRef<AbortController>();
  const [isAsking, setAsking] = useState(false);
  useEffect(() => () => asking.current?.abort(), []);
  const edit = (to: string) => {
    asking.current?.abort();
    setUrl(to);
    setWhole(undefined);
    setAsking(false);
  };
  const submit = async (e: Event) => {
    e.preventDefault();
    if (isBarred && !opened) location.assign(remotePage(url));
    if (!url.trim() || isBarred) return;
    asking.current?.abort();
    const { signal } = asking.current = new AbortController();
    setAsking(true);
    const remote = import("../remote").then((r) => r.resolveUrl(url.trim(), signal)), asked = await remote.catch(() => undefined);
    if (signal.aborted) return;
    setAsking(false);
    if (asked && !asked.ranges) setWhole(asked);
    else open(async (opening, tell) => openingAt(await remote, opening, tell));
  };
  return (
    <form class="url" onSubmit={(e) => void submit(e)}>
      <label>URL of a file, an index or .metadata<input type="text" inputMode="url" value={url} onInput={(e) => edit(e.currentTarget.value)} placeholder="https://…/model.safetensors" /></label>
      <button type="submit">Open URL</button>
      {isAsking && <p class="note" role="status">Asking the server …</p>}
      {isBarred && opened && <p class="note" role="status">This page is not allowed to read from other sites. <a href={remotePage(url)}>Open it in the page that is</a>, which closes {visible(model.opening?.title ?? "")} here.</p>}
      {whole && <p class="note" role="status">The server does not send parts of this file, so all of it{whole.size === undefined ? "" : `, ${bytesText(whole.size)},`} would be downloaded. <button type="button" onClick={() => open((signal, tell) => openingAt(whole, signal, tell))}>Download all of it</button></p>}
    </form>
  );
}

/** `recent` comes first, and `drops` is about what is dropped. */
export function Opener({ open, about, recent, drops }: { open: Open; about: string; recent?: ComponentChildren; drops?: ComponentChildren }): JSX.Element {
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  useEffect(() => { samplesHere().then(setSamples, () => setSamples([])); }, []);
  return (
    <section class="opener" aria-label={about}>
      {recent}
      <UrlForm open={open} />
      <div class="drop">
        <p>Drop {about} here: a directory, or its files</p>
        <p class="buttons"><Picker label="Choose directory…" directory open={open} /><Picker label="Choose files…" directory={false} open={open} /></p>
        {drops}
      </div>
      {samples.length > 0 && <div class="sample-line"><h2>Samples</h2><ul class="samples">
        {samples.map((s) => <li key={s.name}><button type="button" title={s.title} onClick={() => open((signal) => openingOfSample(s, signal))}>{s.name}</button></li>)}
      </ul></div>}
    </section>
  );
}
