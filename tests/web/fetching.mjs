/** The module's second file: if the page cannot fetch it, that is said where it was needed, and it is fetched again when it is
 *  needed again. */
import path from "node:path";
import { pick, samples, serve } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";
import { goTo } from "./views.mjs";

const SECOND = "**/assets/tessera-writers-*.wasm", LACKS = { hasText: "the rest of the page could not be fetched" };
const map = (page) => page.locator("[role=group][aria-label=Map]");
const again = (place) => place.getByRole("button", { name: "Try again" }).click();

/** Opens a sample in a page that cannot fetch the second file. */
async function openWithout(page, url) {
  await page.route(SECOND, (route) => route.abort());
  await page.goto(url);
  await page.locator(".samples button").first().waitFor();
  await pick(page, path.join(samples, "dcp_fsdp2"));
  await page.locator(".window .row .text").first().waitFor();
}

/** Waits for these messages. There must be no others. */
async function lacking(page, messages) {
  for (const message of messages) await message.filter(LACKS).waitFor();
  check(await page.locator(".trouble").count() === messages.length, (await page.locator(".trouble").allTextContents()).join("\n"));
}

export async function testFetching({ page, broken }) {
  const server = await serve(); // at this origin, nothing of the page is kept
  const view = (name) => page.locator(`section[aria-label='${name}']`), save = view("Save");
  try {
    const own = (name) => view(name).locator(":scope > .trouble, .outcome > .current .trouble"); // not that of the map
    const VIEWS = [["Convert…", save.locator(".trouble"), save.locator("table")], ["Reshard…", own("Reshard"), save.locator("table")], ["Names", own("Names"), page.getByText("names are canonical already")]];
    for (const [name, message, done] of VIEWS) {
      await test(`${name} says that the second file is missing, and fetches it again`, async () => {
        await openWithout(page, server.url);
        await goTo(page, name);
        await lacking(page, [message, map(page).locator(".trouble")]);
        await page.unroute(SECOND);
        await again(message);
        await done.waitFor();
        await again(map(page));
        await map(page).locator("option", { hasText: "llama" }).first().waitFor({ state: "attached" });
        check(await page.locator(".trouble").count() === 0, "a message stays");
      });
    }
    await test("a toggle of a comparison says that the second file is missing, and fetches it again", async () => {
      await openWithout(page, server.url);
      await goTo(page, "Compare");
      await pick(page, path.join(samples, "dcp_hsdp"));
      await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
      const toggle = page.getByRole("button", { name: "Canonical names" });
      await toggle.click();
      await lacking(page, [view("Comparison").locator(".trouble")]);
      await page.unroute(SECOND);
      await toggle.click();
      await toggle.click();
      await page.locator(".window .row").first().waitFor();
      check(await page.locator(".trouble").count() === 0 && await toggle.getAttribute("aria-pressed") === "true", "a message stays");
    });
  } finally {
    await page.unroute(SECOND);
    server.stop();
  }
  return test("no missing file breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
