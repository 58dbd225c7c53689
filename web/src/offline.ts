/** Stores the page's own files, so that it loads again without a network. If the browser has no such store, nothing is
 *  stored. */
import { fetchedAll } from "./client";
import { isServed } from "./collect";
import { scriptUrl } from "./trusted";

const NAME = "tessera-page";
const urlOf = (name: string): string => new URL(name, document.baseURI).href;

/** Lists the scripts, styles and modules of this page, including those that are fetched on demand; the page's own script
 *  comes first. Their names change with their content. */
async function assetsHere(): Promise<string[]> {
  const list = await (await fetch(urlOf("assets.json"), { cache: "no-cache" })).json() as string[], own = document.querySelector("script[src]")?.getAttribute("src");
  const urls = list.map(urlOf), first = own ? urlOf(own) : "";
  if (!urls.includes(first)) throw new Error("the server has another version of this page");
  return [first, ...urls.filter((url) => url !== first)];
}

export async function keepPage(): Promise<void> {
  if (!("serviceWorker" in navigator) || !("caches" in window) || isServed()) return;
  await fetchedAll();
  await navigator.serviceWorker.register(scriptUrl(urlOf("sw.js")));
  const cache = await caches.open(NAME), assets = await assetsHere(), here = location.href.replace(/[#?].*$/, "");
  for (const url of assets) if (!await cache.match(url)) await cache.add(url);
  await cache.add(urlOf("samples.json")).catch(() => undefined);
  const page = await fetch(here, { cache: "no-cache" }), text = await page.clone().text();
  if (!page.ok || !assets.slice(0, 1).every((url) => text.includes(url.replace(/^.*\//, "")))) return; // there is another version by now
  await cache.put(here, page);
  for (const kept of await cache.keys()) if (/\/assets\//.test(kept.url) && !assets.includes(kept.url)) await cache.delete(kept);
  document.documentElement.dataset["kept"] = "yes";
}
