/** Conversions in the worker: previews them, and performs them. */
import type { Checkpoint, ConversionResult, ConvertOptions, OptimizerOptions, ReshardOptions, RunOptions, Sink } from "../../wasm/tessera.js";
import type { OptimizerPreview, Place, Writing, WritingPreview, Written } from "./protocol";
import { PlaceSink } from "./sink";
import { objectText } from "./text";
import { zipOf } from "./zip";

type Tell = (done: number, total: number) => void;

async function run(checkpoint: Checkpoint, writing: Writing, control: RunOptions, sink: Sink): Promise<ConversionResult> {
  if (writing.what === "optimizer") {
    const made = checkpoint.optimizer(writing.action, writing.options);
    try {
      return await made.convert({ to: "torch", ...control }, sink);
    } finally {
      made.close();
    }
  }
  return writing.what === "convert" ? checkpoint.convert({ ...writing.options, ...control } as ConvertOptions, sink)
    : checkpoint.reshard({ ...writing.options, ...control } as ReshardOptions, sink);
}

/** Returns the files that would be written. All decisions are made and all errors reported as in the conversion itself,
 *  which is stopped after the step that creates the files, before anything is written. */
export async function previewOf(checkpoint: Checkpoint, writing: Writing): Promise<WritingPreview> {
  const files: { name: string; size: number }[] = [], stop = new AbortController(), enough = new Error("enough");
  let bytes = 0;
  const sink: Sink = { create: (name, size) => { files.push({ name, size }); }, write: () => undefined, finish: () => undefined };
  try {
    await run(checkpoint, writing, { signal: stop.signal, onProgress: ({ total }) => { bytes = total; stop.abort(enough); } }, sink);
  } catch (e) {
    if (e !== enough) throw e;
  }
  return { files, bytes };
}

/** Returns the names and values that the optimizer's state has in another form. */
export function optimizerPreviewOf(checkpoint: Checkpoint, action: (Writing & { what: "optimizer" })["action"], options: OptimizerOptions, count: number): OptimizerPreview {
  const made = checkpoint.optimizer(action, options);
  try {
    const { entries } = made.inspect();
    return {
      count: entries.length, warnings: made.warnings,
      entries: entries.slice(0, count).map((e) => e.kind === "tensor" && !e.per_rank ? { fqn: e.fqn, dtype: e.dtype, shape: e.shape } : { fqn: e.fqn, text: objectText(made.document("entry", { entry: made.find(e.fqn) ?? 0 })) ?? "" }),
    };
  } finally {
    made.close();
  }
}

/** Returns what was written into the origin's own directory as one file to download, which is a zip if there are several
 *  files. */
async function downloadOf(place: Place & { kind: "download" }, paths: readonly string[], tell: Tell): Promise<Written["download"]> {
  const files = await Promise.all(paths.map(async (name) => {
    const components = name.split("/"), last = components.pop() ?? "";
    let at = place.directory;
    for (const component of components) at = await at.getDirectoryHandle(component);
    return { name: `${place.name}/${name}`, file: await (await at.getFileHandle(last)).getFile() };
  }));
  const [only] = files;
  if (only && files.length === 1 && place.base !== undefined) return { name: place.base, blob: only.file };
  const total = files.reduce((sum, { file }) => sum + file.size, 0);
  let done = 0;
  return { name: `${place.name}.zip`, blob: await zipOf(files, (bytes) => { done += bytes; tell(done, total); }) };
}

export async function write(checkpoint: Checkpoint, writing: Writing, place: Place, signal: AbortSignal, tell: Tell): Promise<Written> {
  const sink = new PlaceSink(place);
  const result = await run(checkpoint, writing, { signal, onProgress: ({ done, total }) => tell(done, total) }, sink);
  const files = [...sink.sizes].map(([name, size]) => ({ name, size }));
  return { result, files, ...(place.kind === "download" ? { download: await downloadOf(place, files.map(({ name }) => name), tell) } : {}) };
}
