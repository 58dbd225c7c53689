/** The page without a network, and with a new version of it: one complete version is stored, the newest one seen. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { root, serve } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";

const kept = (page) => page.evaluate(async () => (await (await caches.open("tessera-page")).keys()).map((r) => new URL(r.url).pathname).sort());
const isKept = (page) => page.waitForFunction(() => document.documentElement.dataset.kept === "yes" && navigator.serviceWorker.controller);

/** Publishes the same page, with another name for its script. */
function publishNext(directory) {
  const assets = path.join(directory, "assets"), old = fs.readdirSync(assets).find((n) => /^index-.*\.js$/.test(n));
  fs.renameSync(path.join(assets, old), path.join(assets, "index-next.js"));
  for (const name of ["index.html", "remote.html", "assets.json"]) {
    const file = path.join(directory, name);
    fs.writeFileSync(file, fs.readFileSync(file, "utf8").replaceAll(old, "index-next.js"));
  }
  return old;
}

export async function testOffline({ page, context, broken }) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-dist-"));
  fs.cpSync(path.join(root, "web/dist"), directory, { recursive: true });
  const server = await serve(directory);
  try {
    await test("every file of the page is kept", async () => {
      await page.goto(server.url);
      await isKept(page);
      const names = await kept(page);
      for (const name of fs.readdirSync(path.join(directory, "assets"))) check(names.includes(`/assets/${name}`), `${name} is not kept`);
      check(names.includes("/") && names.includes("/samples.json"), names.join(" "));
    });
    await test("a new version replaces the old one, also without a network", async () => {
      const old = publishNext(directory);
      await page.reload();
      await isKept(page);
      const names = await kept(page);
      check(names.includes("/assets/index-next.js") && !names.includes(`/assets/${old}`), names.join(" "));
      await context.setOffline(true);
      try {
        await page.reload();
        await page.locator(".start").waitFor();
        check(await page.locator('script[src$="index-next.js"]').count() === 1, "the old page came back");
      } finally {
        await context.setOffline(false);
      }
    });
    await test("a sample without a network says what can be opened", async () => {
      await context.setOffline(true);
      try {
        await page.locator(".samples button").first().click();
        await page.locator(".trouble", { hasText: "Files on this computer can be opened" }).waitFor();
      } finally {
        await context.setOffline(false);
      }
    });
    await test("offline does not break the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    server.stop();
    fs.rmSync(directory, { recursive: true });
  }
}
