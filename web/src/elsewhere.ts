/** Whether a text is the URL of another site, and whether this page may read from there. */

/** A repository of the hub, and a revision. */
export const HUB = /^hf:\/\/([^/@]+\/[^/@]+)(?:@(.+))?$/;

export const isElsewhere = (text: string): boolean => HUB.test(text) || (URL.canParse(text, document.baseURI) && new URL(text, document.baseURI).origin !== location.origin);

/** Whether this page's policy lets it read from other servers; remote.html's does. */
export const mayReadOthers = (): boolean => /connect-src [^;]*https:/.test(document.querySelector('meta[http-equiv="Content-Security-Policy"]')?.getAttribute("content") ?? "");
