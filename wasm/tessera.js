/** Checkpoints in JavaScript: does the work of the command line with the same core and the same documents. Only
 *  `Tessera.load` and `prepare` access the network, if they are given a URL. All data come from the files passed
 *  to `open`. */

import { OPTIONS } from "./commands.js";
import { convertInto } from "./conversion.js";
import { compared, Entries, OF_AN_ENTRY } from "./entries.js";
import { TesseraError } from "./errors.js";
import { instantiated, prepared } from "./instance.js";
import { argumentOf, documentText, filesOrThrow, isReport, oneOf, optionsOf, pairsOf, partOrThrow, sinkOrThrow } from "./options.js";
import { Diff, Outline, Tally, Twins } from "./views.js";

export { Diff, Outline, Tally, TesseraError, Twins };

const KINDS = { inspect: 1, findings: 2, "findings-deep": 3, layout: 4, overview: 5, ...OF_AN_ENTRY, optimizer: 8, sarif: 2, plan: 0 };
const OPTIM = { sharded: 1, hasWorldSize: 2, hasRank: 4, allowExpansion: 8 };

export class Tessera {
  #m;

  static async load(source) {
    const self = new Tessera();
    self.#m = await instantiated(source);
    return self;
  }

  /** Loads the second file, once. */
  prepare(source = new URL("./tessera-writers.wasm", import.meta.url)) { return prepared(this.#m, source); }

  get isPrepared() { return this.#m.isPrepared; }
  /** Bytes read from files so far. */
  get bytesRead() { return this.#m.bytesRead; }
  get memoryBytes() { return this.#m.x.memory.buffer.byteLength; }
  get openCount() { return this.#m.x.tessera_open_count(); }
  set onRead(listener) { this.#m.onRead = listener; }

  /** Returns the explanation of a rule and how to fix what it finds. */
  ruleHelp(rule) {
    argumentOf("ruleHelp", "rule", rule, "text");
    return this.#m.withTexts([rule], ([id]) => this.#m.text(this.#m.x.tessera_rule_help(id)));
  }

  open(files, options = {}) {
    filesOrThrow(files);
    const choice = optionsOf("open", options, OPTIONS.open);
    if (choice.shards !== undefined) this.#m.needsPrepared();
    const { handle, number } = this.#m.open(files, choice);
    return new Checkpoint(this.#m, handle, number);
  }

  /** Return the names of the built-in maps, and the text of one. */
  mapList() {
    this.#m.needsPrepared();
    return JSON.parse(this.#m.document((err) => this.#m.x.tessera_maps(err)));
  }

  mapShow(name) {
    const m = this.#m;
    argumentOf("mapShow", "name", name, "text");
    m.needsPrepared();
    return JSON.parse(m.withTexts([name], (text) => m.document((err) => m.x.tessera_map_text(...text, err))));
  }

  /** Returns the text of a report that `tessera validate --format` prints, made from tessera.findings/1. */
  report(findings, options) {
    return this.#m.report(documentText(argumentOf("report", "findings", findings, "document")), optionsOf("report", options, { format: "text", path: "text" }));
  }

  /** Returns tessera.fqn/1 of a module tree. */
  canonicalize(modules, names = []) {
    const m = this.#m, tree = documentText(argumentOf("canonicalize", "modules", modules, "document"));
    argumentOf("canonicalize", "names", names, "texts");
    m.needsPrepared();
    return m.withTexts([tree], (text) => m.withTable(names, (table) =>
      JSON.parse(m.document((err) => m.x.tessera_canonicalize(...text, ...table, err)))));
  }
}

export class Checkpoint extends Entries {
  #store; // the number of the files; undefined if the checkpoint was made from another one

  constructor(instance, handle, store) {
    super(instance, handle);
    this.#store = store;
  }

  /** Throws if the files are not one checkpoint, but only optimizer states of ranks, which `optimizer` accepts. */
  check() { this.m.checked((err) => this.m.x.tessera_check(this.handle, err)); }

  get warnings() {
    return this.handle && !this.m.isPrepared ? [] : JSON.parse(this.m.document((err) => this.m.x.tessera_warnings(this.handle, err)));
  }

  document(kind, options = {}) {
    if (kind === "plan") return this.#plan(optionsOf("plan", options, { path: "text", ...OPTIONS.plan }));
    const text = this.documentOf(oneOf("document", "kind", kind, KINDS), options), format = kind === "sarif" ? kind : options.format;
    return isReport(format) ? this.m.report(text, { ...options, format }) : text;
  }

  /** Returns the text of a command's document; `pairs` are its options. */
  #text(name, pairs) {
    const { m } = this;
    m.needsPrepared();
    return m.withTexts([name], ([call]) => m.withTable(pairs, ([table, count]) =>
      m.document((err) => m.x.tessera_call(this.handle, call, table, count / 2, err))));
  }

  #call(name, options, more = []) {
    return JSON.parse(this.#text(name, [...pairsOf(optionsOf(name, options, OPTIONS[name])), ...more]));
  }

  inspect(options = {}) { return this.#call("inspect", options); }
  manifest(options = {}) { return this.#call("manifest", options); }

  layout(options = {}) {
    const { chunks, ...others } = optionsOf("layout", options, OPTIONS.layout);
    return this.#call("layout", others, chunks === false ? ["no-chunks", ""] : []);
  }

  validate(options = {}) {
    const { against, ...others } = optionsOf("validate", options, OPTIONS.validate);
    return this.#call("validate", others, this.#expectation("validate", against));
  }

  /** Converts a checkpoint, an array of names, or a document to options. An array becomes an index, because names in it may
   *  be any text. */
  #expectation(call, against) {
    if (against === undefined) return [];
    if (against instanceof Checkpoint) return ["against-checkpoint", String(otherOf(this.m, call, "option 'against'", against).handle)];
    if (!Array.isArray(against)) return ["against", documentText(argumentOf(call, "option 'against'", against, "document"))];
    argumentOf(call, "option 'against'", against, "texts");
    return ["against-names", `{"weight_map": {${[...new Set(against)].map((name) => `${JSON.stringify(name)}: ""`).join(", ")}}}`];
  }

  verify(manifest, options = {}) {
    return this.#call("verify", options, ["manifest", documentText(argumentOf("verify", "manifest", manifest, "document"))]);
  }

  plan(options = {}) { return JSON.parse(this.#plan(optionsOf("plan", options, OPTIONS.plan))); }

  /** Returns the text of tessera.plan/1, with the modification times of files that have one. Only files of the source have
   *  nothing but a name and a size in it. */
  #plan(given) {
    const text = this.#text("plan", pairsOf(given));
    const files = new Map((this.m.stores.get(this.#store) ?? []).map((file) => [file.name, file.modified]));
    const step = JSON.parse(this.m.document((err) => this.m.x.tessera_step(this.handle, err))), below = step && `${step}/`;
    return text.replace(/\{"file": ("(?:[^"\\]|\\.)*"), "bytes": \d+(?=\})/g, (entry, name) => {
      const modified = files.get(below + JSON.parse(name));
      return modified === undefined ? entry : `${entry}, "modified": ${JSON.stringify(modified)}`;
    });
  }

  convert(options, sink) { return this.#write("convert", options, sink); }
  reshard(options, sink) { return this.#write("reshard", options, sink); }

  async #write(name, options, sink) {
    const { signal, onProgress, lora, against, ...others } = optionsOf(name, options, OPTIONS[name]);
    const adapter = lora === undefined ? [] : ["lora", String(otherOf(this.m, name, "option 'lora'", lora).handle)];
    const job = { reshards: name === "reshard", pairs: [...pairsOf(others), ...adapter, ...this.#expectation(name, against)], signal, onProgress };
    return convertInto(this.m, this.handle, job, sinkOrThrow(name, sink));
  }

  /** Does part `number` of a check of all data in `count` parts of about equal size. Returns what it found, as bytes. */
  checkPart(number, count) {
    partOrThrow("checkPart", number, count);
    this.m.needsPrepared();
    return this.#taken(this.m.sized((size, err) => this.m.x.tessera_check_part(this.handle, number, count, size, err)));
  }

  /** Like `checkPart`, and fetches bytes of sources that have `fetch`. */
  async checkPartAsync(number, count) {
    partOrThrow("checkPartAsync", number, count);
    this.m.needsPrepared();
    return this.#taken(await this.m.sizedAsync("tessera_check_part", this.handle, number, count));
  }

  /** Returns a copy of bytes in the module's memory, which are freed. */
  #taken(bytes) {
    const own = bytes.slice();
    this.m.x.tessera_release(bytes.byteOffset);
    return own;
  }

  /** Ends the check, in any of the modules, with the results of all parts, one after another. The findings include them from
   *  then on. */
  checkJoin(found, count) {
    this.m.needsPrepared();
    this.m.withBytes(found, (parts) => this.m.checked((err) => this.m.x.tessera_check_join(this.handle, parts, found.length, count, err)));
  }

  /** Returns the values of a tensor, or of a slice of it: { dtype, shape, data }. */
  read(fqn, slice, options = {}) {
    argumentOf("read", "fqn", fqn, "text");
    const layered = this.#namedLayer(pairsOf(optionsOf("read", options, OPTIONS.read)));
    try {
      return layered ? layered.read(fqn, slice) : super.read(fqn, slice);
    } finally {
      layered?.close();
    }
  }

  twins() {
    this.m.needsPrepared();
    return new Twins(this.m, this.m.checked((err) => this.m.x.tessera_twins(this.handle, err)));
  }

  diff(other, options = {}) {
    const given = optionsOf("diff", options, OPTIONS.diff), { layout, canonical, modules, atol, rtol, rule, baseline, ...layers } = given;
    const right = otherOf(this.m, "diff", "other", other), own = [], named = modules === undefined ? {} : { canonical: canonical ?? false, modules };
    const layered = (checkpoint, pairs) => {
      const made = checkpoint.#layered(pairs);
      if (made) own.push(made);
      return made ?? checkpoint;
    };
    try {
      const a = layered(this, pairsOf({ ...layers, ...named })), b = layered(right, pairsOf({ allowExpansion: layers.allowExpansion ?? false, ...named }));
      return compared(a, b, given, own);
    } catch (e) {
      own.forEach((made) => made.close());
      throw e;
    }
  }

  /** Returns this checkpoint with the names and layouts of a map, to list, read and compare. It is closed with this one. */
  mapped(options) {
    const { map, inverse } = OPTIONS.diff, given = optionsOf("mapped", options, { map, inverse });
    argumentOf("mapped", "option 'map'", given.map, "document");
    return this.#layered(pairsOf(given));
  }

  /** Returns this checkpoint with the layers that options ask for, or undefined if there are no options. */
  #layered(pairs) {
    const { m } = this;
    if (pairs.length === 0) return undefined;
    m.needsPrepared();
    return new MappedCheckpoint(m, m.withTable(pairs, ([table, count]) => m.checked((err) => m.x.tessera_mapped(this.handle, table, count / 2, err))));
  }

  /** Does the same, and accepts entries that cannot be used, as listing does. */
  #namedLayer(pairs) { return this.#layered(pairs.length ? [...pairs, "names", ""] : []); }

  canonicalize(options = {}) {
    const { prefix, ...map } = optionsOf("canonicalize", options, OPTIONS.canonicalize), mapped = this.#namedLayer(pairsOf(map));
    try {
      return mapped ? mapped.canonicalize({ prefix }) : super.canonicalize({ prefix });
    } finally {
      mapped?.close();
    }
  }

  /** Returns what `tessera optim WHAT` would write, as a checkpoint that reads from this one and is closed with it. */
  optimizer(what, options = {}) {
    argumentOf("optimizer", "what", what, "text");
    const given = optionsOf("optimizer", options, OPTIONS.optimizer);
    this.m.needsPrepared();
    return new Checkpoint(this.m, makeOptimizer(this.m, this.handle, what, given));
  }

  close() { super.close(this.#store); }
}

/** A checkpoint with a map or other layers over it. It lacks the calls that would open the files again, without the
 *  layers. */
class MappedCheckpoint extends Entries {
  #isChecked = false;

  /** Checks, once, that tensors that the map leaves out as copies of others are equal to them. */
  checkTied() {
    if (!this.#isChecked) this.m.checked((err) => this.m.x.tessera_tied(this.handle, err));
    this.#isChecked = true;
  }

  diff(other, options = {}) {
    const { map, inverse, dequantize, allowExpansion, ...comparing } = OPTIONS.diff;
    return compared(this, otherOf(this.m, "diff", "other", other), optionsOf("diff", options, comparing));
  }
}

function otherOf(instance, call, name, other) {
  if (!(other instanceof Checkpoint)) throw new TypeError(`${call}: ${name} must be a Checkpoint`);
  if (other.m !== instance) throw new TypeError(`${call}: ${name} is a Checkpoint of another Tessera`);
  return other;
}

/** Passes the options to the module as a tessera_optim_options. */
function makeOptimizer(m, handle, what, given) {
  const texts = ["modules", "flatParams", "at", "maxMem"].map((name) => (typeof given[name] === "number" ? String(given[name]) : given[name]));
  const present = texts.filter((text) => text !== undefined).map(documentText);
  return m.withTexts([what, ...present], ([action, , ...placed]) => {
    const options = new DataView(new ArrayBuffer(56));
    const flags = (given.sharded ? OPTIM.sharded : 0) | (given.worldSize !== undefined ? OPTIM.hasWorldSize : 0) | (given.rank !== undefined ? OPTIM.hasRank : 0) | (given.allowExpansion ? OPTIM.allowExpansion : 0);
    options.setUint32(0, action, true);
    options.setUint32(4, flags, true);
    texts.forEach((text, i) => {
      const [pointer, size] = text === undefined ? [0, 0] : placed.splice(0, 2);
      options.setUint32(8 + 8 * i, pointer, true);
      options.setUint32(12 + 8 * i, size, true);
    });
    options.setBigUint64(40, BigInt(given.worldSize ?? 0), true);
    options.setBigUint64(48, BigInt(given.rank ?? 0), true);
    return m.withBytes(options, (pointer) => m.checked((err) => m.x.tessera_optimizer(handle, pointer, err)));
  });
}
