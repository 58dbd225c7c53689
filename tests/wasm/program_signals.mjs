/** How the command line for Node ends by signals and closed pipes, and that it runs under Node 18. */
import fs from "node:fs";
import path from "node:path";
import { spawn, spawnSync } from "node:child_process";
import { check, same, test } from "../support/harness.mjs";
import { programOf } from "./program.mjs";

export async function testProgramSignals(context) {
  const { node, root, samples } = context, { installed, runNative, runProgram, scratch } = programOf(context);

  /** Starts a conversion whose source is a pipe that never ends the data, so that the program is in the middle for as long as the test wants. */
  async function interrupted(signal, args, expected) {
    const directory = fs.mkdtempSync(path.join(scratch, "signal-"));
    fs.writeFileSync(path.join(directory, "kept"), "mine");
    const count = 2 ** 31, header = Buffer.from(JSON.stringify({ big: { dtype: "U8", shape: [count], data_offsets: [0, count] } }).padEnd(120)), size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(header.length));
    fs.writeFileSync(path.join(directory, "big.safetensors"), Buffer.concat([size, header]));
    fs.truncateSync(path.join(directory, "big.safetensors"), 8 + header.length + count);
    const child = spawn(node, [installed, ...args], { cwd: directory, stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    child.stderr.on("data", (text) => (said += text));
    const ended = new Promise((resolve) => child.on("exit", (status, by) => resolve({ status, by })));
    let sent = false; // once the unfinished output is there
    const watcher = setInterval(() => {
      if (sent || !fs.readdirSync(directory).some((name) => name.includes(".tessera-"))) return;
      sent = child.kill(signal);
    }, 5);
    const { status, by } = await ended;
    clearInterval(watcher);
    check(sent && by === signal, `it ends with ${status} by ${by}: ${said}`);
    check(expected.test(said), said);
    return { directory, names: fs.readdirSync(directory).sort() };
  }

  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
    await test(`a signal ends the program: ${signal}`, async () => {
      const { names } = await interrupted(signal, ["convert", "big.safetensors", "out.pt"], new RegExp(`tessera: ended by ${signal}; the unfinished output was removed`));
      same("big.safetensors kept", names.join(" "), "what is left");
    });
  }
  await test("an interrupted run can be resumed", async () => {
    const { directory } = await interrupted("SIGINT", ["convert", "big.safetensors", "out.pt", "--resume"], /ended by SIGINT; the finished work was kept/);
    const p = runProgram(directory, ["convert", "big.safetensors", "out.pt", "--resume"]);
    check(p.status === 0, p.stderr);
    same("big.safetensors kept out.pt", fs.readdirSync(directory).sort().join(" "), "what is left");
  });

  test("a closed pipe ends the program by SIGPIPE", () => {
    const p = spawnSync("bash", ["-c", `"$0" "$1" completions json | head -c 10 >/dev/null; echo \${PIPESTATUS[0]}`, node, installed], { encoding: "utf8" });
    check(p.stdout.trim() === "141" && p.stderr === "", p.stdout + p.stderr);
  });

  test("Node 18 runs it", () => {
    const place = path.join(root, ".local/node18"), old = path.join(place, "node_modules/node/bin/node");
    if (!fs.existsSync(old)) spawnSync("npm", ["install", "--silent", "--no-audit", "--no-fund", "--prefix", place, "node@18"]);
    const p = spawnSync(old, [installed, "validate", "--deep", path.join(samples, "dcp_fsdp2")], { encoding: "utf8" });
    const q = runNative(scratch, ["validate", "--deep", path.join(samples, "dcp_fsdp2")]);
    same(q.stdout, p.stdout, "output under Node 18");
    check(p.status === 0 && p.stderr === "", p.stderr);
  });
}
