/** Conversions: alternates the module's steps and the work of the sink. */

const MORE = 1;

/** Lets other tasks run, such as one that aborts. Browsers would let a timer wait for 4 ms. */
const turn = () => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); resolve(); };
  port2.postMessage(null);
});

/** The functions of a sink that the module calls. Markers are held back until every other file is finished. */
class SinkCalls {
  #sink;
  #files = []; // by the module's number of a file
  #byName = new Map();
  #pending = [];

  constructor(sink) { this.#sink = sink; }

  /** A file may be announced before it is written. It then has two numbers. */
  create(number, name, size, isMarker) {
    let file = this.#byName.get(name);
    if (!file) {
      file = { name, isMarker, held: [] };
      this.#byName.set(name, file);
      if (!isMarker) this.#add(this.#sink.create(name, size));
    }
    this.#files[number] = file;
  }

  write(number, offset, bytes) {
    const file = this.#files[number];
    if (file.isMarker) file.held.push({ offset, bytes: bytes.slice() });
    else this.#add(this.#sink.write(file.name, offset, bytes));
  }

  /** A promise that is rejected while the module waits for a file must not end the process. */
  #add(result) {
    const pending = Promise.resolve(result);
    pending.catch(() => {});
    this.#pending.push(pending);
  }

  async settle() {
    const pending = this.#pending;
    this.#pending = [];
    const failed = (await Promise.allSettled(pending)).find(({ status }) => status === "rejected"); // after this no call is in progress
    if (failed) throw failed.reason;
  }

  async finish(signal) {
    const files = [...this.#byName.values()], sink = this.#sink;
    for (const file of files.filter((f) => !f.isMarker)) {
      await sink.finish(file.name);
      signal?.throwIfAborted();
    }
    for (const { name, held } of files.filter((f) => f.isMarker)) {
      await sink.create(name, held.reduce((end, { offset, bytes }) => Math.max(end, offset + bytes.length), 0));
      for (const { offset, bytes } of held) await sink.write(name, offset, bytes);
      await sink.finish(name);
      signal?.throwIfAborted();
    }
    await sink.done?.();
  }
}

async function takeSteps(m, job, calls, { signal, onProgress }) {
  for (let more = true; more;) {
    signal?.throwIfAborted();
    more = await m.checkedAsync("tessera_convert_step", job) === MORE;
    await calls.settle();
    const [done, total] = [0, 1].map((all) => Number(BigInt.asUintN(64, m.x.tessera_convert_bytes(job, all))));
    await onProgress?.({ done, total });
    await turn();
  }
  signal?.throwIfAborted();
}

/** Performs convert or reshard. `pairs` are the options for the core. Returns tessera.convert/1. */
export async function convertInto(m, handle, { reshards, pairs, signal, onProgress }, sink) {
  m.needsPrepared();
  const number = m.nextNumber++, calls = new SinkCalls(sink), started = Date.now();
  const job = m.withTable(pairs, ([table, count]) =>
    m.checked((err) => m.x.tessera_convert(handle, number, reshards ? 1 : 0, table, count / 2, err)));
  m.sinks.set(number, calls);
  try {
    await takeSteps(m, job, calls, { signal, onProgress });
    const result = m.document((err) => m.x.tessera_convert_document(job, (Date.now() - started) / 1000, err));
    await calls.finish(signal);
    return JSON.parse(result);
  } catch (e) {
    await calls.settle().catch(() => {});
    await Promise.resolve().then(() => sink.abort?.(e)).catch(() => {}); // the first error is the one to throw
    throw e;
  } finally {
    m.close(job);
    m.sinks.delete(number);
  }
}
