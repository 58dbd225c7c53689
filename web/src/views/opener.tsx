/** Ways to open a checkpoint: pickers, samples, a URL. Dropping works anywhere on the page. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { filesOfPicker, openingOf, openingOfSample, openingOfUrl, samplesHere, type Sample } from "../collect";
import type { Opening } from "../protocol";

type Open = (prepare: () => Promise<Opening>) => void;

function Picker({ label, folder, open }: { label: string; folder: boolean; open: Open }): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => { if (folder) input.current?.setAttribute("webkitdirectory", ""); }, [folder]);
  const take = () => {
    const list = input.current?.files;
    if (list?.length) open(async () => openingOf(filesOfPicker(list)));
  };
  return (
    <>
      <button type="button" onClick={() => input.current?.click()}>{label}</button>
      <input ref={input} type="file" multiple hidden tabIndex={-1} aria-hidden="true" onChange={take} />
    </>
  );
}

function UrlForm({ open }: { open: Open }): JSX.Element {
  const [url, setUrl] = useState("");
  return (
    <form class="url" onSubmit={(e) => { e.preventDefault(); if (url) open(() => openingOfUrl(url)); }}>
      <label>URL of one file on this server<input type="text" inputMode="url" value={url} onInput={(e) => setUrl(e.currentTarget.value)} placeholder="model.safetensors" /></label>
      <button type="submit">Open URL</button>
    </form>
  );
}

export function Opener({ open, about }: { open: Open; about: string }): JSX.Element {
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  useEffect(() => { samplesHere().then(setSamples, () => setSamples([])); }, []);
  return (
    <section class="opener" aria-label={about}>
      <p class="drop">Drop {about} here: a folder, or its files</p>
      <p class="buttons"><Picker label="Choose folder…" folder open={open} /><Picker label="Choose files…" folder={false} open={open} /></p>
      {samples.length > 0 && <>
        <h2>Or take a sample</h2>
        <ul class="samples">
          {samples.map((s) => <li key={s.name}><button type="button" onClick={() => open(() => openingOfSample(s))}><strong>{s.name}</strong><span>{s.title}</span></button></li>)}
        </ul>
      </>}
      <UrlForm open={open} />
    </section>
  );
}
