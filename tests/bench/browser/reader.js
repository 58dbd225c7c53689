/** Reads ranges of files as fast as the browser does, 16 MiB at a time, and writes them to a file of the origin where it is asked to. */
const STEP = 16 << 20;
const reader = new FileReaderSync();

const methods = {
  async *arrayBuffer(blob) {
    for (let at = 0; at < blob.size; at += STEP) yield new Uint8Array(await blob.slice(at, at + STEP).arrayBuffer());
  },
  *sync(blob) {
    for (let at = 0; at < blob.size; at += STEP) yield new Uint8Array(reader.readAsArrayBuffer(blob.slice(at, at + STEP)));
  },
  /** One buffer is filled again and again, a part of STEP at a time: more is slower. */
  async *byob(blob) {
    const from = globalThis.reading = blob.stream().getReader({ mode: "byob" }); // if nothing refers to it, it is collected as garbage, and its reads never end
    for (let buffer = new ArrayBuffer(STEP >> 4); ;) {
      const { done, value } = await from.read(new Uint8Array(buffer));
      if (done) return;
      yield value;
      buffer = value.buffer;
    }
  },
  async *stream(blob) {
    for (const from = blob.stream().getReader(); ;) {
      const { done, value } = await from.read();
      if (done) return;
      yield value;
    }
  },
};

onmessage = async ({ data }) => {
  if (data === "begin") return postMessage("ready");
  let read = 0;
  const { method, parts, writes } = data;
  const access = writes && await (await (await navigator.storage.getDirectory()).getFileHandle(writes, { create: true })).createSyncAccessHandle();
  for (const { file, from, to } of parts) {
    for await (const bytes of methods[method](file.slice(from, to))) {
      access?.write(bytes, { at: read });
      read += bytes.length;
    }
  }
  access?.flush();
  access?.close();
  return postMessage(read);
};
