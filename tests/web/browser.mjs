/** Starts Chromium and serves the page, and opens files of samples as a person would. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

export const root = fileURLToPath(new URL("../..", import.meta.url));
export const samples = path.join(root, "samples/checkpoints");
const require = createRequire(path.join(root, "web/package.json"));
const { chromium } = require("playwright-core");
export const axeSource = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** How long the tests wait for anything, in ms. A slow machine must not fail them. */
export const PATIENCE = Number(process.env.TESSERA_PATIENCE ?? 60_000);
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Serves the viewer on a free port of the loopback address. */
export function serve(directory = path.join(root, "web/dist")) {
  const child = spawn(process.execPath, [path.join(root, "web/serve"), "0", directory], { stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.stdout.once("data", (line) => resolve({ url: String(line).trim(), stop: () => child.kill() }));
  });
}

/** Starts `tessera view` for a checkpoint, or for two. */
export function view(...targets) {
  const child = spawn(path.join(root, "build/release/bin/tessera"), ["view", ...targets, "--pages", path.join(root, "web/dist")], { stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", (status) => reject(new Error(`tessera view ended with ${status}`)));
    child.stdout.once("data", (line) => resolve({ url: String(line).trim(), stop: () => child.kill() }));
  });
}

/** Starts Chromium with a new profile. `preferences` are what a person could choose in its settings. */
export async function launch(options = {}, preferences = {}) {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-web-"));
  fs.mkdirSync(path.join(profile, "Default"));
  fs.writeFileSync(path.join(profile, "Default/Preferences"), JSON.stringify(preferences));
  const context = await chromium.launchPersistentContext(profile, { executablePath: "/usr/bin/chromium", args: FLAGS, headless: true, ...options });
  context.setDefaultTimeout(PATIENCE);
  // Playwright handles file inputs but not these dialogs. Tests about the dialogs replace them.
  await context.addInitScript(() => { globalThis.showOpenFilePicker = undefined; });
  context.on("page", (page) => page.on("filechooser", () => undefined)); // While nothing listens, Chromium shows its own dialog. That takes effect too late for a key pressed at once.
  return { context, close: async () => { await context.close(); fs.rmSync(profile, { recursive: true, force: true }); } };
}

/** Makes the browser state so much memory that the page shares work among this many workers, whatever the machine has. */
export const allowWorkers = (page, workers) => page.addInitScript((n) => {
  Object.defineProperty(navigator, "hardwareConcurrency", { get: () => n });
  Object.defineProperty(navigator, "deviceMemory", { get: () => 2 * n });
}, workers);

/** Chooses a directory, or files, through the page's own pickers. */
export async function pick(page, target) {
  const isDirectory = fs.statSync(target).isDirectory();
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: isDirectory ? "Choose directory…" : "Choose files…" }).click()]);
  await chooser.setFiles(target);
}

/** The rows of entries. Groups are not among them, nor rows that are still being fetched, which may turn out to be groups. */
export const ENTRIES = ".window .row:not(.group, [aria-busy=true])";

/** Returns the rows of the tree when all of them have arrived from the worker. Until then they are drawn without text. */
export async function rowsIn(page, selector = "") {
  await page.waitForFunction(() => document.querySelector("[role=treegrid][aria-busy=false] .window") && !document.querySelector(".window [aria-busy=true]"));
  return page.locator(`.window .row${selector}`);
}

/** Returns every row that is drawn, as text. */
export const rowsOf = async (page) => (await rowsIn(page)).evaluateAll((rows) => rows.map((r) => [...r.children].map((c) => c.textContent.trim()).join(" | ")));
