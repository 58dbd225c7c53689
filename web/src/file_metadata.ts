/** `__metadata__` of safetensors files: texts of their writers. */
import type { SourceFile } from "../../wasm/tessera.js";

const MOST_HEADER = 32 << 20, MOST_FILES = 64;

/** `file` is undefined for the texts that are equal in all files. */
export interface FileMetadata { readonly file: string | undefined; readonly texts: Readonly<Record<string, string>> }

function metadataOf(file: SourceFile): Record<string, string> {
  const length = new Uint8Array(8);
  if (file.size < 8) return {};
  file.read(0, length);
  const size = Number(new DataView(length.buffer).getBigUint64(0, true));
  if (size > Math.min(MOST_HEADER, file.size - 8)) return {};
  const header = new Uint8Array(size);
  file.read(8, header);
  const { __metadata__: found } = JSON.parse(new TextDecoder().decode(header)) as { __metadata__?: Record<string, string> };
  return found ?? {};
}

/** Returns the texts that all files share, and those of each of the first files that are not among them. A `tessera.` key is a
 *  checksum of its file. */
export function fileMetadata(shared: Readonly<Record<string, string>>, files: readonly SourceFile[]): FileMetadata[] {
  const own = files.filter((f) => f.name.endsWith(".safetensors")).slice(0, MOST_FILES)
    .map((f) => ({ file: f.name, texts: Object.fromEntries(Object.entries(metadataOf(f)).filter(([key, text]) => shared[key] !== text && !key.startsWith("tessera."))) }));
  return [{ file: undefined, texts: shared }, ...own].filter(({ texts }) => Object.keys(texts).length > 0);
}
