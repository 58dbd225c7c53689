/** Answers from what the page kept (src/offline.ts) when there is no network, so that the page can be loaded again. */
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || request.headers.has("range") || new URL(request.url).origin !== self.location.origin) return;
  event.respondWith(fetch(request).catch(async () => await caches.match(request, { ignoreSearch: request.mode === "navigate" }) ?? Response.error()));
});
