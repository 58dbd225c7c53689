/** What a conversion calls after a sink or a signal ended it. */
import path from "node:path";
import { filesOf } from "../../wasm/node.js";
import { MemorySink } from "./conversions.mjs";
import { check, same, testAsync } from "./harness.mjs";

export async function testSinks({ tessera, root }) {
  const target = path.join(root, "samples/checkpoints/dcp_fsdp2");
  const convert = async (options, sink, from = target) => {
    const source = filesOf(from), opened = tessera.open(source.files, source.options);
    try {
      return await opened.convert(options, sink).then(() => undefined, (error) => error);
    } finally {
      opened.close();
      source.close();
    }
  };
  const mine = new Error("mine");

  await testAsync("a sink that throws is called for abort alone", async () => {
    for (const to of ["dcp", "torch"]) {
      const sink = new MemorySink(), write = sink.write.bind(sink);
      let count = 0;
      sink.write = (...args) => {
        if (++count < 2) return write(...args);
        sink.calls.push("thrown");
        throw mine;
      };
      check(await convert({ to }, sink) === mine, "another error");
      same("abort", sink.calls.slice(sink.calls.indexOf("thrown") + 1).join(), `${to}: calls after the error`);
    }
  });

  await testAsync("abort is called when nothing that the sink began is under way", async () => {
    const sink = new MemorySink(true), write = sink.write.bind(sink);
    let count = 0, underWay = 0, then;
    sink.write = (...args) => {
      if (++count === 2) return Promise.reject(mine);
      underWay++;
      return write(...args).then(() => new Promise((resolve) => setTimeout(resolve, 20))).finally(() => underWay--);
    };
    sink.abort = () => (then = underWay);
    check(await convert({ to: "dcp" }, sink) === mine && count > 2 && then === 0, `${then} of ${count} writes were under way`);
  });

  await testAsync("what went wrong first is thrown where abort fails too", async () => {
    for (const abort of [() => { throw new Error("second"); }, () => Promise.reject(new Error("second"))]) {
      const sink = new MemorySink();
      Object.assign(sink, { write() { throw mine; }, abort });
      check(await convert({ to: "dcp" }, sink) === mine, "another error");
    }
  });

  await testAsync("an abort while files are being finished leaves no marker", async () => {
    const sink = new MemorySink(), control = new AbortController(), finish = sink.finish.bind(sink);
    sink.finish = (name) => {
      finish(name);
      control.abort(mine);
    };
    check(await convert({ to: "dcp", signal: control.signal }, sink) === mine, "it went on");
    check(!sink.calls.includes("create .metadata") && sink.calls.at(-1) === "abort", `${sink.calls.slice(-4)}`);
  });
}
