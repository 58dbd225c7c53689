/** Keeps what is shown in the address. The part after "#" names the view and the chosen entry; browsers send it to no server.
 *  The query names the URL of the checkpoint that is open, without its query and password, which may be secrets. The history
 *  of the tab keeps the whole URL, so a reload opens it again. A link may name an entry and a tab in its query. */
export const TABS = ["contents", "problems", "files", "optimizer", "names", "compare", "convert", "reshard"] as const;
export type Tab = (typeof TABS)[number];
/** The tabs, what the menu opens, and the start page. */
export type View = Tab | "load" | "share" | "start";
const VIEWS: readonly View[] = [...TABS, "load", "share", "start"];

export const viewOf = (hash: string): View => VIEWS.find((v) => hash === `#${v}` || hash.startsWith(`#${v}/`)) ?? "start";

/** The entry that the address names. */
export function entryOf(hash: string): string | undefined {
  const [, text] = /^#[a-z]+\/(.+)$/.exec(hash) ?? [];
  try {
    return text === undefined ? undefined : decodeURIComponent(text);
  } catch {
    return undefined;
  }
}

export const hashOf = (view: View, entry: string | undefined): string => view === "start" ? "" : `#${view}${entry === undefined ? "" : `/${encodeURIComponent(entry)}`}`;

interface Link { readonly url: string | undefined; readonly entry: string | undefined; readonly tab: View | undefined }

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

/** Returns a URL without the parts that may be secret: its user, password, query and fragment. */
const publicUrl = (url: string): string => url.replace(/[?#].*$/s, "").replace(/^([a-z][a-z\d+.-]*:\/\/)[^/]*@/i, "$1");

interface Kept { readonly whole?: string }
const kept = (): Kept => typeof history.state === "object" && history.state !== null ? history.state as Kept : {};

/** Returns the URL that the address names, as it was opened. */
export function wholeUrl(url: string): string {
  const { whole } = kept();
  return whole !== undefined && publicUrl(whole) === url ? whole : url;
}

/** Puts the URL of the open checkpoint and the chosen entry into the address, or removes them from it, so that a reload does
 *  not open another checkpoint. */
export function nameInAddress(url: string | undefined, entry: string | undefined): void {
  const shown = url === undefined ? undefined : publicUrl(url), hash = hashOf(viewOf(location.hash), entry), { whole, ...state } = kept();
  const isSecret = url !== undefined && url !== shown;
  if (linkOf(location.search).url === shown && location.hash === hash && (whole !== undefined) === isSecret) return;
  const address = linkOf(location.search).url === shown ? location.href.replace(/#.*$/s, "") : linkText(location.href, { url: shown, entry: undefined, tab: undefined });
  history.replaceState(isSecret ? { ...state, whole: url } : Object.keys(state).length ? state : null, "", address + hash);
}
