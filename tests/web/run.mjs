/** Each file is a family of tests over one served page. */
import { launch, serve } from "./browser.mjs";
import { report } from "./harness.mjs";
import { testPure } from "./pure.mjs";
import { testSarif } from "./sarif.mjs";
import { testSamples } from "./samples.mjs";
import { testViews } from "./views.mjs";
import { testHabits } from "./habits.mjs";
import { testScale } from "./scale.mjs";

const server = await serve();
const browser = await launch({ viewport: { width: 1280, height: 800 }, acceptDownloads: true });
try {
  await testPure();
  await testSarif();
  for (const family of [testViews, testHabits, testSamples, testScale]) {
    const page = await browser.context.newPage();
    const broken = [];
    page.on("pageerror", (e) => broken.push(e.message));
    await family({ page, url: server.url, context: browser.context, broken });
    await page.close();
  }
} finally {
  await browser.close();
  server.stop();
}
report();
