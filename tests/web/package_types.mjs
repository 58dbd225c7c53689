/** Programs in TypeScript that use everything that the npm package has: every option of every call, every member of every class, every type
 *  of its declarations. What exists is taken from the package itself, so something new is missing here until it is added. */
import fs from "node:fs";
import path from "node:path";
import { OPTIONS } from "../../wasm/commands.js";
import { Checkpoint, Diff, Outline, Tally, Tessera, TesseraError, Twins } from "../../wasm/tessera.js";
import { root } from "./browser.mjs";
import { check } from "../support/harness.mjs";

const DECLARATIONS = ["tessera.d.ts", "commands.d.ts", "documents.d.ts"].map((name) => fs.readFileSync(path.join(root, "wasm", name), "utf8")).join("\n");
/** Members of the classes that only the package itself uses. */
const INTERNAL = ["constructor", "m", "handle", "documentOf", "checkTied", "stepOnce"];
const CLASSES = { Checkpoint, Diff, Outline, Tally, Tessera, TesseraError, Twins };

const VALUES = {
  flag: ["true", "false"], text: ['"x"'], count: ["3"], real: ["0.5"], document: ['"{}"', '{ schema: "" }'], texts: ['["x", "y"]', "[] as const"], size: ['"2GiB"', "4096"],
  function: ["({ done, total }) => { const sum: number = done + total; void sum; }"], signal: ["new AbortController().signal"],
};
/** Options whose values are words, or of which the table of kinds does not state the type. */
const OTHERS = {
  to: ['"dcp"', '"safetensors"', '"torch"', '"megatron-dist"'], quantize: ['"fp8-block"'], hash: ['"sha256"', '"xxh3"'], objects: ['"keep"', '"drop"', '"sidecar"', '"refuse"'],
  against: ["checkpoint", '["x"]', '"{}"', '{ schema: "" }'], lora: ["checkpoint"],
};
const isNeeded = (call, option) => option === "to" && call === "convert";

const MEMBERS = `
const isPrepared: boolean = tessera.isPrepared, counts: number = tessera.bytesRead + tessera.memoryBytes + tessera.openCount;
tessera.onRead = (bytes: number, file: string) => { void [bytes, file]; };
tessera.onRead = undefined;
void [tessera.prepare(), tessera.prepare(new Uint8Array(8))];
const maps: string = tessera.mapList().map((name: string) => tessera.mapShow(name)).join() + tessera.ruleHelp("x");
const report: string = tessera.report(checkpoint.validate(), { format: "sarif", path: "x" });
const whole: FqnDocument = tessera.canonicalize("{}", ["a"] as const);
const more: Promise<Tessera>[] = ["x", new URL("https://localhost/"), new Response(), new Uint8Array(8), new WebAssembly.Module(new Uint8Array(8))].map((from) => Tessera.load(from));
const texts: string[] = [checkpoint.document("inspect"), checkpoint.document("layout", { path: "x" }), checkpoint.document("overview"), checkpoint.document("optimizer"), checkpoint.document("sarif"),
  checkpoint.document("findings", { format: "junit" }), checkpoint.document("findings-deep", { path: "x" }), checkpoint.document("entry", { entry: 0 }), checkpoint.document("preview", { entry: 0 }),
  checkpoint.document("plan", { mesh: "dp=2", path: "x" })];
const part: Uint8Array = checkpoint.checkPart(0, 2), later: Promise<Uint8Array> = checkpoint.checkPartAsync(1, 2);
checkpoint.checkJoin(part, 1);
checkpoint.check();
const at: number | undefined = checkpoint.find("x"), warnings: readonly string[] = checkpoint.warnings;
const values: TensorValues = checkpoint.read("x", "0:2"), numbers: number = values.data.length + values.shape.length + values.dtype.length;
const changed: FindingsDocument = checkpoint.verify({ schema: "" }), made: ManifestDocument = checkpoint.manifest(), shown: LayoutDocument = checkpoint.layout(), listed: InspectDocument = checkpoint.inspect();
for (const e of listed.entries) { const shape: readonly number[] = e.kind === "tensor" && !e.per_rank ? e.shape : e.shape ?? []; void [shape, e.dtype, e.value, e.hash?.digest]; }
const planned: PlanDocument = checkpoint.plan({ target: "{}" });
const actions: readonly OptimizerAction[] = ["flatten", "unflatten", "to-fqn", "to-id", "unshard", "shard"], forms: Checkpoint[] = actions.map((what) => checkpoint.optimizer(what));
const mapped: MappedCheckpoint = checkpoint.mapped({ map: "torchtitan-llama3", inverse: true });
const same: boolean = mapped.diff(checkpoint, { rtol: 0.1 }).result().same, kept: FqnDocument = mapped.canonicalize({ prefix: "x" });
void [mapped.document("entry", { entry: 0 }), mapped.find("x"), mapped.read("x", "0"), mapped.outline(), mapped.tally(0)];
mapped.close();
const outline: Outline = checkpoint.outline({ objectsOnly: false }), visible: number = outline.count + outline.filter("x") + outline.act(0, "open") + (outline.reveal(0) ?? 0);
for (const row of outline.rows(0, visible)) { const found: EntryRow | GroupRow = row, shape: readonly number[] = row.entry === undefined ? [] : row.shape; void [found, shape]; }
outline.mark(0, "error");
outline.close();
const tally: Tally = checkpoint.tally(0), twins: Twins = checkpoint.twins(), diff: Diff = checkpoint.diff(checkpoint);
while (tally.step(1 << 20) || twins.step() || diff.step()) void [tally.document(), twins.document()];
diff.part(0, 2);
diff.take(1, 2, diff.found(1, 2));
const steps: Promise<boolean> = diff.stepAsync(), compared: DiffDocument = diff.result(), named: string = diff.document("a", "b", { format: "github" });
tally.close();
twins.close();
diff.close();
const written: Promise<ConversionResult>[] = [checkpoint.convert({ to: "torch" }, sink), checkpoint.reshard({ mesh: "dp=2", placements: "shard(0)" }, sinkOf("x", { overwrite: true }))];
const error: TesseraError = new TesseraError("x", "malformed", 3), position: number | undefined = error.position, status: string = error.status;
try { checkpoint.check(); } catch (e) { if (e instanceof TesseraError) { const why: string = e.status; void why; } }
checkpoint.close();
source.close();
void [isPrepared, counts, maps, report, whole, more, texts, later, at, warnings, numbers, changed, made, shown, listed, planned, forms, same, kept, steps, compared, named, written, position, status];
`;

const upper = (name) => name[0].toUpperCase() + name.slice(1);
const typesOf = (text) => [...text.matchAll(/^export (?:interface|type|class) (\w+)/gm)].map(([, name]) => name);
const valuesOf = (call, option, kind) => OTHERS[option] ?? VALUES[kind] ?? (() => { throw new Error(`option ${option} of ${call} has the kind ${kind}, of which this test has no values`); })();
const objectOf = (call, valueOf) => `{ ${Object.entries(OPTIONS[call]).map(([option, kind]) => `${option}: ${valueOf(option, kind)}`).join(", ")} }`;

function opening(types) {
  return `import { Checkpoint, Diff, Outline, Tally, Tessera, TesseraError, Twins } from "tessera-checkpoint";
import type { ${types.filter((name) => !(name in CLASSES)).join(", ")} } from "tessera-checkpoint";
import { filesOf, load, sinkOf } from "tessera-checkpoint/node";

const tessera: Tessera = await load(), source = filesOf("x"), file: SourceFile = {
  name: "a", size: 1, modified: "1.000000000", remote: true, read: (offset: number, into: Uint8Array): void => { into.fill(offset); },
  fetch: async (offset: number, size: number) => { void [offset, size]; }, prefetch: async (ranges) => { for (const { offset, size } of ranges) void [offset, size]; } };
const sink: Sink = { create(name: string, size: number) { void [name, size]; }, async write(name, offset, bytes: Uint8Array) { void [name, offset, bytes]; }, finish() {}, done() {}, async abort(error: unknown) { void error; } };
const checkpoint: Checkpoint = tessera.open([file, ...source.files], source.options);
`;
}

/** A program that is right: with all values of each option, and with options that are undefined. */
export function everything() {
  const types = typesOf(DECLARATIONS);
  const used = `type Used = [${types.join(", ")}];\nexport type { Used };\n`;
  const calls = Object.entries(OPTIONS).flatMap(([call, options]) => {
    const most = Math.max(...Object.entries(options).map(([option, kind]) => valuesOf(call, option, kind).length)), type = `${upper(call)}Options`;
    const pick = (n) => objectOf(call, (option, kind) => valuesOf(call, option, kind)[n % valuesOf(call, option, kind).length]);
    return [...Array(most).keys()].map((n) => `const ${call}${n}: Required<${type}> = ${pick(n)};`)
      .concat(`const ${call}None: ${type} = ${objectOf(call, (option) => (isNeeded(call, option) ? '"dcp"' : "undefined"))};`, `void [${[...Array(most).keys()].map((n) => call + n).join(", ")}, ${call}None];`);
  });
  const given = { open: "tessera.open([file], open0)", canonicalize: "checkpoint.canonicalize(canonicalize0)", diff: "checkpoint.diff(checkpoint, diff0)", optimizer: 'checkpoint.optimizer("shard", optimizer0)',
    read: 'checkpoint.read("x", undefined, read0)', verify: 'checkpoint.verify("{}", verify0)', convert: "checkpoint.convert(convert0, sink)", reshard: "checkpoint.reshard(reshard0, sink)" };
  const uses = Object.keys(OPTIONS).map((call) => `void ${given[call] ?? `checkpoint.${call}(${call}0)`};`);
  return [opening(types), used, ...calls, ...uses, MEMBERS].join("\n");
}

const MISUSES = ["new Tessera();", 'checkpoint.optimizer("flaten");', 'checkpoint.optimizer("shard", { flat_params: "" });', 'checkpoint.document("entry");', 'checkpoint.shape;', "checkpoint.mapped({});"];

/** A program in which each line of `wrong` is an error, the first being line `first`: for each option a value of another type, for each call an
 *  option that does not exist, and members that are used in other ways than they may be. */
export function mistakes() {
  const wrong = Object.entries(OPTIONS).flatMap(([call, options]) => {
    const needed = call === "convert" ? 'to: "dcp", ' : "";
    return [`const ${call}Unknown: ${upper(call)}Options = { ${needed}nothing: 1 };`,
      ...Object.keys(options).map((option) => `const ${call}${upper(option)}: ${upper(call)}Options = { ${option === "to" ? "" : needed}${option}: Symbol() };`)];
  });
  const before = `import { type Checkpoint, Tessera, type ${Object.keys(OPTIONS).map((call) => `${upper(call)}Options`).join(", type ")} } from "tessera-checkpoint";\ndeclare const checkpoint: Checkpoint;`;
  return { text: [before, ...MISUSES, ...wrong].join("\n"), first: 3, wrong: [...MISUSES, ...wrong] };
}

/** Each class has the members that its declaration states, and no others. */
export function expectMembers() {
  for (const [name, made] of Object.entries(CLASSES)) {
    const body = new RegExp(`^export class ${name} [^{]*\\{\\n([^]*?)^\\}`, "m").exec(DECLARATIONS)?.[1] ?? "";
    const declared = new Set([...body.matchAll(/^ {2}(?:static |readonly |set )*(\w+)[(:]/gm)].map(([, member]) => member).filter((member) => !["private", "constructor"].includes(member)));
    const real = new Set(Object.getOwnPropertyNames(made).filter((member) => typeof made[member] === "function" && member !== "prototype"));
    for (let at = made.prototype; at !== Object.prototype && at !== Error.prototype; at = Object.getPrototypeOf(at)) Object.getOwnPropertyNames(at).forEach((member) => real.add(member));
    if (made === TesseraError) Object.keys(new TesseraError("", "", 0)).filter((member) => member !== "name").forEach((member) => real.add(member));
    INTERNAL.forEach((member) => real.delete(member));
    check(declared.size > 1, `the declaration of ${name} was not found`);
    const apart = [...declared].filter((member) => !real.has(member)).concat([...real].filter((member) => !declared.has(member)));
    check(apart.length === 0, `${name} and its declaration differ in ${apart.join(", ")}`);
    const unused = [...declared].filter((member) => !new RegExp(`\\.${member}\\b`).test(everything()));
    check(unused.length === 0, `the program does not use ${unused.join(", ")} of ${name}`);
  }
}
