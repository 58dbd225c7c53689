/** What run.mjs times, in the page. */

const filesOf = (i) => [...document.getElementById(`files${i}`).files];
const seconds = async (body) => {
  const begin = performance.now();
  await body();
  return (performance.now() - begin) / 1000;
};

/* ---- the page's own worker ---- */

let fetching; // as the page has it: compiled once, and lent to every worker

/** Starts the worker of web/dist; `call` sends a request and gives its answer. */
async function viewer({ worker: script, first, second }) {
  fetching ??= Promise.all([first, second].map(async (name) => WebAssembly.compile(await (await fetch(`assets/${name}`)).arrayBuffer())));
  const [module, writers] = await fetching, worker = new Worker(`assets/${script}`, { type: "module" }), waiting = new Map();
  worker.onmessage = ({ data }) => {
    if (data.asks === "writers") return worker.postMessage({ writers });
    const { resolve, reject } = waiting.get(data.id) ?? {};
    if ("gives" in data) resolve?.(data.gives);
    else if ("trouble" in data) reject?.(new Error(data.trouble.message));
  };
  worker.onerror = (e) => { throw new Error(e.message); };
  worker.postMessage({ module });
  let next = 1;
  return { call: (kind, takes) => new Promise((resolve, reject) => { waiting.set(next, { resolve, reject }); worker.postMessage({ id: next++, kind, takes }); }) };
}

const openingOf = (i) => {
  const files = filesOf(i), one = files.length === 1 ? { primary: files[0].name } : {};
  return { title: "x", files: files.map((file) => ({ name: file.name, size: file.size, file })), ...one };
};

let job; // as run.mjs asks for it

/** Another worker with the same files, as the page starts it. */
async function join() {
  const member = await viewer(job);
  for (let i = 0; i < job.count; i++) await member.call("open", { side: "ab"[i], opening: openingOf(i) });
  return member;
}

const jobs = {
  async deep(first) {
    const { checkBytes } = await import(`./assets/${job.team}`);
    const { list } = await checkBytes(first, join, openingOf(0));
    if (list.some((f) => f.level === "error")) throw new Error(`findings: ${list[0].message}`);
  },
  async diff(first) {
    const { compareValues } = await import(`./assets/${job.team}`);
    const diff = await compareValues(first, join, { canonical: false, map: {}, openings: [openingOf(0), openingOf(1)] });
    if (!diff.same) throw new Error("the two differ");
  },
  async convert({ call }) {
    const directory = await navigator.storage.getDirectory();
    await call("write", { writing: { what: "convert", options: { to: "safetensors", objects: "drop" } }, place: { kind: "download", directory, name: "out", base: "out.safetensors" } });
  },
};

async function timed(wanted) {
  job = wanted;
  const first = await join();
  return seconds(() => jobs[job.side](first));
}

/* ---- the browser's own read ---- */

/** Shares of about the same size: [{ file, from, to, at }], where `at` is the place in one file that has all of them. */
function shares(files, workers) {
  const total = files.reduce((sum, f) => sum + f.size, 0), each = Math.ceil(total / workers), lists = Array.from({ length: workers }, () => []);
  let at = 0;
  for (const file of files) {
    for (let from = 0; from < file.size;) {
      const worker = Math.min(Math.floor(at / each), workers - 1), to = Math.min(file.size, from + (worker + 1) * each - at);
      lists[worker].push({ file, from, to, at });
      at += to - from;
      from = to;
    }
  }
  return lists;
}

async function raw(job) {
  const files = Array.from({ length: job.count }, (_, i) => filesOf(i)).flat(), workers = shares(files, job.workers).map(() => new Worker("reader.js", { type: "module" }));
  const answers = () => Promise.all(workers.map((w) => new Promise((resolve, reject) => { w.onmessage = ({ data }) => resolve(data); w.onerror = (e) => reject(new Error(e.message)); })));
  const ready = answers();
  workers.forEach((w) => w.postMessage("begin"));
  await ready;
  const total = files.reduce((sum, f) => sum + f.size, 0);
  return seconds(async () => {
    const done = answers(), lists = shares(files, job.workers);
    workers.forEach((w, i) => w.postMessage({ method: job.method, parts: lists[i], writes: job.side === "copy" ? `copy${i}` : undefined }));
    const read = (await done).reduce((sum, n) => sum + n, 0);
    if (read !== total) throw new Error(`${read} bytes were read of ${total}`);
  });
}

globalThis.measure = (job) => (job.side in jobs ? timed(job) : raw(job));
