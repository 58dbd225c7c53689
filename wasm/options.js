/** Checks of what callers give: a wrong type or an unknown option is a TypeError that names it. */

const isText = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const KINDS = {
  flag: { holds: (v) => typeof v === "boolean", words: "true or false" },
  text: { holds: isText, words: "a string" },
  count: { holds: (v) => Number.isSafeInteger(v) && v >= 0, words: "a whole number of 0 or more" },
  real: { holds: (v) => typeof v === "number" && v >= 0, words: "a number of 0 or more" },
  document: { holds: (v) => isText(v) || isObject(v), words: "a document: its text, or an object" },
};

function expect(call, name, value, kind) {
  if (!KINDS[kind].holds(value)) throw new TypeError(`${call}: ${name} must be ${KINDS[kind].words}`);
}

/** The options that were given, without those that are undefined. `kinds` says which there are. */
export function optionsOf(call, given, kinds) {
  if (!isObject(given)) throw new TypeError(`${call}: the options must be an object`);
  const known = Object.keys(kinds);
  const taken = {};
  for (const [name, value] of Object.entries(given)) {
    if (!known.includes(name)) throw new TypeError(`${call}: there is no option '${name}'; the options are ${known.join(", ")}`);
    if (value === undefined) continue;
    expect(call, `option '${name}'`, value, kinds[name]);
    taken[name] = value;
  }
  return taken;
}

export function argumentOf(call, name, value, kind) {
  expect(call, name, value, kind);
  return value;
}

export function textsOf(call, name, value) {
  if (!Array.isArray(value) || !value.every(isText)) throw new TypeError(`${call}: ${name} must be an array of strings`);
  return value;
}

/** The text of a document that was given as its text or as an object. */
export const documentText = (document) => (isText(document) ? document : JSON.stringify(document));
