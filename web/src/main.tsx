import { render } from "preact";
import { openingServed } from "./collect";
import { isElsewhere, mayReadOthers } from "./elsewhere";
import { Model } from "./model";
import { keepPage } from "./offline";
import { linkOf, nameInAddress } from "./route";
import "./style.css";
import { App } from "./views/app";
import { ModelContext } from "./views/hooks";

const model = new Model(), show = (view: string) => { location.hash = view; };

/** Opens the checkpoint that the page's address names. The strict page may not read other sites, so it passes such a link on
 *  to the page that may. */
async function openLink(): Promise<void> {
  const { url, entry, tab } = linkOf(location.search);
  if (url === undefined) return void model.openServed(openingServed, () => show("compare"));
  if (isElsewhere(url) && !mayReadOthers()) return location.replace(new URL(`remote.html${location.search}`, document.baseURI).href);
  await model.open(async (signal, tell) => {
    const { openingOfRemote, resolveUrl } = await import("./remote");
    return { ...await openingOfRemote(await resolveUrl(url, signal), signal, tell), link: url };
  });
  if (model.opened && tab) show(tab);
  if (model.opened && entry !== undefined) await model.reveal(entry);
}

let wasOpen = false;
/** A link stays in the address while it is being opened, and if that fails. Entries of the history may name what was open
 *  before. */
function keepAddress(): void {
  const { opening, opened } = model;
  wasOpen ||= opened !== undefined;
  if (wasOpen) nameInAddress(opened && (opening?.link ?? opening?.url));
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
