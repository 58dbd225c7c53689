import { render } from "preact";
import { isServed, openingServed } from "./collect";
import { isElsewhere, mayReadOthers } from "./elsewhere";
import { Model } from "./model";
import { keepPage } from "./offline";
import { keepOpen, reopen } from "./reopening";
import { entryOf, hashOf, linkOf, nameInAddress, viewOf, wholeUrl } from "./route";
import "./style.css";
import { App } from "./views/app";
import { ModelContext } from "./views/hooks";

const model = new Model();

/** Opens the checkpoint that the page's address names. The strict page may not read other sites, so it passes such a link on
 *  to the page that may. */
async function openLink(): Promise<void> {
  const { url: named, entry, tab } = linkOf(location.search), shown = entryOf(location.hash);
  const url = named === undefined ? undefined : wholeUrl(named), showEntry = async () => { if (shown !== undefined) await model.reveal(shown); };
  if (url === undefined && isServed()) return model.openServed(openingServed);
  if (url === undefined) return viewOf(location.hash) === "start" ? undefined : reopen(model, showEntry); // the address of a reload names a view
  if (isElsewhere(url) && !mayReadOthers()) return location.replace(new URL(`remote.html${location.search}`, document.baseURI).href);
  const isOpen = await model.open(async (signal, tell) => {
    const { openingOfRemote, resolveUrl } = await import("./remote");
    return { ...await openingOfRemote(await resolveUrl(url, signal), signal, tell), link: url };
  });
  if (isOpen && tab) location.hash = hashOf(tab, undefined);
  if (isOpen && (entry ?? shown) !== undefined) await model.reveal(entry ?? shown ?? "");
}

let wasOpen = false;
/** A link stays in the address while it is being opened, and if that fails. Entries of the history may name what was open
 *  before. */
function keepAddress(): void {
  const { opening, opened, selected } = model, isOwn = selected !== undefined && selected.map.map === undefined && selected.compared?.mark !== "only-b";
  wasOpen ||= opened !== undefined && viewOf(location.hash) !== "start";
  if (wasOpen) keepOpen(opened && opening);
  if (wasOpen) nameInAddress(opened && (opening?.link ?? opening?.url), isOwn ? selected.fqn : undefined);
}

model.subscribe(keepAddress);
addEventListener("popstate", keepAddress);
void openLink();
const root = document.getElementById("app");
addEventListener("load", () => {
  void keepPage().catch(() => undefined);
  // A browser without such storage has no leftovers.
  void import("./place").then(({ removeLeftovers }) => removeLeftovers()).catch(() => undefined);
});
if (root) render(<ModelContext.Provider value={model}><App /></ModelContext.Provider>, root);
