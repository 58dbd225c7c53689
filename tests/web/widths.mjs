/** What has no room is not lost: it wraps, or an edge shows that there is more beyond it. */
import path from "node:path";
import { ENTRIES, pick, rowsIn, samples } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";
import { goTo, openSample } from "./views.mjs";

const PHONE = { width: 390, height: 844 }, SMALL = { width: 1024, height: 800 }, WIDE = { width: 1440, height: 900 };

/** The number of lines that the children of an element fill. */
const linesOf = (locator) => locator.evaluate((box) => new Set([...box.children].filter((e) => e.getBoundingClientRect().height > 0).map((e) => { const r = e.getBoundingClientRect(); return Math.round((r.top + r.bottom) / 2 / 8); })).size);
const beyond = (locator) => locator.evaluate((box) => box.scrollWidth - box.clientWidth);

async function testPhone(page) {
  await page.setViewportSize(PHONE);
  await test("on a phone, tables of files have room for all of their columns", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    for (const [view, table] of [["Files", "File table"], ["Convert…", "Files that would be written"], ["Reshard…", "Ranks"]]) {
      await goTo(page, view);
      const region = page.getByRole("region", { name: table });
      await region.locator("td").first().waitFor();
      check(await beyond(region) <= 0, `${table}: ${await beyond(region)} px are beyond the edge`);
    }
  });
  await test("on a phone, names and canonical names are whole", async () => {
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(samples, "dcp_ddp"));
    await goTo(page, "Names");
    const region = page.getByRole("region", { name: "Names and canonical names" });
    await region.locator("td").first().waitFor();
    check(await beyond(region) <= 0, `${await beyond(region)} px are beyond the edge`);
    check((await region.locator("td code").evaluateAll((all) => all.map((e) => e.getClientRects().length))).every((n) => n === 1), "a name is cut in two");
  });
  await test("on a phone, what is known of the checkpoint is above the list, with the overview folded in it", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    const known = page.locator("summary", { hasText: "DCP · 4 ranks · 248 parameters · 2.9 KiB · float32, int64" }), fact = page.locator(".facts dd", { hasText: "248 · 992 B" });
    check(await known.isVisible() && !await fact.isVisible(), "it is not there, or unfolded");
    await page.locator("#tab-contents").focus();
    await page.keyboard.press("Tab");
    check(await known.evaluate((e) => e === document.activeElement), "the keyboard reaches it after the list");
    await page.keyboard.press("Enter");
    await fact.waitFor();
    await page.locator(ENTRIES).first().click();
    await page.locator("aside h2").waitFor();
    check(!await known.isVisible(), "it is above the entry, too");
    await page.getByRole("button", { name: "Close entry" }).click();
    await known.waitFor();
  });
  await test("the tabs show at an edge that there are more", async () => {
    await goTo(page, "Contents");
    const tabs = page.getByRole("tablist");
    check(await beyond(tabs) > 0, "all tabs have room");
    check((await tabs.evaluate((box) => getComputedStyle(box).backgroundImage)).split("linear-gradient").length === 5, "nothing shows it");
  });
  await test("on a phone, the tools of a comparison take one line, and its rows show the largest difference", async () => {
    await openSample(page, "torch_ranks_tp_fsdp2");
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: "dcp_tp_fsdp2" }).click();
    const tools = page.getByRole("group", { name: "Compare", exact: true });
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
    check(await linesOf(tools) === 1, `they take ${await linesOf(tools)}`);
    await page.getByRole("button", { name: /^Values/ }).click();
    const delta = page.locator(".window .row:not(.group) .delta", { hasText: /\d/ }).first();
    await delta.waitFor();
    const [row, cell] = await Promise.all([delta.locator("xpath=.."), delta].map((l) => l.boundingBox()));
    check(cell.y + cell.height <= row.y + row.height + 1 && cell.width > 20, `it is at ${JSON.stringify(cell)} of ${JSON.stringify(row)}`);
    const measure = page.locator(".window .row:not(.group) .measure", { hasText: /\d/ }).first(), label = (number) => number.evaluate((e) => getComputedStyle(e, "::before").content);
    await measure.waitFor();
    check(await label(delta) === '"max "' && await label(measure) === '"rel. "', `nothing says what the numbers are: ${await label(delta)}, ${await label(measure)}`);
    const cut = await (await rowsIn(page, ":not(.group) :is(.change, .delta, .measure)")).evaluateAll((cells) => cells.filter((c) => c.scrollWidth > c.clientWidth).map((c) => c.textContent));
    check(cut.length === 0, `cut off: ${cut.join(", ")}`);
  });
}

async function testSmall(page) {
  const cut = (selector) => page.locator(`.window ${selector}`).evaluateAll((all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent));
  await page.setViewportSize(SMALL);
  await test("next to an entry, the tools of a comparison take two lines, or one where there is room", async () => {
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values not compared yet" }).waitFor();
    await page.locator(ENTRIES, { hasText: "only in B" }).first().click();
    await page.locator("aside header").waitFor();
    const tools = page.getByRole("group", { name: "Compare", exact: true });
    check(await linesOf(tools) <= 2, `they take ${await linesOf(tools)}`);
    await page.setViewportSize(WIDE);
    check(await linesOf(tools) === 1, `they take ${await linesOf(tools)} at ${WIDE.width} px`);
    const middles = await Promise.all([page.locator(".pair"), page.getByRole("button", { name: "Export", exact: true })].map(async (l) => { const { y, height } = await l.boundingBox(); return y + height / 2; }));
    check(Math.abs(middles[0] - middles[1]) < 4, `Export is not next to the names of both: ${middles}`);
    await page.setViewportSize(SMALL);
    await page.getByRole("button", { name: "Export", exact: true }).click();
    await page.getByRole("group", { name: "Export" }).getByRole("button", { name: "Export JSON" }).waitFor();
  });
  await test("what two sides have stands side by side, though one has more of it", async () => {
    await page.setViewportSize(WIDE);
    await openSample(page, "torch_ranks_tp_fsdp2"); // its tensors have a mesh and placements
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: "dcp_tp_fsdp2" }).click();
    await page.locator(".current[aria-busy=false] .verdict-line").waitFor();
    await page.getByLabel("Filter").fill("model.block.down.weight");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: /^1 match/ }).waitFor();
    await page.locator(ENTRIES).first().click();
    const maps = page.locator(".sides h3"), facts = page.locator(".sides dl");
    await maps.nth(1).waitFor();
    check((await facts.nth(0).locator("dt").count()) > (await facts.nth(1).locator("dt").count()), "both have the same facts");
    const tops = await maps.evaluateAll((all) => all.map((e) => e.getBoundingClientRect().top));
    check(Math.abs(tops[0] - tops[1]) < 1, `the maps begin at ${tops}`);
    await page.setViewportSize(SMALL);
  });
  await test("names have room in a comparison that shows measures", async () => {
    await page.setViewportSize(SMALL);
    await openSample(page, "torch_ranks_tp_fsdp2");
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: "dcp_tp_fsdp2" }).click();
    await page.getByRole("button", { name: /^Values/ }).click();
    await page.locator(".window .row:not(.group) .measure", { hasText: /\d/ }).first().waitFor();
    await page.locator(".window .text", { hasText: "exp_avg_sq" }).first().waitFor();
    check((await cut(".text")).length === 0, (await cut(".text")).join());
  });
  await test("the ways to open a second checkpoint are as wide as those on the start page", async () => {
    await page.setViewportSize(WIDE);
    const widthOf = async () => {
      await page.locator(".opener .samples button").first().waitFor();
      return (await page.locator(".opener").boundingBox()).width;
    };
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    const atStart = await widthOf();
    await openSample(page, "dcp_fsdp2");
    for (const view of ["Compare", "Would it load?"]) {
      await goTo(page, view);
      check(Math.abs(await widthOf() - atStart) < 1, `${await widthOf()} px in ${view}, ${atStart} px at the start`);
    }
  });
  await test("names and values of objects have room in the list of contents", async () => {
    await page.setViewportSize(WIDE);
    await openSample(page, "dcp_tp_fsdp2");
    await page.locator(".window .text", { hasText: "decoupled_weight_decay" }).waitFor();
    check((await cut(".text")).length === 0, (await cut(".text")).join());
    await page.getByRole("button", { name: "Tessera", exact: true }).click();
    await pick(page, path.join(samples, "torch_objects"));
    await page.locator(".window .value", { hasText: "4.94065645841247e-324" }).waitFor();
    check(!(await cut(".shape")).some((text) => text.length < 24), (await cut(".shape")).join());
    await openSample(page, "torch_ranks_tp_fsdp2");
    await goTo(page, "Compare");
    await page.locator(".samples button", { hasText: "dcp_tp_fsdp2" }).click();
    await page.locator(ENTRIES, { hasText: "only in B" }).first().click();
    await page.locator("aside header").waitFor();
    await page.setViewportSize(SMALL);
  });
  await test("what is known of the checkpoint is one line of the header", async () => {
    const { height } = await page.locator(".about").boundingBox();
    check(height < 28, `it is ${height} px high`);
    check(await beyond(page.locator(".about")) > 0 && await beyond(page.locator(".top h1")) <= 0, "the title is cut, although what is known could be cut more");
  });
  await test("the chosen row is marked as such while the list has the focus", async () => {
    await goTo(page, "Contents");
    await page.locator(ENTRIES, { hasText: "emb.weight" }).first().click();
    await page.locator(".window .row.selected").waitFor();
    await page.locator(".grid").focus();
    const [chosen, back] = await page.evaluate(() => {
      const named = document.body.appendChild(document.createElement("i")), colour = (e) => getComputedStyle(e).backgroundColor;
      named.style.background = "var(--accent-back)";
      const both = [colour(document.querySelector(".window .row.selected")), colour(named)];
      named.remove();
      return both;
    });
    check(chosen === back && chosen !== "rgba(0, 0, 0, 0)", `${chosen} is not ${back}`);
  });
  await test("what a field holds is not in the colour of a hint", async () => {
    const [text, hint] = await page.getByLabel("Slice", { exact: true }).evaluate((field) => [field, field.closest("label")].map((e) => getComputedStyle(e).color));
    check(text !== hint, `both are ${text}`);
  });
  await test("an option of a command is not cut in two", async () => {
    await page.setViewportSize(PHONE);
    await goTo(page, "Convert…");
    const options = page.locator(".command code span", { hasText: "--" });
    await options.first().waitFor();
    check((await options.evaluateAll((all) => all.map((e) => e.getClientRects().length))).every((n) => n === 1), "one is");
  });
}

export async function testWidths({ page, url, broken }) {
  await page.goto(url);
  await testPhone(page);
  await testSmall(page);
  await test("no view breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
