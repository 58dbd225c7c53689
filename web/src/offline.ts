/** Keeps the page's own files, so that it loads again without a network. Where the browser has no such store, it does not. */
const NAME = "tessera-page";

const isOwn = (url: string): boolean => url.startsWith(new URL(".", location.href).href);

export async function keepPage(): Promise<void> {
  if (!("serviceWorker" in navigator) || !("caches" in window)) return;
  await navigator.serviceWorker.register(new URL("sw.js", document.baseURI));
  const here = location.href.replace(/[#?].*$/, "");
  const own = performance.getEntriesByType("resource").map((r) => r.name).filter((url) => isOwn(url) && /\/assets\/|samples\.json$/.test(url));
  const wanted = new Set([here, ...own]);
  const cache = await caches.open(NAME);
  for (const kept of await cache.keys()) if (/\/assets\//.test(kept.url) && !wanted.has(kept.url)) await cache.delete(kept);
  for (const url of wanted) if (!await cache.match(url) || !/\/assets\//.test(url)) await cache.add(url);
  document.documentElement.dataset.kept = "yes";
}
