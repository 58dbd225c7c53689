/** The only addresses that may become scripts: the page's own worker and service worker. Browsers with Trusted Types reject
 *  all others. */
interface Policy { createScriptURL(url: string): string }
declare const trustedTypes: { createPolicy(name: string, rules: Policy): Policy } | undefined;

const rules: Policy = {
  createScriptURL(url) {
    if (new URL(url).protocol === "blob:" || url === new URL("sw.js", document.baseURI).href) return url;
    throw new TypeError(`${url} is not a script of this page`);
  },
};
const policy = typeof trustedTypes === "undefined" ? rules : trustedTypes.createPolicy("tessera", rules);

/** Returns a string, or with Trusted Types the object that the browser accepts instead. */
export const scriptUrl = (url: string): string => policy.createScriptURL(url);
