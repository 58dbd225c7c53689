/** Keeps what is shown in the address: the part after "#" names the view, and the query names the URL of the checkpoint that
 *  is open. A link may also name an entry and a tab. The names of local files and entries are never put into the address
 *  automatically. */
export const TABS = ["contents", "files", "optimizer", "problems", "compare"] as const;
export type Tab = (typeof TABS)[number];
/** Views that the header's actions open, and the start page. */
export type View = Tab | "convert" | "reshard" | "load" | "names" | "share" | "start";
const VIEWS: readonly View[] = [...TABS, "convert", "reshard", "load", "names", "share", "start"];

export const viewOf = (hash: string): View => VIEWS.find((v) => `#${v}` === hash) ?? "start";

export interface Link { readonly url: string | undefined; readonly entry: string | undefined; readonly tab: View | undefined }

export function linkOf(search: string): Link {
  const query = new URLSearchParams(search), tab = query.get("tab");
  return { url: query.get("url") ?? undefined, entry: query.get("entry") ?? undefined, tab: VIEWS.find((v) => v === tab) };
}

/** Returns the page's address for a checkpoint at a URL. */
export function linkText(page: string, { url, entry, tab }: Link): string {
  const link = new URL(page);
  link.hash = "";
  link.search = new URLSearchParams([["url", url], ["entry", entry], ["tab", tab]].filter((p): p is [string, string] => p[1] !== undefined)).toString();
  return link.href;
}

/** Puts the URL of the open checkpoint into the address, or removes the URL from it, so that a reload does not open another
 *  checkpoint. */
export function nameInAddress(url: string | undefined): void {
  if (linkOf(location.search).url === url) return;
  history.replaceState(history.state, "", linkText(location.href, { url, entry: undefined, tab: undefined }) + location.hash);
}
