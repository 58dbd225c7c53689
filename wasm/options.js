/** Checks what callers pass: a wrong type or an unknown option is a TypeError that names it. */

const isText = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const KINDS = {
  flag: { holds: (v) => typeof v === "boolean", words: "true or false" },
  text: { holds: isText, words: "a string" },
  count: { holds: (v) => Number.isSafeInteger(v) && v >= 0, words: "a whole number of 0 or more" },
  real: { holds: (v) => typeof v === "number" && v >= 0, words: "a number of 0 or more" },
  document: { holds: (v) => isText(v) || isObject(v), words: "a document: its text, or an object" },
  texts: { holds: (v) => Array.isArray(v) && v.every(isText), words: "an array of strings" },
  size: { holds: (v) => isText(v) || (Number.isSafeInteger(v) && v >= 0), words: "a size: a number of bytes, or a text such as \"2GiB\"" },
  any: { holds: () => true, words: "" }, // checked where it is used
  function: { holds: (v) => typeof v === "function", words: "a function" },
  signal: { holds: (v) => isObject(v) && typeof v.aborted === "boolean" && typeof v.throwIfAborted === "function", words: "an AbortSignal" },
};

const WORDS = { name: KINDS.text.words, size: KINDS.count.words, modified: KINDS.text.words, read: KINDS.function.words };

function expect(call, name, value, kind) {
  if (!KINDS[kind].holds(value)) throw new TypeError(`${call}: ${name} must be ${KINDS[kind].words}`);
}

/** Returns the options that were given, except those that are undefined. `kinds` has the known options. */
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

/** Returns what `words` has for a word that is one of its keys. */
export function oneOf(call, name, word, words) {
  if (!Object.hasOwn(words, word)) throw new TypeError(`${call}: ${name} must be one of ${Object.keys(words).join(", ")}, not ${isText(word) ? `'${word}'` : typeof word}`);
  return words[word];
}

/** Throws unless a call is about one of `count` parts, numbered from 0. */
export function partOrThrow(call, number, count) {
  argumentOf(call, "number", number, "count");
  argumentOf(call, "count", count, "count");
  if (number >= count || count >= 2 ** 32) throw new TypeError(`${call}: number must be less than count, and count less than 2^32`);
}

/** Returns the text of a document that was given as text or as an object. */
export const documentText = (document) => (isText(document) ? document : JSON.stringify(document));

/** Whether the option `format` asks for another form than the JSON document. */
export const isReport = (format) => format !== undefined && format !== "json";

/** Converts "maxShardSize" to the name on the command line. */
const longName = (name) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

/** Converts options for the core: alternating names and values. */
export function pairsOf(given) {
  return Object.entries(given).flatMap(([name, value]) => {
    const long = longName(name);
    if (value === false) return [];
    if (Array.isArray(value)) return value.flatMap((item) => [long, item]);
    if (value === true) return [long, ""];
    return [long, isObject(value) ? documentText(value) : String(value)];
  });
}

/** Throws unless all source files have the required members. */
export function filesOrThrow(files) {
  if (!Array.isArray(files)) throw new TypeError("open: files must be an array");
  files.forEach((file, i) => {
    const members = { name: isText(file?.name), size: KINDS.count.holds(file?.size), modified: file?.modified === undefined || isText(file.modified), read: typeof file?.read === "function" };
    for (const [name, holds] of Object.entries(members)) if (!holds) throw new TypeError(`open: files[${i}].${name} must be ${WORDS[name]}`);
  });
}

/** Throws unless the sink has the three required methods. */
export function sinkOrThrow(call, sink) {
  for (const name of ["create", "write", "finish"])
    if (typeof sink?.[name] !== "function") throw new TypeError(`${call}: sink must have a method '${name}'`);
  return sink;
}
