/** Writes a checkpoint in another form: the preview, the job and its result. Each checkpoint has one for Convert, one for Reshard and one
 *  for its optimizer. */
import type { Model } from "./model";
import type { Chosen } from "./place";
import type { Trouble, Writing, WritingPreview, Written } from "./protocol";
import { troubleOf } from "./trouble";

export const DECIDING = "Deciding what to write";

export class Saving {
  preview: WritingPreview | undefined;
  /** What the preview, or its error, is about. */
  previewed = "";
  previewTrouble: Trouble | undefined;
  /** An error of the place, or of the job. */
  trouble: Trouble | undefined;
  written: (Written & { readonly title: string }) | undefined;
  /** The name that was typed. */
  name: string | undefined;
  /** The form that was chosen for Reshard. */
  to = "";
  /** What was shown when it was last written. */
  saved = "";
  /** What the form left out then, as a sentence. */
  left = "";
  isCancelled = false;
  isRunning = false;
  #asked = 0;
  #isSaving = false;

  constructor(private readonly model: Model, private readonly title: string) {}

  /** Whether it is known what this would write, or why it cannot be written. */
  isAnswered(writing: Writing): boolean { return this.previewed === JSON.stringify(writing); }

  rename(name: string): void {
    this.name = name;
    this.model.changed();
  }

  /** Asks what would be written. The answer to an earlier question is dropped. */
  async ask(writing: Writing): Promise<void> {
    const asked = ++this.#asked, { model } = this;
    let trouble: Trouble | undefined;
    const preview = await model.run(DECIDING, undefined, () => model.client.call("previewWriting", { writing }), (t) => { trouble = t; });
    if ((preview || trouble) && this.#asked === asked) [this.preview, this.previewTrouble, this.previewed] = [preview, trouble, JSON.stringify(writing)];
    model.changed();
  }

  /** Writes into the place that `choose` returns; it returns undefined if the person chose none. */
  async save(writing: Writing, choose: () => Promise<Chosen | undefined>): Promise<void> {
    if (this.#isSaving) return;
    const { model } = this, { opening } = model;
    this.#isSaving = true;
    this.trouble = this.written = undefined;
    this.isCancelled = false;
    try {
      const chosen = await choose().catch((e: unknown) => { this.trouble = troubleOf(e); });
      if (chosen && opening && model.opening === opening) await this.#write(writing, chosen);
      else if (chosen) await chosen.discard();
    } finally {
      this.#isSaving = false;
    }
    model.changed();
  }

  async #write(writing: Writing, chosen: Chosen): Promise<void> {
    const { model } = this, { opening } = model;
    if (!opening) return;
    let written: Written | undefined;
    this.isRunning = true;
    addEventListener("beforeunload", warn);
    try {
      await model.runAside(this.title, { a: opening }, undefined, async (client, control) => {
        const job = client.start("write", { writing, place: chosen.place }, control.tell);
        control.cancel = job.cancel;
        written = await job.result;
      }, (trouble) => { this.trouble = trouble; });
      if (!written) return await this.#discard(chosen);
      this.written = { ...written, title: chosen.title };
      chosen.deliver?.(written);
    } finally {
      this.isRunning = false;
      removeEventListener("beforeunload", warn);
    }
  }

  async #discard(chosen: Chosen): Promise<void> {
    this.isCancelled = this.trouble === undefined;
    await chosen.discard().catch((e: unknown) => { this.trouble ??= { message: `what was begun in ${chosen.title} could not be removed: ${troubleOf(e).message}`, status: "page" }; });
  }
}

/** Closing the page would stop the writing. */
const warn = (e: BeforeUnloadEvent): void => e.preventDefault();
