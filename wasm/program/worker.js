/** The thread in which the program runs, from its beginning to its end, without returning to Node's event loop. */
import fs from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import { Exit, System } from "./system.js";
import { locker } from "./locks.js";
import { STATE } from "./state.js";

const { words, columns } = workerData, state = new Int32Array(workerData.state);

/** Asks the main thread, which can wait for events, and waits for its answer. */
function ask(what, name) {
  Atomics.store(state, STATE.ANSWER, 0);
  parentPort.postMessage({ what, name });
  Atomics.wait(state, STATE.ANSWER, 0);
  return Atomics.load(state, STATE.ANSWER) === 1;
}

const signals = {
  pending: () => Atomics.load(state, STATE.SIGNAL),
  unfinished: (is) => {
    if (!is && signals.pending()) throw new Exit(128 + signals.pending(), signals.pending());
    // The main thread has begun to end the process: nothing may be created any more.
    if (Atomics.compareExchange(state, STATE.WORK, is ? 0 : 1, is ? 1 : 0) === 2) Atomics.wait(state, STATE.WORK, 2);
  },
};
const system = new System({ columns, lock: locker(process.platform, ask), signals });

function run() {
  const module = new WebAssembly.Module(fs.readFileSync(new URL("./program.wasm", import.meta.url)));
  const { exports } = new WebAssembly.Instance(module, system.imports());
  system.attach(exports);
  exports.__wasm_call_ctors();
  const texts = words.map((word) => Buffer.from(`${word}\0`)), list = exports.malloc(4 * (texts.length + 1)), at = texts.map((text) => exports.malloc(text.length));
  texts.forEach((text, i) => {
    system.bytes(at[i], text.length).set(text);
    system.view.setUint32(list + 4 * i, at[i], true);
  });
  system.view.setUint32(list + 4 * texts.length, 0, true);
  exports.tessera_run(texts.length, list);
}

try {
  run();
} catch (error) {
  if (!(error instanceof Exit)) throw error;
  parentPort.postMessage({ what: "end", status: error.status, signal: error.signal });
}
