/** Makes torch.save files byte by byte. */
import zlib from "node:zlib";

const text = (s) => Buffer.concat([Buffer.from([0x58, s.length, 0, 0, 0]), Buffer.from(s)]);
const count = (n) => Buffer.from([0x4a, n & 255, (n >> 8) & 255, (n >> 16) & 255, (n >> 24) & 255]);

/** Takes the CRC from the end of a gzip stream, because Node 18 has no zlib.crc32. */
const crc32 = (bytes) => zlib.gzipSync(bytes).subarray(-8).readUInt32LE();

/** Makes a torch.save file of a pickle and storages: { name: bytes }. */
function torchFile(pickle, storages = {}) {
  const data = Object.entries(storages).map(([name, bytes]) => [`x/data/${name}`, bytes]);
  const members = [["x/data.pkl", pickle], ["x/byteorder", Buffer.from("little")], ...data, ["x/version", Buffer.from("3\n")]], locals = [], central = [];
  let at = 0;
  for (const [member, bytes] of members) {
    const head = Buffer.alloc(26);
    head.writeUInt32LE(crc32(bytes), 10);
    head.writeUInt32LE(bytes.length, 14);
    head.writeUInt32LE(bytes.length, 18);
    head.writeUInt16LE(member.length, 22);
    const entry = Buffer.alloc(16);
    entry.writeUInt32LE(at, 12);
    locals.push(Buffer.from("PK\x03\x04"), head, Buffer.from(member), bytes);
    central.push(Buffer.from("PK\x01\x02\0\0"), head, entry.subarray(2), Buffer.from(member));
    at += 30 + member.length + bytes.length;
  }
  const directory = Buffer.concat(central), end = Buffer.alloc(18);
  end.writeUInt16LE(members.length, 4);
  end.writeUInt16LE(members.length, 6);
  end.writeUInt32LE(directory.length, 8);
  end.writeUInt32LE(at, 12);
  return Buffer.concat([...locals, directory, Buffer.from("PK\x05\x06"), end]);
}

/** Makes a file whose pickle is a dict with one value: a global of a module. */
export const namingFile = (module, name) => torchFile(Buffer.concat([Buffer.from([0x80, 2, 0x7d]), text("a"), Buffer.from(`c${module}\n${name}\n`), Buffer.from("s.")]));

/** The float32 1.5. */
const VALUE = Buffer.from([0, 0, 0xc0, 0x3f]);

/** Makes a file with a float32 tensor of `elements` elements, all of which are the first one stored. */
export function expandedFile(elements, { name = "x", storage = VALUE } = {}) {
  const own = Buffer.concat([Buffer.from("("), text("storage"), Buffer.from("ctorch\nFloatStorage\n"), text("0"), text("cpu"), count(storage.length / 4), Buffer.from("tQ")]);
  const pickle = Buffer.concat([Buffer.from([0x80, 2, 0x7d]), text(name), Buffer.from("ctorch._utils\n_rebuild_tensor_v2\n("), own, count(0), count(elements), Buffer.from([0x85]), count(0), Buffer.from([0x85, 0x89]),
    Buffer.from("ccollections\nOrderedDict\n)RtRs.")]);
  return torchFile(pickle, { 0: storage });
}
