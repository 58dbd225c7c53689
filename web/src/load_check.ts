/** Checks whether the open checkpoint would load into something else: a module tree, a layout, an index, names, or another
 *  checkpoint. */
import { onlyOne, type Prepare } from "./collect";
import type { Model } from "./model";
import type { Expectation, LoadFindings, Trouble } from "./protocol";

const MOST_DOCUMENT = 256 << 20;
export const CHECKING = "Checking whether it would load";

export class LoadCheck {
  title: string | undefined;
  prefix = "";
  /** Ignores unexpected entries. */
  allowsExtra = false;
  result: LoadFindings | undefined;
  trouble: Trouble | undefined;
  /** Whether the result, or the error, is still that of an earlier question. */
  isChecking = false;
  #expected: Expectation | undefined;
  #asked = 0;
  /** Ends the search for what would load it. */
  #ending = new AbortController();

  constructor(private readonly model: Model) {}

  #begin(): number {
    this.#ending.abort();
    this.#ending = new AbortController();
    this.title = this.#expected = this.result = this.trouble = undefined;
    return ++this.#asked;
  }

  reset(): void {
    this.#begin();
    this.prefix = "";
    this.allowsExtra = this.isChecking = false;
  }

  /** Checks against what was dropped or picked: one JSON document, or the files of a checkpoint. */
  async against(prepare: Prepare): Promise<void> {
    const { model } = this, asked = this.#begin(), { signal } = this.#ending;
    const expected = await model.run("Opening what would load it", undefined, async (tell): Promise<[string, Expectation]> => {
      const opening = onlyOne(await prepare(signal, tell));
      const [only] = opening.files;
      const isDocument = only && opening.files.length === 1 && "file" in only && only.name.endsWith(".json") && only.size <= MOST_DOCUMENT;
      return [opening.title, isDocument ? { text: await only.file.text() } : { opening }];
    }, (trouble) => { if (this.#asked === asked) this.trouble = trouble; });
    if (!expected || this.#asked !== asked) return model.changed();
    [this.title, this.#expected] = expected;
    await this.#check();
  }

  async set(change: { readonly prefix?: string; readonly allowsExtra?: boolean }): Promise<void> {
    Object.assign(this, change);
    await this.#check();
  }

  async #check(): Promise<void> {
    const { model, prefix, allowsExtra } = this, expected = this.#expected, asked = ++this.#asked;
    if (!expected) return;
    this.isChecking = true;
    model.changed();
    let trouble: Trouble | undefined;
    const result = await model.run(CHECKING, undefined, () => model.client.call("checkLoad", { expected, prefix, allow: allowsExtra ? "extra" : "" }), (t) => { trouble = t; });
    if (this.#asked === asked) [this.result, this.trouble, this.isChecking] = [result, trouble, false];
    model.changed();
  }
}
