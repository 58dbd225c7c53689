/** Takes pictures of every view, for a person to look at. Usage: node tests/web/screenshots.mjs DIRECTORY [--sample NAME] [--views contents,…]
 *  [--widths 1440,1024,390] [--schemes light,dark] */
import fs from "node:fs";
import path from "node:path";
import { launch, pick, samples, serve } from "./browser.mjs";
import { goTo } from "./views.mjs";

const option = (name, otherwise) => process.argv[process.argv.indexOf(name) + 1 || process.argv.length] ?? otherwise;
const [, , directory = "screenshots"] = process.argv, sample = option("--sample", "dcp_tp_fsdp2");
const widths = option("--widths", "1440,1024,390").split(",").map(Number), schemes = option("--schemes", "light,dark").split(",");
const VIEWS = { start: [], contents: [], entry: [], problems: ["Problems"], files: ["Files"], optimizer: ["Optimizer"], names: ["Names"], compare: ["Compare"], convert: ["Convert"], reshard: ["Reshard"], load: ["Would it load?"], share: ["Share"] };
const views = option("--views", Object.keys(VIEWS).join()).split(",");

const server = await serve(), browser = await launch({ viewport: { width: 1440, height: 900 } });
fs.mkdirSync(directory, { recursive: true });
try {
  for (const scheme of schemes) for (const width of widths) {
    const page = await browser.context.newPage();
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: width < 640 ? 844 : 900 });
    await page.goto(server.url);
    await page.locator(".samples button").first().waitFor();
    const take = async (name) => {
      await page.waitForTimeout(400);
      if (views.includes(name)) await page.screenshot({ path: path.join(directory, `${name}_${width}_${scheme}.png`) });
    };
    await take("start");
    await pick(page, fs.existsSync(sample) ? sample : path.join(samples, sample));
    await page.locator(".window .row .text").first().waitFor();
    await take("contents");
    for (const [name, [label]] of Object.entries(VIEWS)) {
      if (!label || !views.includes(name)) continue;
      await goTo(page, label === "Problems" ? /^Problems/ : label);
      await take(name);
    }
    if (views.includes("entry")) {
      await goTo(page, "Contents");
      await page.getByLabel("Filter").fill(option("--entry", "kind:tensor"));
      await page.waitForTimeout(400);
      await page.locator(".window .row:not(.group)").first().click();
      await page.locator("aside .map, aside pre").first().waitFor();
      await take("entry");
    }
    await page.close();
  }
} finally {
  await browser.close();
  server.stop();
}
