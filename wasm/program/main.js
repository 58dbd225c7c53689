#!/usr/bin/env node
/** `tessera-checkpoint`: the command line of Tessera, in WebAssembly. The program runs in a thread of its own, so that this one receives signals. */
import os from "node:os";
import { Worker } from "node:worker_threads";
import { VALUES } from "./values.js";
import { lockServer } from "./locks.js";
import { toArguments } from "./paths.js";
import { STATE } from "./state.js";

const shared = new SharedArrayBuffer(STATE.SIZE), state = new Int32Array(shared), serve = lockServer(), heeded = ["SIGINT", "SIGTERM", "SIGHUP"];
const words = toArguments(["tessera", ...process.argv.slice(2)], (name) => (name === "-o" ? "path" : VALUES[process.argv[2]]?.[name] ?? "flag"), process.platform === "win32");
const columns = [0, process.stdout.isTTY ? process.stdout.columns : 0, process.stderr.isTTY ? process.stderr.columns : 0];

/** Dies of a signal, as a shell expects. */
function dieOf(signal) {
  const name = Object.entries(os.constants.signals).find(([, number]) => number === signal)[0];
  process.exitCode = 128 + signal; // where a process cannot die of this signal
  process.removeAllListeners(name);
  if (name === "SIGPIPE") process.on(name, () => {}).removeAllListeners(name); // Node ignores it at first
  try {
    process.kill(process.pid, name);
  } catch { /* Windows has few of them */ }
}

function onSignal(name) {
  const number = os.constants.signals[name];
  if (Atomics.compareExchange(state, STATE.WORK, 0, 2) === 0) dieOf(number);
  else Atomics.compareExchange(state, STATE.SIGNAL, 0, number);
}

for (const name of heeded) process.on(name, onSignal);
const worker = new Worker(new URL("./worker.js", import.meta.url), { workerData: { words, columns, state: shared } });
worker.on("message", async ({ what, name, status, signal }) => {
  if (what !== "end") {
    Atomics.store(state, STATE.ANSWER, (await serve(what, name)) ? 1 : 2);
    Atomics.notify(state, STATE.ANSWER);
  } else if (signal) dieOf(signal);
  else process.exitCode = status;
});
worker.on("error", (error) => {
  process.stderr.write(`tessera: internal error: ${error?.stack ?? error}\n`);
  process.exitCode = 2;
});
worker.on("exit", () => heeded.forEach((name) => process.off(name, onSignal)));
