/** A browser whose settings let sites store nothing, and one whose storage is full: the page works, offers nothing that it cannot keep, and
 *  says why it cannot prepare a download. */
import { launch } from "./browser.mjs";
import { takePickers } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { goTo, openSample } from "./views.mjs";

const NO_DATA = { profile: { default_content_setting_values: { cookies: 2 } } };
const remembers = (page) => page.getByRole("checkbox", { name: /^Also remember what is dropped/ });

async function testBlocked(page, url, broken) {
  await test("nothing is offered that a browser without storage cannot keep", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await page.waitForLoadState("networkidle"); // the scripts that are fetched on demand are there, too
    const refused = await page.evaluate(async () => {
      const tried = [() => localStorage, () => sessionStorage, () => caches.open("x"), () => navigator.storage.getDirectory(), () => navigator.locks.request("x", () => 0)];
      return Promise.all(tried.map((use) => Promise.resolve().then(use).then(() => "allowed", (e) => e.name)));
    });
    check(refused.every((name) => name === "SecurityError"), `the browser stores: ${refused}`);
    check(await remembers(page).count() === 0 && await page.locator(".recents").count() === 0, "the page offers to remember");
  });
  await test("a checkpoint is opened, and a theme and a width are chosen, where nothing can be stored", async () => {
    await openSample(page, "dcp_fsdp2");
    await page.getByRole("separator", { name: "Width of the entry" }).press("ArrowLeft");
    await page.locator(".divider[aria-valuenow='40']").waitFor();
    await page.getByRole("button", { name: "Dark colours" }).click();
    await page.locator("html[data-theme=dark]").waitFor();
    await goTo(page, "Convert…"); // without a divider
    await page.locator(".divider").waitFor({ state: "detached" });
    await goTo(page, "Contents");
    await page.locator(".divider[aria-valuenow='40']").waitFor();
    await openSample(page, "dcp_hsdp");
    await page.getByRole("button", { name: "Light colours" }).waitFor();
    await page.reload();
    await page.locator(".samples button").first().waitFor();
    check(await page.locator(".trouble").count() === 0, "a reload is an error");
  });
  await test("a download that needs storage says that the browser's settings refuse it, and what to do", async () => {
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Convert…");
    await page.locator("section[aria-label=Save] table").waitFor();
    await takePickers(page);
    await page.getByRole("button", { name: "Save…", exact: true }).click();
    await page.locator("section[aria-label=Save] .trouble", { hasText: "allow this site to save data, or use the command below" }).waitFor();
  });
  await test("no refused storage breaks the page", () => check(broken.length === 0, broken.join("; ")));
}

export async function testStorage({ page, url, broken }) {
  const blocked = await launch({ viewport: { width: 1280, height: 800 } }, NO_DATA);
  try {
    const strict = await blocked.context.newPage(), errors = [];
    strict.on("pageerror", (e) => errors.push(e.message));
    await testBlocked(strict, url, errors);
  } finally {
    await blocked.close();
  }
  await test("a choice that a full storage cannot keep is not shown as made", async () => {
    await page.goto(url);
    await remembers(page).waitFor();
    await page.evaluate(() => { Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); }; });
    await remembers(page).click();
    check(!await remembers(page).isChecked() && broken.length === 0, `it is shown; ${broken}`);
  });
}
