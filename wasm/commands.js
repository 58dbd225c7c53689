/** The options of calls, with their types. Made by wasm/commands.mjs from the table in core/commands. */
export const OPTIONS = {
  canonicalize: { prefix: "text", map: "document", inverse: "flag" },
  convert: { to: "text", worldSize: "count", canonical: "flag", modules: "document", prefix: "text", rename: "texts", maxShardSize: "size", against: "any", map: "document", inverse: "flag", dequantize: "flag", quantize: "text", noQuantize: "texts", lora: "any", include: "texts", exclude: "texts", dtype: "text", forTorch: "text", rawCast: "flag", objects: "text", maxMem: "size", ignoreCrc: "flag", noChecksums: "flag", allowExpansion: "flag", signal: "signal", onProgress: "function" },
  diff: { map: "document", inverse: "flag", dequantize: "flag", atol: "real", rtol: "real", layout: "flag", canonical: "flag", modules: "document", rule: "texts", baseline: "document", allowExpansion: "flag" },
  inspect: { include: "texts", exclude: "texts", hash: "text", stats: "flag", allowExpansion: "flag" },
  layout: { chunks: "flag", hash: "text", include: "texts", exclude: "texts", allowExpansion: "flag" },
  manifest: { hash: "text", include: "texts", exclude: "texts", canonical: "flag", modules: "document", map: "document", inverse: "flag", dequantize: "flag", allowExpansion: "flag" },
  open: { part: "text", step: "text", shards: "document", salvage: "flag", primary: "text" },
  optimizer: { modules: "document", flatParams: "document", worldSize: "count", sharded: "flag", rank: "count", at: "text", maxMem: "size", allowExpansion: "flag" },
  plan: { target: "document", mesh: "text", placements: "text", map: "document", inverse: "flag", dequantize: "flag", quantize: "text", noQuantize: "texts", canonical: "flag", modules: "document", prefix: "text", lora: "any", include: "texts", exclude: "texts", rename: "texts", to: "text", maxShardSize: "size", objects: "text", dtype: "text", forTorch: "text", rawCast: "flag", noChecksums: "flag", storage: "document", worldSize: "count", items: "flag" },
  read: { allowExpansion: "flag" },
  reshard: { target: "document", mesh: "text", placements: "text", to: "text", canonical: "flag", modules: "document", map: "document", inverse: "flag", dequantize: "flag", quantize: "text", noQuantize: "texts", include: "texts", exclude: "texts", dtype: "text", forTorch: "text", rawCast: "flag", objects: "text", maxMem: "size", ignoreCrc: "flag", noChecksums: "flag", allowExpansion: "flag", signal: "signal", onProgress: "function" },
  validate: { deep: "flag", layout: "document", against: "any", prefix: "text", exclude: "texts", allow: "text", rule: "texts", baseline: "document" },
  verify: { allow: "text", map: "document", inverse: "flag", dequantize: "flag", allowExpansion: "flag" },
};
