/** A link to what the page shows. Only a checkpoint that was opened from a URL has one. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { isServed } from "../collect";
import { linkText } from "../route";
import { NO_SOURCE, shellText, sourceOptions } from "../command";
import { visible } from "../text";
import { useModel } from "./hooks";
import { Copy } from "./parts";

export function Share(): JSX.Element {
  const model = useModel(), url = model.opening?.url, { fqn, map } = model.selected ?? {}, entry = map?.map === undefined ? fqn : undefined; // a link names entries of the checkpoint itself
  const [withEntry, setWithEntry] = useState(true);
  if (isServed()) {
    const source = model.opening ?? NO_SOURCE, command = shellText({ name: "view", operands: [source.title], options: sourceOptions(source) });
    return <section class="view" aria-label="Share"><h2>Share</h2><p>This checkpoint is on the machine on which tessera view runs, so there is no link that others can open. The command shows it again there:</p><p class="command"><code>{visible(command)}</code> <Copy text={command} what="command" /></p></section>;
  }
  if (url === undefined) {
    return <section class="view" aria-label="Share"><h2>Share</h2><p>This checkpoint was not opened from a URL, so there is no link to it. Nothing of it is sent anywhere. Open a checkpoint from a URL to get a link.</p></section>;
  }
  const link = linkText(location.href, { url, entry: withEntry ? entry : undefined, tab: "contents" });
  return (
    <section class="view" aria-label="Share">
      <h2>Share</h2>
      <p>This link opens the same checkpoint for everyone who can read its URL. If the URL holds a signature, the link holds it too.</p>
      {entry !== undefined && <p><label class="check"><input type="checkbox" checked={withEntry} onChange={(e) => setWithEntry(e.currentTarget.checked)} /> Show {visible(entry)}</label></p>}
      <p class="command"><code>{link}</code> <Copy text={link} what="link" /></p>
    </section>
  );
}
