/** Chooses the order in which functions are stored, for gzip, which repeats only what is among the last 32 KiB. */
import zlib from "node:zlib";

const SEEN = 32768;
const RUN = 6; // the number of bytes that are worth repeating
const FAVORS = [5, 10, 15, 20, 30, 40, 60, 150]; // bytes added to each size: the more, the later small functions come. Which is best varies

/** Returns a hash of each different run of RUN bytes in a function. */
function runsOf(body) {
  const runs = new Set();
  for (let i = 0; i + RUN <= body.length; i++) {
    let hash = 0;
    for (let j = i; j < i + RUN; j++) hash = (Math.imul(hash, 16777619) ^ body[j]) >>> 0;
    runs.add(hash);
  }
  return [...runs];
}

/** Orders `bodies`, and returns their indices. The order begins with `first`. Next comes the function that, for its size
 *  and `favor`, has the most runs in common with the bytes that gzip still remembers then. */
function ordered(bodies, runs, first, favor) {
  const owners = new Map(), seen = new Map(), common = new Float64Array(bodies.length);
  runs.forEach((list, i) => list.forEach((run) => (owners.get(run) ?? owners.set(run, []).get(run)).push(i)));
  const count = (i, step) => {
    for (const run of runs[i]) {
      const before = seen.get(run) ?? 0;
      seen.set(run, before + step);
      if (before === 0 || before + step === 0) for (const owner of owners.get(run)) common[owner] += step;
    }
  };
  const order = [], left = new Set(bodies.keys());
  let oldest = 0, size = 0;
  const place = (i) => {
    left.delete(i);
    order.push(i);
    count(i, 1);
    for (size += bodies[i].length; size - bodies[order[oldest]].length > SEEN; oldest++) {
      count(order[oldest], -1);
      size -= bodies[order[oldest]].length;
    }
  };
  const share = (i) => (common[i] + 1) / (bodies[i].length + favor);
  first.forEach(place);
  while (left.size) place([...left].reduce((best, i) => (share(i) > share(best) ? i : best)));
  return order;
}

/** The numbers of `bodies` in an order that begins with `first`: of several orders, the one that gzip makes the smallest. */
export function nearAlike(bodies, first) {
  const runs = bodies.map(runsOf), orders = FAVORS.map((favor) => ordered(bodies, runs, first, favor));
  const sizes = orders.map((order) => zlib.deflateRawSync(Buffer.concat(order.map((i) => bodies[i])), { level: 9 }).length);
  return orders[sizes.indexOf(Math.min(...sizes))];
}
