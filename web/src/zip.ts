/** Makes an uncompressed zip of files of the origin. It is a blob that refers to them, so none of them is in memory. */
const ZIP64 = 45, LIMIT = 0xffffffff, MOST_COUNT = 0xffff, UTF8 = 0x0800;
/** 1980-01-01, the earliest date, so that the same files make the same zip. */
const DATE = 0x21;

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let bit = 0; bit < 8; bit++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

async function crcOf(file: Blob, tell: (bytes: number) => void): Promise<number> {
  const reader = file.stream().getReader();
  let crc = 0xffffffff;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return (crc ^ 0xffffffff) >>> 0;
    for (let i = 0; i < value.length; i++) crc = (TABLE[(crc ^ (value[i] ?? 0)) & 0xff] ?? 0) ^ (crc >>> 8);
    tell(value.length);
  }
}

/** Returns little-endian fields, given as pairs of a width in bytes and a value. */
function fields(...pairs: readonly (readonly [2 | 4 | 8, number])[]): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(pairs.reduce((sum, [width]) => sum + width, 0)), view = new DataView(bytes.buffer);
  let at = 0;
  for (const [width, value] of pairs) {
    if (width === 2) view.setUint16(at, value, true);
    else if (width === 4) view.setUint32(at, value, true);
    else view.setBigUint64(at, BigInt(value), true);
    at += width;
  }
  return bytes;
}

interface Member { readonly name: Uint8Array<ArrayBuffer>; readonly size: number; readonly crc: number; readonly offset: number }

/** Every member has the zip64 field, so that there is one kind of header for all sizes. */
function localHeader({ name, size, crc }: Member): BlobPart[] {
  return [fields([4, 0x04034b50], [2, ZIP64], [2, UTF8], [2, 0], [2, 0], [2, DATE], [4, crc], [4, LIMIT], [4, LIMIT], [2, name.length], [2, 20]),
    name, fields([2, 1], [2, 16], [8, size], [8, size])];
}

function centralHeader({ name, size, crc, offset }: Member): BlobPart[] {
  return [fields([4, 0x02014b50], [2, ZIP64], [2, ZIP64], [2, UTF8], [2, 0], [2, 0], [2, DATE], [4, crc], [4, LIMIT], [4, LIMIT], [2, name.length], [2, 28], [2, 0], [2, 0], [2, 0], [4, 0], [4, LIMIT]),
    name, fields([2, 1], [2, 24], [8, size], [8, size], [8, offset])];
}

const sizeOf = (parts: readonly BlobPart[]): number => new Blob([...parts]).size;

function ending(count: number, size: number, offset: number): BlobPart[] {
  const few = Math.min(count, MOST_COUNT);
  return [
    fields([4, 0x06064b50], [8, 44], [2, ZIP64], [2, ZIP64], [4, 0], [4, 0], [8, count], [8, count], [8, size], [8, offset]),
    fields([4, 0x07064b50], [4, 0], [8, offset + size], [4, 1]),
    fields([4, 0x06054b50], [2, 0], [2, 0], [2, few], [2, few], [4, Math.min(size, LIMIT)], [4, Math.min(offset, LIMIT)], [2, 0]),
  ];
}

/** Reads each file once to compute its checksum. `tell` receives the number of bytes. */
export async function zipOf(files: readonly { readonly name: string; readonly file: Blob }[], tell: (bytes: number) => void): Promise<Blob> {
  const parts: BlobPart[] = [], central: BlobPart[] = [];
  let offset = 0;
  for (const { name, file } of files) {
    const member: Member = { name: new TextEncoder().encode(name), size: file.size, crc: await crcOf(file, tell), offset };
    const header = localHeader(member);
    parts.push(...header, file);
    central.push(...centralHeader(member));
    offset += sizeOf(header) + file.size;
  }
  return new Blob([...parts, ...central, ...ending(files.length, sizeOf(central), offset)], { type: "application/zip" });
}
