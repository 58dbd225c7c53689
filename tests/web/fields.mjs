/** The fields of forms: what is typed stays as it is, and what is wrong is said where it was chosen. */
import path from "node:path";
import { pick, samples } from "./browser.mjs";
import { check, test } from "./harness.mjs";
import { goTo } from "./views.mjs";

async function open(page, target, view) {
  await page.getByRole("button", { name: "Tessera", exact: true }).click();
  await pick(page, target);
  await page.locator(".window .row .text").first().waitFor();
  await goTo(page, view);
}

async function testTyping(page) {
  await test("the size of a mesh dim can be typed over", async () => {
    await open(page, path.join(samples, "dcp_fsdp2"), "Reshard…");
    const size = page.getByLabel("Size of mesh dim 1");
    await size.click();
    for (const key of ["End", "Backspace", "5"]) await page.keyboard.press(key);
    check(await size.inputValue() === "5", `${await size.inputValue()} instead of 5`);
    await page.locator("[aria-label=Ranks] tbody tr:nth-child(5)").waitFor();
    await page.keyboard.press("Backspace");
    await page.keyboard.press("Tab");
    check(await size.inputValue() === "5", `what is not a size became ${await size.inputValue()}`);
  });
}

export async function testFields({ page, url, broken }) {
  await page.goto(url);
  await page.locator(".samples button").first().waitFor();
  await testTyping(page);
  await test("no field breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
