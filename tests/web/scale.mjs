/** A million chunks, and a million rows. samples/make_checkpoints.py --set large makes the samples. Times are printed; only
 *  wrong results fail. */
import fs from "node:fs";
import path from "node:path";
import { ENTRIES, pick, root } from "./browser.mjs";
import { check, skip, test } from "../support/harness.mjs";

const large = (name) => path.join(root, ".local/samples", name);

async function openAndTime(page, url, target) {
  await page.goto(url);
  await page.locator(".samples button").first().waitFor();
  await page.waitForLoadState("networkidle");
  await page.evaluate(() => {
    globalThis.seen = {};
    new MutationObserver(() => {
      if (document.querySelector(".job")) globalThis.seen.progress ??= performance.now();
      if (document.querySelector(".window .row .text")) globalThis.seen.rows ??= performance.now();
    }).observe(document.body, { childList: true, subtree: true });
    addEventListener("change", () => { globalThis.seen.begin = performance.now(); }, true);
  });
  await pick(page, target);
  await page.locator(".window .row .text").first().waitFor();
  return page.evaluate(() => globalThis.seen);
}

async function frames(page, body) {
  await page.evaluate(() => {
    globalThis.times = [];
    globalThis.stopFrames = false;
    let last = performance.now();
    const tick = (now) => {
      globalThis.times.push(now - last);
      last = now;
      if (!globalThis.stopFrames) requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  });
  await body();
  const times = await page.evaluate(() => { globalThis.stopFrames = true; return globalThis.times; });
  return times.sort((a, b) => a - b);
}

/** Returns the time that the page's main thread worked, in ms, which does not depend on other load of the machine. */
async function threadTime(context, page) {
  const session = await context.newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  return async () => (await session.send("Performance.getMetrics")).metrics.find((m) => m.name === "TaskDuration").value * 1000;
}

export async function testScale({ page, url, context, broken }) {
  if (!fs.existsSync(large("large_metadata"))) return skip("a million chunks", "the large samples are not there");
  await test("a million chunks open", async () => {
    const { begin, progress, rows } = await openAndTime(page, url, large("large_metadata"));
    console.log(`1,000,000 chunks: usable after ${Math.round(rows - begin)} ms (P15: 2500), first progress after ${Math.round(progress - begin)} ms (200)`);
    check((await page.locator("aside").textContent()).includes("1,000 tensors"), "the summary counts other tensors");
  });
  if (!fs.existsSync(large("large_safetensors_names"))) return skip("a million rows", "the large samples are not there");
  await test("a million rows scroll", async () => {
    await openAndTime(page, url, large("large_safetensors_names"));
    await page.locator(".grid").focus();
    await page.keyboard.press("Home");
    await page.keyboard.press("*");
    await page.waitForFunction(() => Number(document.querySelector(".grid").getAttribute("aria-rowcount")) > 900_000);
    const worked = await threadTime(context, page), before = await worked();
    const times = await frames(page, async () => {
      for (let i = 0; i < 60; i++) {
        await page.evaluate((share) => { const g = document.querySelector(".grid"); g.scrollTop = g.scrollHeight * share; }, i / 60);
        await page.waitForTimeout(16);
      }
    });
    console.log(`1,000,000 rows: ${((await worked() - before) / 60).toFixed(1)} ms of the main thread's time each step of scrolling`);
    console.log(`1,000,000 rows: p95 of a frame while scrolling ${times[Math.floor(times.length * 0.95)].toFixed(1)} ms (P15: 16.7)`);
    await page.keyboard.press("End");
    await page.waitForFunction(() => { const g = document.querySelector(".grid"), r = document.querySelector(".row.cursor"); return r?.getAttribute("aria-rowindex") === g.getAttribute("aria-rowcount") && r.querySelector(".text"); });
    const [bottom, end] = await page.evaluate(() => [document.querySelector(".row.cursor").getBoundingClientRect().bottom, document.querySelector(".grid").getBoundingClientRect().bottom]);
    check(bottom <= end + 1, `the last row ends at ${bottom}, the list at ${end}`);
    await page.getByLabel("Filter").fill("dtype:float32 >1GB -weight");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor();
  });
  if (!fs.existsSync(large("large_torch"))) return skip("cancelling", "the large samples are not there");
  await test("a check of every byte can be cancelled, and the page goes on", async () => {
    await page.goto(url);
    await pick(page, large("large_torch"));
    await page.locator(".window .row .text").first().waitFor();
    await page.getByRole("tab", { name: /^Problems/ }).click();
    await page.getByRole("button", { name: /^Check every byte/ }).click();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.locator(".job").waitFor({ state: "detached" });
    check(await page.locator(".trouble").count() === 0, "cancelling is an error");
    await page.getByRole("tab", { name: "Contents" }).click();
    await page.locator(ENTRIES).first().click();
    await page.getByRole("button", { name: /^Statistics/ }).click();
    await page.locator(".histogram").waitFor();
  });
  await test("scale does not break the page", () => check(broken.length === 0, broken.join("; ")));
  return undefined;
}
