/** The page as a person uses it: one header line, one navigation, a compact tree, chunks and values as figures, the overview, the
 *  address, the palette and the keys. */
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { ENTRIES, pick, rowsIn, rowsOf, samples, view } from "./browser.mjs";
import { tessera } from "./files.mjs";
import { check, test } from "../support/harness.mjs";
import { fromMenu, goTo, open, openSample } from "./views.mjs";

const TYPES = { float32: ["F32", 4, (v) => Buffer.from(Float32Array.from(v).buffer)], int64: ["I64", 8, (v) => Buffer.from(BigInt64Array.from(v.map(BigInt)).buffer)], complex64: ["C64", 8, (v) => Buffer.from(Float32Array.from(v).buffer)] };

/** Writes a safetensors file of tensors: [dtype, shape, values] by name. */
export function made(directory, name, tensors) {
  let at = 0;
  const bodies = Object.values(tensors).map(([dtype, , values]) => TYPES[dtype][2](values));
  const header = Buffer.from(JSON.stringify(Object.fromEntries(Object.entries(tensors).map(([key, [dtype, shape]], i) => [key, { dtype: TYPES[dtype][0], shape, data_offsets: [at, (at += bodies[i].length)] }])))), size = Buffer.alloc(8), file = path.join(directory, name);
  size.writeBigUInt64LE(BigInt(header.length));
  fs.writeFileSync(file, Buffer.concat([size, header, ...bodies]));
  return file;
}

export const count = (n, of = (i) => i) => Array.from({ length: n }, (_, i) => of(i));
const weight = (n) => ["float32", [n, 4], count(n * 4)];

const names = async (page) => (await rowsIn(page, " .text")).allTextContents();
const filter = async (page, text, says) => {
  await page.getByLabel("Filter").fill(text);
  await page.locator(".filter [role=status][aria-busy=false]", { hasText: says }).waitFor({ state: "attached" });
};
/** Waits until the map of chunks has been drawn for the width that it has now. */
const drawnForWidth = (page) => page.waitForFunction(() => { const map = document.querySelector(".map"); return map && map.viewBox.baseVal.width === Math.round(map.getBoundingClientRect().width); });
const row = (page, name) => page.locator(".window .row", { has: page.locator(".text", { hasText: new RegExp(`^${name.replaceAll(".", "\\.")}$`) }) });

async function testShell(page, scratch) {
  await test("the header is one line of 44 px, however long the name is", async () => {
    for (const name of ["a.safetensors", `${"long_name_".repeat(20)}.safetensors`]) {
      await open(page, made(scratch, name, { w: weight(2) }));
      for (const width of [390, 1024, 1440]) {
        await page.setViewportSize({ width, height: 800 });
        const [height, wide] = await page.evaluate(() => [document.querySelector(".top").getBoundingClientRect().height, document.querySelector(".top").scrollWidth - innerWidth]);
        check(height === 44 && wide <= 0, `${name.length} letters at ${width} px: ${height} px high, ${wide} px too wide`);
      }
    }
  });
  await test("there is one navigation, and Convert and Reshard have the whole width", async () => {
    await page.setViewportSize({ width: 1440, height: 800 });
    await openSample(page, "dcp_tp_fsdp2");
    const tabs = await page.getByRole("tab").allTextContents();
    check(tabs.join() === "Contents,Problems,Files,Optimizer,Names,Compare,Convert,Reshard", tabs.join());
    check(await page.getByRole("navigation").count() === 0, "there is another navigation");
    await page.locator(ENTRIES).first().click();
    for (const tab of ["Convert", "Reshard"]) {
      await goTo(page, tab);
      await page.locator(".view").waitFor();
      const [view, all] = await page.evaluate(() => [document.querySelector(".view").getBoundingClientRect().width, innerWidth]);
      check(view === all, `${tab} has ${view} of ${all} px`);
    }
  });
  await test("the header says what the checkpoint is in one sentence", async () => {
    check(await page.locator(".about").textContent() === "DCP · 4 ranks · 248 parameters · 2.9 KiB · float32, int64", await page.locator(".about").textContent());
  });
  await test("the border between list and entry moves by keys and pointer, and stays", async () => {
    await goTo(page, "Contents");
    const width = () => page.locator(".detail").evaluate((e) => Math.round(e.getBoundingClientRect().width));
    const first = await width(), divider = page.getByRole("separator");
    await divider.focus();
    await page.keyboard.press("ArrowLeft");
    check(await width() > first, `${await width()} after ${first}`);
    const box = await divider.boundingBox();
    await page.mouse.move(box.x + 4, 400);
    await page.mouse.down();
    await page.mouse.move(864, 400, { steps: 3 });
    await page.mouse.up();
    check(Math.abs(await width() - 576) < 16, `${await width()} px`);
    const kept = await width();
    await page.reload();
    await openSample(page, "dcp_tp_fsdp2");
    check(await width() === kept, `${await width()} instead of ${kept}`);
    await page.evaluate(() => localStorage.removeItem("side"));
  });
  await test("what cannot be clicked does not look like a button", async () => {
    for (const tab of ["Contents", /^Problems/, "Files", "Optimizer", "Names", "Compare", "Convert", "Reshard"]) {
      await goTo(page, tab);
      await page.locator("#panel :is(.view, .filter)").first().waitFor();
      const alike = await page.evaluate(() => [...document.querySelectorAll(".top *, #panel *")].filter((e) => {
        const style = getComputedStyle(e), box = e.getBoundingClientRect();
        return box.height > 0 && box.height < 44 && style.borderTopWidth !== "0px" && style.borderLeftWidth !== "0px" && style.borderTopColor !== "rgba(0, 0, 0, 0)" && style.borderRadius !== "0px" && !e.matches("button, a, input, select, textarea, kbd");
      }).map((e) => e.outerHTML.slice(0, 120)));
      check(alike.length === 0, `${tab}: ${alike.join("\n")}`);
    }
    await goTo(page, "Contents");
  });
  await test("the menu opens by keys and closes with Escape", async () => {
    const menu = page.getByRole("button", { name: "Menu", exact: true });
    await menu.focus();
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Share" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Share" }).waitFor({ state: "detached" });
    check(await menu.evaluate((e) => e === document.activeElement), "the focus is elsewhere");
  });
}

async function testContents(page, scratch) {
  const layers = Object.fromEntries(count(12).flatMap((i) => [[`model.layers.${i}.self_attn.q_proj.weight`, weight(3)], [`model.layers.${i}.norm.weight`, weight(1)]]));
  await open(page, made(scratch, "layers.safetensors", { "model.embed.weight": weight(5), ...layers, "lm_head.weight": weight(7) }));
  await test("single children are joined, and layers are folded, also while filtering", async () => {
    const plain = await names(page);
    check(plain.includes("embed.weight") && plain.includes("lm_head.weight") && plain.some((n) => n.startsWith("0 … 11")) && plain.includes("self_attn.q_proj.weight"), plain.join(" "));
    await filter(page, "q_proj", "12 matches");
    const shown = await names(page);
    check(JSON.stringify(shown) === JSON.stringify(["model.layers", "0 … 11", "self_attn.q_proj.weight"]), JSON.stringify(shown));
    check(await page.locator(".window .row .tag").first().textContent() === "12 alike", "it does not say how many are alike");
    const size = (await rowsOf(page))[1].split(" | ")[3];
    check(size === `${12 * 3 * 4 * 4} B`, size);
  });
  await test("layers are folded in a comparison, too", async () => {
    const changed = Object.fromEntries(count(12).flatMap((i) => [[`model.layers.${i}.self_attn.q_proj.weight`, weight(4)], [`model.layers.${i}.norm.weight`, weight(1)]]));
    const other = made(scratch, "changed.safetensors", { "model.embed.weight": weight(5), ...changed, "lm_head.weight": weight(7) });
    await goTo(page, "Compare");
    await pick(page, other);
    await page.locator(".chip", { hasText: "Changed 12" }).waitFor();
    await page.waitForFunction(() => document.querySelectorAll(".window .row .text").length === 3);
    const shown = await names(page);
    check(JSON.stringify(shown) === JSON.stringify(["model.layers", "0 … 11", "self_attn.q_proj.weight"]), JSON.stringify(shown));
    await page.locator(".window .row .tag", { hasText: "12 alike" }).waitFor();
    await goTo(page, "Contents");
  });
  await test("one is not said as several", async () => {
    await open(page, made(scratch, "one.safetensors", { only: ["int64", [1], [7]] }));
    await filter(page, "only", "1 match · 1 element · 8 B");
    await row(page, "only").click();
    await page.locator("aside .map").waitFor();
    const text = await page.locator("#app").innerText();
    check(!/\b1 (elements|tensors|matches|entries|files|chunks|ranks|values)\b/.test(text), text.match(/.*\b1 (elements|tensors|matches|entries|files|chunks|ranks|values)\b.*/)?.[0]);
    await open(page, path.join(scratch, "layers.safetensors"));
    await filter(page, "q_proj", "12 matches");
  });
  await test("what the filter found is marked in the names", async () => {
    check((await page.locator(".window mark").allTextContents()).join() === "q_proj", (await page.locator(".window mark").allTextContents()).join());
    await filter(page, "**.q_proj.*", "12 matches");
    check((await page.locator(".window mark").allTextContents()).join() === "q_proj", (await page.locator(".window mark").allTextContents()).join());
  });
  await test("a folded layer opens to the entry that a link names", async () => {
    await filter(page, "", /^$/);
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "Go to" }).fill("layers.7.norm");
    await page.getByRole("option", { name: /layers\.7\.norm\.weight/ }).waitFor();
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Enter");
    await page.locator("aside h2", { hasText: "weight" }).waitFor();
    check((await page.locator("aside h2").textContent()).replaceAll("\u200b", "") === "model.layers.7.norm.weight", await page.locator("aside h2").textContent());
    await page.locator(".window .row.selected", { hasText: "norm.weight" }).waitFor();
  });
  await test("every column sorts, a third click returns to the stored order, which is named", async () => {
    await open(page, made(scratch, "order.safetensors", { "b.x": weight(2), "a.x": ["int64", [9], count(9)], "c.x": weight(1) }));
    const first = async () => (await names(page)).join();
    await page.getByText("In stored order").waitFor();
    const stored = await first();
    for (const [column, ...want] of [["Name", "a.x,b.x,c.x", "c.x,b.x,a.x"], ["Size", "a.x,b.x,c.x", "c.x,b.x,a.x"], ["Shape", "a.x,b.x,c.x", "c.x,b.x,a.x"], ["dtype", "b.x,c.x,a.x", "a.x,b.x,c.x"]]) {
      for (const order of [...want, stored]) {
        await page.getByRole("columnheader", { name: column }).getByRole("button").click();
        check(await first() === order, `${column}: ${await first()} instead of ${order}`);
      }
      await page.getByText("In stored order").waitFor();
    }
  });
  await test("a filter that nothing matches says so, and can be cleared", async () => {
    await filter(page, "nothing has this name", /^0 matches/);
    await page.getByText("No entry matches the filter.").waitFor();
    await page.getByRole("button", { name: "Clear the filter" }).click();
    await row(page, "b.x").first().waitFor();
    check(await page.getByLabel("Filter").inputValue() === "" && await page.getByText("No entry matches the filter.").count() === 0, "the filter was not cleared");
  });
  await test("there is no button for what is shown already", async () => {
    await row(page, "a.x").first().click();
    await page.locator("table.values").waitFor();
    const show = page.getByRole("button", { name: "Show values" }), statistics = page.getByRole("button", { name: /^Statistics/ });
    check(await show.count() === 0, "values are shown, and there is a button for that");
    await page.getByLabel("Slice").fill("3:5");
    await show.click();
    await page.locator("table.values thead", { hasText: /^34$/ }).waitFor();
    check(await show.count() === 0, "the slice is shown, and there is a button for that");
    await statistics.click();
    await page.locator("aside dt", { hasText: "std" }).waitFor();
    await statistics.waitFor({ state: "detached" });
  });
  await test("the texts of a figure have one size at every width", async () => {
    await open(page, path.join(samples, "torch_ranks_tp_fsdp2"));
    await filter(page, "model.block.down.weight", /^1 match/);
    await page.locator(".window .row").first().click();
    const sizes = new Set();
    for (const width of [1440, 1024, 390]) {
      await page.setViewportSize({ width, height: 800 });
      await drawnForWidth(page);
      sizes.add(await page.locator(".map .rank").first().evaluate((text) => Math.round(text.getScreenCTM().a * parseFloat(getComputedStyle(text).fontSize))));
    }
    check([...sizes].join() === "11", `sizes in pixels: ${[...sizes].join(", ")}`);
    await page.setViewportSize({ width: 1280, height: 800 });
    check((await page.locator(".legend").textContent()).includes("rank 1 dp=0, tp=1 rank1.pt"), await page.locator(".legend").textContent());
  });
  await test("a name of 3,000 letters and a leaf 43 levels down stay in sight", async () => {
    const deep = count(43, (i) => `level${i}`).join(".");
    await open(page, made(scratch, "names.safetensors", { ["x".repeat(3000)]: weight(2), [deep]: weight(3), [`${deep}s`]: weight(4) }));
    await page.setViewportSize({ width: 1024, height: 800 });
    const leaf = row(page, "level42").first();
    const [text, list] = [await leaf.locator(".text").evaluate((e) => e.getBoundingClientRect().right), await page.locator(".grid").evaluate((e) => e.getBoundingClientRect().right)];
    check(text < list && await leaf.locator(".text").evaluate((e) => e.getBoundingClientRect().width > 20), `the leaf ends at ${text} of ${list}`);
    check(await page.locator("aside .bars li").evaluateAll((l) => Math.max(...l.map((e) => e.getBoundingClientRect().height))) < 120, "a name fills the overview");
    await row(page, "x{3000}").click();
    await page.locator("aside .map").waitFor();
    const height = await page.locator("aside header").evaluate((e) => e.getBoundingClientRect().height);
    check(height < 200, `the name is ${height} px high`);
    await open(page, made(scratch, "prefixed.safetensors", { [`model.${"x".repeat(3000)}`]: weight(2), "optim.state.x.exp_avg": weight(3) }));
    await goTo(page, "Convert…");
    const example = page.locator(".answer", { hasText: "As they are stored" });
    await example.locator("code").waitFor();
    check(await example.evaluate((e) => e.getBoundingClientRect().height) < 120, "a name fills the questions");
    await page.setViewportSize({ width: 1440, height: 800 });
  });
  await test("values of objects are in their rows, as Python writes them", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    await filter(page, "kind:object", "12 matches");
    const shown = Object.fromEntries((await rowsOf(page)).map((r) => r.split(" | ")).map(([name, value]) => [name, value]));
    check(shown.amsgrad === "False" && shown.foreach === "None" && shown.decoupled_weight_decay === "True" && shown.lr === "0.01", JSON.stringify(shown));
  });
  await test("the sharding is said and drawn", async () => {
    await filter(page, "model.block", /\d+ matches/);
    const shown = Object.fromEntries((await rowsOf(page)).map((r) => r.split(" | ")).map((cells) => [cells[0], cells[4]]));
    check(shown["up.weight"] === "4 on dim 0" && Object.values(shown).includes("2 × 2 on dims 0, 1") && shown.bias === "2 on dim 0", JSON.stringify(shown));
    const box = await row(page, "up.weight").locator(".thumb").boundingBox();
    check(box.width === 40 && await row(page, "up.weight").locator(".thumb rect").count() === 4, JSON.stringify(box));
    await open(page, path.join(samples, "safetensors_index"));
    check(await page.getByRole("columnheader", { name: "Sharding" }).count() === 0, "nothing is divided, and there is a column for it");
  });
}

async function testFigures(page, scratch) {
  await test("chunks have axes with dims and offsets, and the ranks that hold them", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    await filter(page, "model.block.down.weight", "1 match");
    await page.locator(ENTRIES).click();
    await page.locator("aside .map .rank").first().waitFor();
    check((await page.locator(".map .rank").allTextContents()).join() === "0,1,2,3", (await page.locator(".map .rank").allTextContents()).join());
    const axes = await page.locator(".map .axes text").allTextContents();
    check(axes.join("|") === "dim 1 → 8|0|4|8|dim 0 → 8|0|4|8", axes.join("|"));
    const fills = await page.locator(".map .chunk").evaluateAll((l) => l.map((e) => getComputedStyle(e).fill));
    check(new Set(fills).size === 4, fills.join(" "));
  });
  await test("the pointer marks a chunk in the map, the legend and the table", async () => {
    await page.locator("aside summary").click();
    await page.locator("aside table.values").waitFor();
    await drawnForWidth(page); // nothing moves away from the pointer any more
    await page.locator(".legend li").nth(2).hover();
    check(await page.locator(".map .chunk.over").count() === 1 && await page.locator("[aria-label=Chunks] tr.over").count() === 1, "it is not marked");
    check(await page.locator("[aria-label=Chunks] tr").evaluateAll((l) => l.findIndex((e) => e.classList.contains("over"))) === 3, "another row is marked");
    await page.mouse.move(5, 5);
    await page.locator(".map .chunk.over").waitFor({ state: "detached" });
  });
  await test("absent chunks are hatched", async () => {
    const some = path.join(scratch, "some");
    fs.cpSync(path.join(samples, "dcp_tp_fsdp2"), some, { recursive: true });
    fs.rmSync(path.join(some, "__1_0.distcp"));
    await open(page, some);
    await filter(page, "model.block.down.weight", "1 match");
    await page.locator(ENTRIES).click();
    await page.locator(".map .chunk.away").waitFor();
    check(/away/.test(await page.locator(".map .chunk.away").evaluate((e) => getComputedStyle(e).fill)), "it has a colour");
    check(await page.locator("table.values, section[aria-label=Values] .trouble").count() === 0, "values were read that nobody asked for");
  });
  await test("of a tensor with a hole, values of a chunk are shown, and of chunks that overlap it is said that none can be read", async () => {
    await open(page, path.join(samples, "broken_dcp_hole"));
    await row(page, "weight").click();
    const { chunks: [{ sizes }] } = JSON.parse(tessera("inspect", path.join(samples, "broken_dcp_hole"), "--include", "weight", "--json")).entries[0];
    await page.locator("table.values td").first().waitFor();
    check(await page.locator("table.values tbody td").count() === sizes[0] * sizes[1], await page.locator("table.values").innerText());
    check(await page.getByLabel("Slice", { exact: true }).inputValue() === "0:3,:", await page.getByLabel("Slice", { exact: true }).inputValue());
    const ofAll = page.locator("section[aria-label=Values]").locator("button, dt").filter({ hasText: /^(Statistics|std$)/ }), trouble = page.locator("aside .trouble");
    check(await ofAll.count() === 0 && await trouble.count() === 0, "statistics of the whole tensor are offered, or were tried");
    await row(page, "bias").click();
    await page.locator("aside h2", { hasText: /^bias$/ }).waitFor();
    await ofAll.first().waitFor();
    await open(page, path.join(samples, "broken_dcp_overlap"));
    await row(page, "weight").click();
    await page.getByText("They cannot be read, because its chunks overlap.").waitFor();
    check(await page.getByRole("button", { name: "Show values" }).count() === 0, "values are offered");
  });
  await test("values are shown without asking, with indices, four digits and the exact ones on hover", async () => {
    const file = made(scratch, "values.safetensors", { big: ["float32", [3, 100, 70], count(21000, (i) => i / 7)], z: ["complex64", [2], [1, 2, 3.5, -4]], n: ["float32", [3], [1, NaN, Infinity]], one: ["int64", [1], [123456789]] });
    await open(page, file);
    await row(page, "big").click();
    await page.locator("table.values td").first().waitFor();
    const cells = () => page.locator("table.values tbody tr").nth(1).locator("td");
    check(await cells().nth(3).textContent() === "10.43" && await cells().nth(3).getAttribute("title") === "10.4285717", `${await cells().nth(3).textContent()} ${await cells().nth(3).getAttribute("title")}`); // 73 / 7 in float32
    check((await page.locator("table.values thead th").allTextContents()).slice(0, 3).join() === "0,1,2", "columns have no indices");
    await page.getByText("These values: min 0 · max").waitFor();
    await page.getByRole("button", { name: "Forward along dim 1" }).click();
    await page.locator("table.values tbody th", { hasText: /^36$/ }).waitFor(); // the last 64 of 100
    await page.getByRole("button", { name: "Forward along dim 0" }).click();
    await page.locator("table.values tbody tr").first().locator("td", { hasText: String(Number(((100 + 36) * 70 / 7).toPrecision(4))) }).first().waitFor();
    check(await page.getByLabel("Slice").inputValue() === "1,36:100,0:64", await page.getByLabel("Slice").inputValue());
  });
  await test("complex numbers, integers and NaN are shown as Python writes them; arrows go from entry to entry", async () => {
    await page.locator(".grid").focus();
    const want = { n: "1 nan inf", one: "123456789", z: "1+2j 3.5-4j" }, seen = {};
    await page.keyboard.press("Home");
    for (let i = 0; i < 4; i++) {
      await page.waitForTimeout(50);
      const name = (await names(page))[i];
      await page.locator("aside h2", { hasText: new RegExp(`^${name}$`) }).waitFor();
      await page.locator("table.values td").first().waitFor();
      await page.waitForFunction((n) => document.querySelector("aside h2")?.textContent === n && document.querySelector("table.values"), name);
      seen[name] = (await page.locator("table.values tbody td").allTextContents()).join(" ");
      await page.keyboard.press("ArrowDown");
    }
    for (const [name, text] of Object.entries(want)) check(seen[name] === text, `${name}: ${seen[name]?.slice(0, 80)}`);
    await row(page, "n").click();
    await page.locator(".statistics .bad", { hasText: "1 NaN" }).waitFor();
  });
  await test("a vector is a line with its gaps, and what the pointer is on is named in both kinds of figures", async () => {
    await open(page, made(scratch, "figures.safetensors", { long: ["float32", [200], count(200, (i) => i === 7 ? NaN : i / 4 - 10)], wide: ["float32", [2, 3, 4], count(24, (i) => i * 2)] }));
    const said = page.locator("aside .plot p").last(), point = async (figure, x, y) => {
      const { width, height } = await figure.boundingBox();
      await figure.hover({ position: { x: width * x, y: height * y } });
      return said.textContent();
    };
    await row(page, "long").click();
    const line = page.getByRole("img", { name: "Line of 200 values from -10 to 39.75" });
    await line.waitFor();
    check(await line.locator(".odd").count() === 1 && (await line.locator("path").getAttribute("d")).match(/M/g).length === 2, await line.innerHTML());
    check(await point(line, 100.5 / 200, 0.5) === "[100]  15", await said.textContent());
    await row(page, "wide").click();
    const map = page.getByRole("img", { name: "Heat map of 3 × 4 values" });
    await map.waitFor();
    check(await point(map, 2.5 / 4, 1.5 / 3) === "[0, 1, 2]  12", await said.textContent());
    await page.mouse.move(5, 5);
    await said.filter({ hasText: /^\s*$/ }).waitFor();
  });
  await test("the modules in an entry's name show what they hold", async () => {
    await open(page, made(scratch, "modules.safetensors", { "a b.c.w": weight(2), "a b.c.v": weight(3), "a b.d.w": weight(4), "other.w": weight(5) }));
    await page.locator(ENTRIES, { hasText: "v" }).first().click();
    await page.locator("aside h2").getByRole("button", { name: "c." }).click();
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "2 matches" }).waitFor();
    await page.locator("aside h2").getByRole("button", { name: "a b." }).click();
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "3 matches" }).waitFor();
    await open(page, path.join(scratch, "values.safetensors"));
  });
  await test("an entry can be copied as a command and as Python", async () => {
    await row(page, "big").click();
    await page.locator("table.values td").first().waitFor();
    await page.evaluate(() => { globalThis.copied = []; Object.defineProperty(navigator, "clipboard", { configurable: true, value: { writeText: async (t) => void globalThis.copied.push(t) } }); });
    await page.getByRole("button", { name: "Copy as command" }).click();
    await page.getByRole("button", { name: "Copy as Python" }).click();
    const [command, python] = await page.evaluate(() => globalThis.copied);
    check(command === "tessera get values.safetensors 'big[0,0:64,0:64]' --print", command);
    check(python === 'import tessera\n\nvalues = tessera.get("values.safetensors", "big[0,0:64,0:64]")\n', python);
  });
}

async function testOverview(page, scratch) {
  await test("the overview says parameters by module, layers, step and learning rate", async () => {
    const said = async (target, name, text) => {
      await open(page, target);
      await page.locator(`section[aria-label=Summary] dt:text-is("${name}") + dd`, { hasText: text }).waitFor();
    };
    await said(path.join(scratch, "layers.safetensors"), "layers", /^12 in model\.layers$/);
    await said(path.join(samples, "torch_ranks_tp_fsdp2"), "mesh", "dp=2,tp=2");
    await said(path.join(samples, "torch_train_state"), "epoch", /^3$/);
    await openSample(page, "dcp_tp_fsdp2");
    await page.locator("section[aria-label='Parameters by module'] li").first().waitFor();
    const facts = await page.locator("section[aria-label=Summary] dl > div").evaluateAll((l) => Object.fromEntries(l.map((f) => [f.children[0].textContent, f.children[1].textContent])));
    check(facts["learning rate"] === "0.01" && facts.parameters.startsWith("248 · ") && facts.values.startsWith("not scanned"), JSON.stringify(facts));
    const counted = (await page.locator("section[aria-label='Parameters by module'] li").allTextContents()).map((text) => Number(/(\d+)$/.exec(text)?.[1]));
    check(counted.reduce((sum, n) => sum + n, 0) === 248, `the modules have ${counted} parameters`);
    check(await page.locator("section[aria-label='File bytes by rank']").count() === 1 && await page.locator("section[aria-label='Bytes by file']").count() === 0, "the same bars are there twice");
  });
  await test("NaN and infinite values that a scan finds are problems; constant norms are not", async () => {
    await open(page, made(scratch, "scan.safetensors", { a: ["float32", [2], [1, NaN]], b: ["float32", [2], [Infinity, 2]], norm: ["float32", [4], [1, 1, 1, 1]], c: weight(2) }));
    await page.getByRole("button", { name: /^Scan \(reads/ }).click();
    await page.locator(".verdict", { hasText: "2 problems" }).waitFor();
    await page.locator("section[aria-label=Summary] .bad", { hasText: "2 tensors with NaN or infinite values" }).waitFor();
    await goTo(page, /^Problems 2/);
    check(/^4 tensors scanned: 2 with NaN or infinite values, 1 all zero or constant\.$/.test(await page.locator("section[aria-label='Values scan'] .fine").textContent()), await page.locator("section[aria-label='Values scan'] .fine").textContent());
    check(!/No problems/.test(await page.locator("section[aria-label=Problems]").textContent()), "the view says that there are none");
    await open(page, made(scratch, "sound.safetensors", { norm: ["float32", [4], [1, 1, 1, 1]], c: weight(2) }));
    await page.getByRole("button", { name: /^Scan \(reads/ }).click();
    await page.locator("section[aria-label=Summary] dd", { hasText: "no NaN, no infinite values" }).waitFor();
    check(await page.locator(".verdict").textContent() === "Structure OK — bytes not checked", await page.locator(".verdict").textContent());
  });
}

async function testKeys(page) {
  await test("Ctrl K goes to views and entries, and Escape closes it", async () => {
    await openSample(page, "dcp_tp_fsdp2");
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "Go to" }).fill("opti");
    await page.getByRole("option", { name: /^Optimizer/ }).waitFor();
    await page.keyboard.press("Enter");
    await page.locator("section[aria-label=Optimizer], .view").first().waitFor();
    check(new URL(page.url()).hash === "#optimizer", page.url());
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "Go to" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("combobox", { name: "Go to" }).waitFor({ state: "detached" });
  });
  await test("on a Mac it is ⌘ K, and Ctrl K is left to the fields", async () => {
    const tab = await page.context().newPage();
    await tab.addInitScript(() => { Object.defineProperty(navigator, "platform", { get: () => "MacIntel" }); });
    await tab.goto(page.url().replace(/[?#].*/, ""));
    await openSample(tab, "dcp_tp_fsdp2");
    await tab.getByRole("button", { name: "Menu" }).click();
    check(await tab.locator(".menu kbd").first().textContent() === "⌘ K", await tab.locator(".menu").textContent());
    await tab.keyboard.press("Escape");
    check(!await tab.evaluate(() => { const key = new KeyboardEvent("keydown", { key: "k", ctrlKey: true, bubbles: true, cancelable: true }); document.activeElement.dispatchEvent(key); return key.defaultPrevented; }), "Ctrl K is taken");
    await tab.keyboard.press("Meta+k");
    await tab.getByRole("combobox", { name: "Go to" }).waitFor();
    await tab.keyboard.press("Escape");
    await tab.keyboard.press("?");
    await tab.getByRole("dialog", { name: "Shortcuts" }).locator("dt", { hasText: "⌘K" }).waitFor();
    await tab.close();
  });
  await test("? lists the shortcuts", async () => {
    await page.locator(".top h1").click();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Shortcuts" }).getByText("Filter the entries").waitFor();
    await page.getByRole("button", { name: "Close", exact: true }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
  });
  await test("typing a name in the tree goes to it", async () => {
    await goTo(page, "Contents");
    await page.locator(".grid").focus();
    await page.keyboard.press("Home");
    await page.keyboard.type("emb");
    await page.locator(".window .row.cursor", { hasText: "emb.weight" }).waitFor();
  });
}

async function testAddress(page, url, scratch) {
  await test("the address follows the chosen entry, and a reload opens it again", async () => {
    await page.goto(`${url}?url=safetensors_index/model.safetensors.index.json`);
    await page.locator(".window .row .text").first().waitFor();
    const [name] = Object.keys(JSON.parse(fs.readFileSync(path.join(samples, "safetensors_index/model.safetensors.index.json"), "utf8")).weight_map);
    await filter(page, name, /match/);
    await page.locator(ENTRIES).first().click();
    await page.waitForURL((u) => u.hash === `#contents/${encodeURIComponent(name)}`);
    await page.reload();
    await page.locator("aside .map").waitFor();
    check((await page.locator("aside h2").textContent()).replaceAll("\u200b", "") === name, await page.locator("aside h2").textContent());
    await page.getByRole("button", { name: "Close entry" }).click();
    await page.waitForURL((u) => u.hash === "#contents");
  });
  await test("the address never holds a URL's query or password, and a reload still opens it", async () => {
    const file = fs.readFileSync(made(scratch, "remote.safetensors", { w: weight(2) })), asked = [];
    const server = http.createServer((request, response) => {
      asked.push(request.url);
      const [, from, to] = /bytes=(\d+)-(\d+)/.exec(request.headers.range ?? "") ?? [];
      response.setHeader("Access-Control-Allow-Origin", "*");
      response.setHeader("Access-Control-Allow-Headers", "*");
      response.setHeader("Access-Control-Expose-Headers", "*");
      if (request.method === "OPTIONS") return response.writeHead(204).end();
      if (!request.url.includes("signature=abc")) return response.writeHead(403).end();
      const end = Math.min(Number(to), file.length - 1);
      if (from === undefined) return response.writeHead(200, { "Content-Length": file.length, "Accept-Ranges": "bytes" }).end(request.method === "HEAD" ? undefined : file);
      return response.writeHead(206, { "Content-Range": `bytes ${from}-${end}/${file.length}` }).end(request.method === "HEAD" ? undefined : file.subarray(Number(from), end + 1));
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    try {
      const remote = `http://127.0.0.1:${server.address().port}/w.safetensors`;
      await page.goto(`${url}remote.html?${new URLSearchParams({ url: `${remote}?signature=abc` })}`);
      await page.locator(".window .row .text").first().waitFor();
      await page.waitForURL((u) => u.searchParams.get("url") === remote);
      check(!/signature|abc/.test(page.url()), page.url());
      await page.reload();
      await page.locator(".window .row .text").first().waitFor();
      check(!/signature|abc/.test(page.url()), page.url());
    } finally {
      server.close();
      server.closeAllConnections();
    }
  });
  await test("under tessera view, Share does not call the checkpoint one of this computer", async () => {
    const served = await view(path.join(samples, "dcp_fsdp2"));
    try {
      await page.goto(served.url);
      await page.locator(".window .row .text").first().waitFor();
      await fromMenu(page, "Share");
      await page.locator(".view", { hasText: "on the machine on which tessera view runs" }).waitFor();
      check(!/this computer/.test(await page.locator(".view").textContent()), await page.locator(".view").textContent());
      check(/^tessera view dcp_fsdp2$/.test(await page.locator(".view code").textContent()), await page.locator(".view code").textContent());
    } finally {
      served.stop();
    }
    await page.goto(url);
    await openSample(page, "dcp_fsdp2");
    await fromMenu(page, "Share");
    await page.getByText("was not opened from a URL").waitFor();
  });
}

export async function testProduct({ page, url, broken }) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-product-"));
  try {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await testShell(page, scratch);
    await testContents(page, scratch);
    await testFigures(page, scratch);
    await testOverview(page, scratch);
    await testKeys(page);
    await testAddress(page, url, scratch);
    await test("none of these breaks the page", () => check(broken.length === 0, broken.join("; ")));
  } finally {
    fs.rmSync(scratch, { recursive: true });
  }
}
