/** Makes what a page waits for arrive late, by a time that a seed decides, so that tests and views that rely on what usually comes first
 *  fail on any machine. */

/** In the page, before its scripts: what goes to and comes from each worker keeps its order but arrives up to `most` ms late, and so do sizes
 *  of elements. Answers to `fetch`, scripts that are imported on demand and the contents of files are late independently of each other. */
function delay({ most, seed }) {
  let state = seed;
  const random = () => { // mulberry32
    state = state + 0x6d2b79f5 | 0;
    let t = Math.imul(state ^ state >>> 15, 1 | state);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
    return ((t ^ t >>> 14) >>> 0) / 2 ** 32;
  };
  const wait = setTimeout, later = (body) => wait(body, random() * most);
  /** Returns a function that calls what it is given later, but never before what it was given earlier. */
  const inOrder = () => {
    const queue = [];
    return (body) => {
      const turn = { body, isDue: false };
      queue.push(turn);
      later(() => {
        turn.isDue = true;
        while (queue[0]?.isDue) queue.shift().body();
      });
    };
  };

  const NativeWorker = Worker, post = NativeWorker.prototype.postMessage, terminate = NativeWorker.prototype.terminate;
  const orders = new WeakMap(), ended = new WeakSet();
  globalThis.Worker = class extends NativeWorker {
    constructor(...args) {
      super(...args);
      const arrive = inOrder();
      orders.set(this, inOrder());
      for (const kind of ["message", "messageerror", "error"])
        this.addEventListener(kind, (event) => { // the first listener
          if (!event.isTrusted) return;
          event.stopImmediatePropagation();
          event.preventDefault(); // an error that a listener of the page hears is not reported as the page's own
          const copy = kind === "error" ? new ErrorEvent(kind, { message: event.message }) : new MessageEvent(kind, { data: event.data });
          arrive(() => { if (!ended.has(this)) this.dispatchEvent(copy); });
        });
    }
  };
  globalThis.Worker.prototype.postMessage = function (message, transfer = []) {
    const copy = structuredClone(message, { transfer });
    orders.get(this)(() => post.call(this, copy));
  };
  globalThis.Worker.prototype.terminate = function () {
    ended.add(this);
    terminate.call(this);
  };

  globalThis.ResizeObserver = class extends ResizeObserver {
    constructor(hear) {
      const arrive = inOrder();
      super((entries, observer) => arrive(() => hear(entries, observer)));
    }
  };
  const answerLate = (object, name) => {
    const call = object[name];
    object[name] = function (...args) { return call.apply(this, args).finally(() => new Promise(later)); };
  };
  answerLate(globalThis, "fetch");
  for (const name of ["arrayBuffer", "text"]) answerLate(Blob.prototype, name);
}

/** Makes everything late in the pages of a context, by up to `most` ms. */
export async function makeLate(context, most, seed) {
  await context.addInitScript(delay, { most, seed });
  await context.route(/\/assets\/[^/]*\.js$/, async (route) => {
    const mixed = [...new URL(route.request().url()).pathname].reduce((sum, c) => (sum * 31 + c.charCodeAt(0)) % 99991, seed);
    await new Promise((resolve) => { setTimeout(resolve, mixed / 99991 * most); });
    await route.fallback();
  });
}
