/** session.svg and page.png: a terminal session and the viewer, both of the checkpoints in this repository.
 * With --session the first alone. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { launch, root, samples, view } from "../../tests/web/browser.mjs";

const here = path.join(root, "samples/pictures"), tessera = path.join(root, "build/release/bin/tessera");

/* ---- the terminal session ---- */

const scratch = fs.mkdtempSync("/tmp/tessera-pictures-");
const SESSION = [
  ["inspect", "dcp_fsdp2", "--include", "model.**"],
  ["validate", "--deep", "broken_dcp_hole"],
  ["convert", "dcp_fsdp2", "model.safetensors", "--to", "safetensors", "--include", "model.**"],
  ["diff", "dcp_fsdp2", "model.safetensors", "--values", "--rule", "diff/removed=off"],
];
const COLOURS = { 31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea" };
const COLUMN = 8.4, ROW = 19, MARGIN = 16;
// Browsers fold runs of spaces in SVG, so that columns would not line up.
const escape = (text) => text.replace(/[&<> ]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", " ": "\u00a0" })[c]);

/** Pieces of a line with the attributes that ANSI sequences gave them, on this line or on an earlier one. */
let style = { bold: false, dim: false, colour: null };
function* pieces(line) {
  for (const part of line.split(/(\x1b\[[\d;]*m)/)) {
    const codes = /^\x1b\[([\d;]*)m$/.exec(part);
    if (!codes && part) yield { text: part, ...style };
    for (const code of codes ? codes[1].split(";").map(Number) : []) {
      if (code === 0) style = { bold: false, dim: false, colour: null };
      else if (code === 1) style = { ...style, bold: true };
      else if (code === 2) style = { ...style, dim: true };
      else style = { ...style, colour: COLOURS[code] ?? style.colour };
    }
  }
}

/** Lines of the session. Long listings are cut, and say so. */
function session(most = 14) {
  const lines = [];
  for (const args of SESSION) {
    const p = spawnSync(tessera, [...args, "--color", "always"], { cwd: scratch, encoding: "utf8", env: { ...process.env, COLUMNS: "100" } });
    const said = `${p.stdout}${p.stderr}`.trimEnd().split("\n"), shown = said.slice(0, most);
    const quoted = args.map((a) => (/[*]/.test(a) ? `'${a}'` : a)).join(" ");
    lines.push(`\x1b[1m$ tessera ${quoted}\x1b[0m`, ...shown);
    if (said.length > most) lines.push(`\x1b[2m… ${said.length - most} more lines\x1b[0m`);
    lines.push("");
  }
  return lines.slice(0, -1);
}

function drawLine(line, row) {
  let column = 0, out = "";
  for (const { text, bold, dim, colour } of pieces(line)) {
    const attributes = `${colour ? ` fill="${colour}"` : ""}${bold ? ' font-weight="bold"' : ""}${dim ? ' opacity="0.65"' : ""}`;
    out += `<tspan x="${(MARGIN + column * COLUMN).toFixed(1)}"${attributes}>${escape(text)}</tspan>`;
    column += [...text].length;
  }
  return out ? `<text y="${MARGIN + ROW * (row + 0.75)}">${out}</text>\n` : "";
}

function drawSession() {
  for (const name of ["dcp_fsdp2", "broken_dcp_hole"]) fs.symlinkSync(path.join(samples, name), path.join(scratch, name));
  const lines = session(), width = 900, height = Math.round(2 * MARGIN + ROW * lines.length);
  const text = lines.map(drawLine).join("");
  fs.writeFileSync(path.join(here, "session.svg"), `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img">
<title>A terminal session with tessera</title>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" fill="#e6edf3">
${text}</g>
</svg>
`);
}

/* ---- the viewer ---- */

async function takePicture() {
  const server = await view(path.join(samples, "dcp_tp_fsdp2"));
  const { context, close } = await launch({ viewport: { width: 1280, height: 800 } });
  const page = await context.newPage();
  await page.goto(server.url);
  const rows = page.locator(".window .row");
  await rows.filter({ has: page.locator(".text") }).first().waitFor();
  await page.getByLabel("Filter").fill("model.block");
  await rows.filter({ hasText: "down.weight" }).or(rows.filter({ hasText: "weight" })).last().click();
  await page.locator(".map .chunk").first().waitFor();
  await page.screenshot({ path: path.join(here, "page.png") });
  await close();
  server.stop();
}

drawSession();
if (!process.argv.includes("--session")) await takePicture();
fs.rmSync(scratch, { recursive: true, force: true });
