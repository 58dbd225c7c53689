/** Reads `__metadata__` of safetensors files: texts of their writers, which a catalog of tensors does not contain. */
import type { SourceFile } from "../../wasm/tessera.js";

const MOST_HEADER = 32 << 20, MOST_FILES = 64;

export interface FileMetadata { readonly file: string; readonly texts: Readonly<Record<string, string>> }

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

/** Reads the first files; those without texts are left out. */
export function fileMetadata(files: readonly SourceFile[]): FileMetadata[] {
  return files.filter((f) => f.name.endsWith(".safetensors")).slice(0, MOST_FILES)
    .map((f) => ({ file: f.name, texts: metadataOf(f) })).filter(({ texts }) => Object.keys(texts).length > 0);
}
