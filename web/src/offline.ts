/** Keeps the page's own files, so that it loads again without a network. Where the browser has no such store, it does not. */
import { ASSETS, fetchedAll } from "./client";
import { isServed } from "./collect";
import { scriptUrl } from "./trusted";

const NAME = "tessera-page";
const urlOf = (name: string): string => new URL(name, document.baseURI).href;

/** Scripts and styles of this page; their names change with what is in them. */
function assetsHere(): string[] {
  const named = [...document.querySelectorAll("script[src]")].map((e) => e.getAttribute("src"))
    .concat([...document.querySelectorAll('link[rel="stylesheet"]')].map((e) => e.getAttribute("href")));
  return [...named.filter((n) => n !== null), ...ASSETS].map(urlOf);
}

export async function keepPage(): Promise<void> {
  if (!("serviceWorker" in navigator) || !("caches" in window) || isServed()) return;
  await fetchedAll;
  await navigator.serviceWorker.register(scriptUrl(urlOf("sw.js")));
  const cache = await caches.open(NAME), assets = assetsHere(), here = location.href.replace(/[#?].*$/, "");
  for (const url of assets) if (!await cache.match(url)) await cache.add(url);
  await cache.add(urlOf("samples.json")).catch(() => undefined);
  const page = await fetch(here, { cache: "no-cache" }), text = await page.clone().text();
  if (!page.ok || !assets.slice(0, 1).every((url) => text.includes(url.replace(/^.*\//, "")))) return; // another version by now
  await cache.put(here, page);
  for (const kept of await cache.keys()) if (/\/assets\//.test(kept.url) && !assets.includes(kept.url)) await cache.delete(kept);
  document.documentElement.dataset["kept"] = "yes";
}
