/** Tests the keyboard, colours, widths, network, addresses and accessibility. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { axeSource, ENTRIES, pick, root, rowsOf, samples, view } from "./browser.mjs";
import { check, test } from "../support/harness.mjs";
import { fromMenu, goTo, openSample, READY } from "./views.mjs";

async function violations(page) {
  await page.evaluate(axeSource);
  const { violations: list } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }));
  return list.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.target.join(" ")} (${n.failureSummary.split("\n")[1]?.trim()})`).slice(0, 3).join(", ")}`);
}

async function eachView(page, body) {
  await page.getByRole("button", { name: "Tessera", exact: true }).click();
  await page.locator(".samples button").first().waitFor();
  await body("start");
  await openSample(page, "broken_dcp_hole");
  await page.locator(".window .row .text", { hasText: "weight" }).click();
  await page.getByLabel("Slice").waitFor();
  await body("values");
  await page.getByRole("button", { name: "Tessera", exact: true }).click();
  await page.locator(".samples button").first().waitFor();
  await openSample(page, "broken_dcp_overlap");
  await page.locator(".window .row .text", { hasText: "weight" }).click();
  await page.locator(".detail", { hasText: "its chunks overlap" }).waitFor();
  await body("entries");
  for (const [tab, ready] of Object.entries(READY)) {
    await goTo(page, tab === "Problems" ? /^Problems/ : tab);
    await page.locator(ready).first().waitFor();
    await body(tab);
  }
}

async function press(page, ...keys) {
  for (const key of keys) await page.keyboard.press(key);
}

/** Drops files and directories from disk, like a person with a mouse. */
async function testDrops(page, context, url) {
  const session = await context.newCDPSession(page);
  const drop = async (names) => {
    const data = { items: [], files: names.map((n) => path.join(samples, n)), dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 400, y: 300, data });
  };
  const opens = (name, names, title) => test(name, async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await drop(names);
    await page.locator(".window .row .text").first().waitFor();
    const got = await page.locator(".top h1").textContent();
    check(got === title, `the title is '${got}'`);
  });
  await opens("a dropped directory opens", ["dcp_fsdp2"], "dcp_fsdp2");
  await opens("a dropped file opens", ["safetensors_index/model-00001-of-00003.safetensors"], "model-00001-of-00003.safetensors");
  await test("of several checkpoints dropped together, one is chosen", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await drop(["dcp_fsdp2", "dcp_hsdp", "safetensors_index"]);
    await page.getByRole("heading", { name: "Which one?" }).waitFor();
    await page.locator(".chooser button", { hasText: "dcp_hsdp" }).click();
    await page.locator(".window .row .text").first().waitFor();
    check(await page.locator(".top h1").textContent() === "dcp_hsdp", "another title");
    await goTo(page, "Compare");
    await drop(["dcp_fsdp2", "dcp_hsdp"]);
    await page.locator(".trouble", { hasText: "holds 2 checkpoints (dcp_fsdp2, dcp_hsdp); drop one of them" }).waitFor();
  });
  await opens("several dropped files open together", fs.readdirSync(path.join(samples, "dcp_fsdp2")).map((n) => `dcp_fsdp2/${n}`), `${fs.readdirSync(path.join(samples, "dcp_fsdp2")).length} files`);
  await test("a checkpoint dropped on Compare is the other one", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Compare");
    await drop(["dcp_hsdp"]);
    await page.locator(".current[aria-busy=false] .verdict-line", { hasText: "values not compared yet" }).waitFor();
  });
  await session.detach();
}

export async function testHabits({ page, url, context, broken }) {
  await page.goto(url);
  for (const scheme of ["light", "dark"]) {
    await test(`axe finds nothing in ${scheme}`, async () => {
      await page.emulateMedia({ colorScheme: scheme });
      await page.reload();
      await page.addScriptTag({ content: "" }).catch(() => undefined);
      await eachView(page, async (name) => {
        const list = await violations(page);
        check(list.length === 0, `${name}: ${list.join("; ")}`);
      });
    });
  }
  for (const width of [360, 800, 1920]) {
    await test(`nothing runs out of the page at ${width} px`, async () => {
      await page.setViewportSize({ width, height: 740 });
      await eachView(page, async (name) => {
        const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        check(wide <= room, `${name}: ${wide} px`);
        if (await page.getByRole("button", { name: "Close entry" }).isVisible().catch(() => false)) await page.getByRole("button", { name: "Close entry" }).click();
      });
    });
  }
  await test("names next to bars are not cut off at 820 px", async () => {
    await page.setViewportSize({ width: 820, height: 740 });
    await page.goto(url);
    await openSample(page, "dcp_tp_fsdp2");
    await page.locator("section[aria-label='Largest tensors'] .label").first().waitFor();
    const cut = await page.locator(".bars .label, .bars .label *").evaluateAll((list) => list.filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline").map((e) => e.textContent));
    check(cut.length === 0, cut.join(", "));
  });
  await test("on a phone, rows have two lines, and Back leads from the entry to the list", async () => {
    await page.setViewportSize({ width: 390, height: 780 });
    await page.goto(url);
    await openSample(page, "dcp_tp_fsdp2");
    const [row, name, size] = await page.evaluate(() => ["", ".name", ".size"].map((s) => document.querySelector(`.window .row:not(.group) ${s}`.trim()).getBoundingClientRect().toJSON()));
    check(row.height === 48 && size.top > name.top + 15, JSON.stringify([row, name, size]));
    await page.locator(ENTRIES).first().click();
    await page.locator("aside .map").waitFor();
    check(!await page.locator(".grid").isVisible(), "the list is still there");
    await page.goBack();
    await page.locator(".window .row.cursor").waitFor();
    await page.goForward();
    await page.waitForFunction(() => history.state?.entry);
    await page.locator(ENTRIES).nth(1).click();
    await page.locator("aside .map").waitFor();
    await page.goBack(); // the entry's step was there already
    await page.locator(".window .row.cursor").waitFor();
    check(await page.locator(".grid").isVisible(), "Back left the entry open");
    await page.goBack();
    await page.getByRole("button", { name: "Return to dcp_tp_fsdp2" }).click();
    await page.locator(".window .row .text").first().waitFor();
  });
  await page.setViewportSize({ width: 1280, height: 800 });
  await test("the policy refuses scripts that are not the page's own", async () => {
    await page.goto(url);
    const refused = await page.evaluate(() => ["blob:x", "innerHTML", "evil"].map((what) => {
      try {
        if (what === "innerHTML") document.createElement("p").innerHTML = "<b>x</b>";
        else if (what === "evil") globalThis.trustedTypes.createPolicy("evil", { createScriptURL: (u) => u });
        else new Worker("blob:x");
        return false;
      } catch (e) {
        return e instanceof TypeError;
      }
    }));
    check(refused.every(Boolean), JSON.stringify(refused));
  });

  await test("everything can be done with the keyboard", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await page.locator(".samples button").first().focus();
    await press(page, "Enter");
    await page.locator(".window .row .text").first().waitFor();
    await press(page, "/");
    await page.keyboard.insertText("block");
    await page.locator(".filter [role=status][aria-busy=false]", { hasText: "match" }).waitFor();
    const rows = async () => Number(await page.locator(".grid").getAttribute("aria-rowcount"));
    const open = await rows();
    await press(page, "ArrowDown", "Home", "ArrowLeft");
    await page.waitForFunction((n) => Number(document.querySelector(".grid").getAttribute("aria-rowcount")) < n, open);
    await press(page, "ArrowRight", "ArrowLeft", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowRight"); // faster than rows are fetched
    await page.locator(`.grid[aria-rowcount="${open}"]`).waitFor();
    await press(page, "Home", "*", "End", "Enter");
    await page.locator("aside.detail .map").waitFor();
    await page.locator(`.row.cursor[aria-rowindex="${await rows()}"]`).waitFor();
    await page.locator("#tab-contents").focus();
    await press(page, "ArrowRight", "ArrowRight");
    await page.locator(".treemap").waitFor();
    await page.locator("#tab-files:focus").waitFor();
  });

  await test("a link opens the tab and the entry that it names", async () => {
    const file = JSON.parse(fs.readFileSync(path.join(samples, "safetensors_index/model.safetensors.index.json"), "utf8")), [entry] = Object.keys(file.weight_map);
    for (const tab of ["files", "problems", "convert", "share"]) {
      await page.goto(`${url}?${new URLSearchParams({ url: "safetensors_index/model.safetensors.index.json", entry, tab })}`);
      await page.waitForURL((u) => u.hash === `#${tab}/${encodeURIComponent(entry)}`);
      if (tab === "convert") continue; // it has the whole width
      await page.locator("aside .map").waitFor();
      check((await page.locator("aside.detail h2").textContent()).replaceAll("\u200b", "") === entry, `${tab}: another entry`);
    }
  });
  await test("a copy that the browser refuses is not called one, with or without a clipboard", async () => {
    await openSample(page, "dcp_fsdp2");
    await page.locator(ENTRIES).first().click();
    const copy = page.getByRole("button", { name: "Copy name" });
    for (const isThere of [true, false]) {
      await page.evaluate((is) => Object.defineProperty(navigator, "clipboard", { configurable: true, value: is ? { writeText: () => Promise.reject(new DOMException("denied", "NotAllowedError")) } : undefined }), isThere);
      await copy.click();
      await copy.filter({ hasText: "Not copied" }).waitFor();
      await copy.filter({ hasText: /^Copy$/ }).waitFor();
    }
    await page.evaluate(() => Object.defineProperty(navigator, "clipboard", { configurable: true, value: { writeText: async () => undefined } }));
    await copy.click();
    await copy.filter({ hasText: "Copied" }).waitFor();
  });
  await test("back and forward go through the tabs, and the address holds no name", async () => {
    await openSample(page, "dcp_fsdp2");
    await goTo(page, "Files");
    await goTo(page, /^Problems/);
    check(!/dcp_fsdp2/.test(page.url()), page.url());
    await page.goBack();
    await page.locator(".treemap").waitFor();
    await page.goForward();
    await page.locator('section[aria-label="Problems"]').waitFor();
  });

  await test("after loading, files are read without any request to a server, also offline", async () => {
    await page.goto(url);
    await page.locator(".samples button").first().waitFor();
    await page.waitForFunction(() => document.documentElement.dataset.kept === "yes");
    await page.waitForLoadState("networkidle");
    const requests = [];
    page.on("request", (r) => { if (!r.url().startsWith("blob:") && !r.url().endsWith("samples.json")) requests.push(r); });
    await context.setOffline(true);
    try {
      for (const name of ["dcp_fsdp2", "torch_views", "broken_dcp_hole"]) {
        await pick(page, path.join(samples, name));
        await page.locator(".window .row .text").first().waitFor();
        await goTo(page, /^Problems/);
        await page.getByRole("button", { name: /^Check every byte/ }).click();
        await page.locator(".view", { hasText: /Every byte was checked/ }).waitFor();
        await fromMenu(page, "Open another");
      }
      const kept = await Promise.all(requests.map(async (r) => (await r.response())?.fromServiceWorker() && /\/assets\//.test(r.url())));
      check(kept.every((k) => k), `requests: ${requests.map((r) => r.url()).join(" ")}`);
    } finally {
      await context.setOffline(false);
    }
  });

  await test("a URL is read by ranges", async () => {
    await page.goto(url);
    const statuses = [];
    context.on("response", (r) => { if (r.url().endsWith(".safetensors")) statuses.push(r.status()); });
    await page.getByLabel(/^URL/).fill("safetensors_index/model-00001-of-00003.safetensors");
    await page.getByRole("button", { name: "Open URL" }).click();
    await page.locator(".window .row .text").first().waitFor();
    check(statuses.length > 0 && statuses.every((s) => s === 206), `statuses ${statuses.join(" ")}`);
  });
  await testDrops(page, context, url);
  await test("tessera view opens a checkpoint of the machine it runs on", async () => {
    const served = await view(path.join(samples, "dcp_tp_fsdp2"));
    try {
      const statuses = new Set();
      page.on("response", (r) => { if (/\/checkpoint\//.test(r.url())) statuses.add(r.status()); });
      await page.goto(served.url);
      await page.locator(".window .row .text").first().waitFor();
      check(await page.locator(".top h1").textContent() === "dcp_tp_fsdp2", "another title");
      await page.locator(ENTRIES).first().click();
      await page.locator("table.values").waitFor();
      await goTo(page, /^Problems/);
      await page.getByRole("button", { name: /^Check every byte/ }).click();
      await page.locator(".view", { hasText: /Every byte was checked/ }).waitFor();
      check([...statuses].every((s) => s === 206), `statuses ${[...statuses].join(" ")}`);
    } finally {
      served.stop();
    }
  });
  await test("tessera view --part shows the part alone", async () => {
    const served = await view(path.join(root, "tests/golden/deepspeed/zero1_bf16"), "--part", "model");
    try {
      await page.goto(served.url);
      await page.locator('.window [role="row"]', { hasText: "down" }).first().waitFor(); // rows appear before their names do
      const names = (await rowsOf(page)).map((row) => row.split(" | ")[0].replace(/^\W+/, ""));
      check(names.some((n) => n.startsWith("down")) && !names.some((n) => /^(model|module|optim|engine)/.test(n)), JSON.stringify(await rowsOf(page)));
    } finally {
      served.stop();
    }
  });

  await test("tessera view --shards shows the ranks joined", async () => {
    const served = await view(path.join(root, "tests/golden/meta/llama3-2"), "--shards", "meta-llama");
    try {
      const whole = fs.readFileSync(path.join(root, "tests/golden/meta/llama3-2.safetensors")); // joined by transformers' own converter
      const { shape } = JSON.parse(whole.subarray(8, 8 + Number(whole.readBigUInt64LE())))["lm_head.weight"];
      await page.goto(served.url);
      await page.locator('.window [role="row"]', { hasText: "output" }).first().waitFor();
      const rows = await rowsOf(page), at = rows.findIndex((r) => r.includes("output"));
      // one chunk from each of two ranks
      check(rows[at]?.startsWith(`output.weight | ${shape.join(" × ")} | `) && rows[at].endsWith(" | 2 on dim 0"), JSON.stringify([shape, rows]));
    } finally {
      served.stop();
    }
  });

  await test("commands on the page name the part, the map and a title with spaces as the shell needs them", async () => {
    const commandOf = async (action) => {
      await goTo(page, action);
      return page.locator(".command code").last().textContent();
    };
    for (const [target, ...options] of [["tests/golden/deepspeed/zero1_bf16", "--part", "model"], ["tests/golden/meta/llama3-2", "--shards", "meta-llama"]]) {
      const served = await view(path.join(root, target), ...options);
      try {
        await page.goto(served.url);
        await page.locator(".window .row .text").first().waitFor();
        for (const action of ["Convert…", "Reshard…", "Would it load?"]) {
          const command = await commandOf(action);
          check(`${command} `.includes(` ${options.join(" ")} `) && command.includes(` ${path.basename(target)} `), command);
        }
      } finally {
        served.stop();
      }
    }
    await page.goto(url);
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-web-")), own = path.join(directory, "a; b.safetensors");
    fs.copyFileSync(path.join(samples, "safetensors_index/model-00001-of-00003.safetensors"), own);
    try {
      await pick(page, own);
      await page.locator(".window .row .text").first().waitFor();
      for (const action of ["Convert…", "Reshard…", "Would it load?"]) {
        const command = await commandOf(action);
        check(command.includes(" 'a; b.safetensors' "), command);
      }
    } finally {
      fs.rmSync(directory, { recursive: true });
    }
  });

  await test("tessera view of two checkpoints opens the comparison", async () => {
    const served = await view(path.join(samples, "dcp_tp_fsdp2"), path.join(samples, "dcp_fsdp2"));
    try {
      await page.goto(served.url);
      await page.locator('[role="tab"][aria-selected="true"]', { hasText: "Compare" }).waitFor();
      await page.locator("#panel", { hasText: "dcp_fsdp2" }).waitFor();
    } finally {
      served.stop();
    }
  });
  await test("the page loads again without a network", async () => {
    await page.goto(url);
    await page.waitForFunction(() => document.documentElement.dataset.kept === "yes" && navigator.serviceWorker.controller);
    await context.setOffline(true);
    try {
      await page.reload();
      await pick(page, path.join(samples, "dcp_fsdp2"));
      await page.locator(".window .row .text").first().waitFor();
      await page.goto(`${url}?url=safetensors_index/model.safetensors.index.json`); // the page loads, although the URL cannot be read
      await page.locator(".trouble", { hasText: "cannot be read" }).waitFor();
      await pick(page, path.join(samples, "dcp_fsdp2"));
      await page.locator(".window .row .text").first().waitFor();
    } finally {
      await context.setOffline(false);
    }
  });
  await test("colours can be chosen and stay", async () => {
    await page.emulateMedia({ colorScheme: "light" });
    await page.goto(url);
    await page.getByRole("button", { name: "Dark colours" }).click();
    const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await page.reload();
    check(await page.evaluate(() => getComputedStyle(document.body).backgroundColor) === dark, "the choice was lost");
    await page.getByRole("button", { name: "Light colours" }).click();
    check(await page.evaluate(() => getComputedStyle(document.body).backgroundColor) !== dark, "nothing changed");
  });
  await test("no habit breaks the page", () => check(broken.length === 0, broken.join("; ")));
}
