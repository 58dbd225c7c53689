/** The viewer in Chromium. Each family gets a browser of its own, which remembers nothing of the others, a page in it, the address that
 *  serves the page, and the list of the page's errors.
 *  Usage: run.mjs [--slow N] [--late MS] [--seed N] [--update] [--jobs N] [WORD…]   --slow: make the page's processor N times slower. --late:
 *  make what workers, files, scripts and servers answer arrive up to MS milliseconds late, by times that the seed decides. --update: write the
 *  goldens of the views' structure again. --jobs: families at a time. WORD: run only the families whose names contain a word. */
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { report, runFamilies } from "../support/harness.mjs";
import { launch, serve } from "./browser.mjs";
import { makeLate } from "./late.mjs";

const { values: { slow, late, seed, jobs }, positionals: words } = parseArgs({ options: { slow: { type: "string" }, late: { type: "string" }, seed: { type: "string", default: "1" }, update: { type: "boolean" }, jobs: { type: "string", default: "2" } }, allowPositionals: true });
await runFamilies(fileURLToPath(new URL(".", import.meta.url)), words, Number(jobs), async () => {
  const server = await serve();
  return [async (family) => {
    const { context, close } = await launch({ viewport: { width: 1280, height: 800 }, acceptDownloads: true });
    try {
      if (late) await makeLate(context, Number(late), Number(seed));
      const page = await context.newPage(), broken = [];
      if (slow) await (await context.newCDPSession(page)).send("Emulation.setCPUThrottlingRate", { rate: Number(slow) });
      page.on("pageerror", (e) => broken.push(e.message));
      await family({ page, url: server.url, context, broken });
    } finally {
      await close();
    }
  }, () => server.stop()];
});
report();
