/** Decides what a new checkpoint replaces in a directory, as the command line does: from what the old checkpoint's files
 *  contain, and never because of a name alone. Node only. */
import fs from "node:fs";
import path from "node:path";
import { TesseraError } from "./errors.js";

const METADATA = ".metadata", MEGATRON = "metadata.json", INDEX = "model.safetensors.index.json", MODEL = "model.safetensors";
const HEAD_BYTES = 512, MOST_JSON = 1 << 16, MOST_HEADER = 100_000_000;
const ZIP_HEADER_BYTES = 30; // of a member, before its name
const FIRST_MEMBERS = /\/(data\.pkl|version|\.format_version|byteorder)$/;
const LEGACY_NUMBER = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."; // torch.save's magic number, in a pickle

export const refusal = (message) => new TesseraError(message, "exists", undefined);

const jsonOf = (at) => {
  try {
    return JSON.parse(fs.readFileSync(at, "utf8"));
  } catch {
    return undefined;
  }
};

export const isSidecar = (at) => jsonOf(at)?.schema === "tessera.objects/1";

/** Reads bytes of a file, fewer where it ends. */
function bytesAt(at, offset, size) {
  const fd = fs.openSync(at, "r"), bytes = Buffer.alloc(size);
  try {
    return bytes.subarray(0, fs.readSync(fd, bytes, 0, size, offset));
  } finally {
    fs.closeSync(fd);
  }
}

/** Returns the size of a safetensors file's header, or undefined if it cannot be one. */
function headerBytes(head, size) {
  const length = head.length > 8 ? Number(head.readBigUInt64LE(0)) : MOST_HEADER + 1;
  return length <= MOST_HEADER && length <= size - 8 && head[8] === 0x7b ? length : undefined;
}

/** Returns what a file is by its first bytes: "torch", "safetensors", or undefined. */
function kindOf(at, size) {
  const head = bytesAt(at, 0, HEAD_BYTES), text = head.toString("latin1");
  const member = text.startsWith("PK\x03\x04") && head.length > ZIP_HEADER_BYTES ? text.substr(ZIP_HEADER_BYTES, head.readUInt16LE(26)) : "";
  if (FIRST_MEMBERS.test(member) || (text[0] === "\x80" && text.includes(LEGACY_NUMBER))) return "torch";
  return headerBytes(head, size) === undefined ? undefined : "safetensors";
}

/** Whether a file holds tensors for a reader that finds no list of files. */
function hasTensors({ name, size, kind }) {
  if (name.endsWith(".distcp")) return size > 0; // an empty file is from a rank that had nothing to write
  return kind !== undefined || name.endsWith(".safetensors");
}

const isMarker = ({ name }) => /(\.metadata|\.index\.json)$/.test(name);

function filesIn(directory) {
  const files = [];
  for (const name of fs.readdirSync(directory)) {
    const at = path.join(directory, name), info = fs.statSync(at, { throwIfNoEntry: false });
    if (info?.isFile()) files.push({ name, at, size: info.size, kind: kindOf(at, info.size) });
  }
  return files;
}

const unreadable = (directory, name) => refusal(`'${directory}' cannot be replaced: its '${name}' cannot be read, so it is unclear which files belong to it; remove the directory, or write to another one`);

/** Whether a pickle has a text, before which it states the number of its bytes. */
function hasText(pickle, text) {
  const bytes = Buffer.from(text), size = Buffer.alloc(4);
  size.writeUInt32LE(bytes.length);
  return pickle.includes(Buffer.concat([Buffer.from("X"), size, bytes])) || (bytes.length < 256 && pickle.includes(Buffer.concat([Buffer.from([0x8c, bytes.length]), bytes])));
}

/** The files of a DCP: data files that its metadata names. A metadata.json that states the form torch_dist makes it a
 *  checkpoint of Megatron, to which a common.pt belongs. */
function ownOfDcp(directory, files) {
  const metadata = fs.readFileSync(path.join(directory, METADATA));
  const sum = /^[ \t]{64}\n$/.test(metadata.subarray(-65).toString("latin1")) ? 65 : 0; // a checksum (core/formats/common/end_sum.h)
  if (metadata[0] !== 0x80 || metadata.at(-1 - sum) !== 0x2e) throw unreadable(directory, METADATA); // not a complete pickle
  const json = files.find(({ name, size }) => name === MEGATRON && size <= MOST_JSON);
  const isMegatron = json !== undefined && jsonOf(json.at)?.sharded_backend === "torch_dist";
  return files.filter(({ name }) => name === METADATA || (name.endsWith(".distcp") && hasText(metadata, name)) || (isMegatron && [MEGATRON, "common.pt"].includes(name)));
}

/** The files of an index: those that it names. If none of them exists, files with tensors may be another checkpoint, to
 *  which the index does not belong. */
function ownOfIndex(directory, files) {
  const map = jsonOf(path.join(directory, INDEX))?.weight_map;
  if (typeof map !== "object" || map === null) throw unreadable(directory, INDEX);
  const named = new Set(Object.values(map)), own = files.filter(({ name }) => named.has(name));
  if (!own.length && files.some(hasTensors)) throw refusal(`'${directory}' cannot be replaced: '${INDEX}' lists no existing file, but there are other files with tensors, so it is unclear which of them form the old checkpoint; move the index away, or write to another directory`);
  return [...own, ...files.filter(({ name }) => name === INDEX)];
}

const isSharded = ({ name, at, size, kind }) => kind === "safetensors" && /^shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors$/.test(name)
  && bytesAt(at, 8, headerBytes(bytesAt(at, 0, HEAD_BYTES), size)).includes("DCP_SHARDING_INFO");

/** Files per rank are a checkpoint if they are all that has tensors. The file of a single rank may be any file. */
function ownOfRanks(files) {
  const data = files.filter(hasTensors), isTorch = data.length > 1 && data.every(({ name, kind }) => kind === "torch" && /^rank\d+\.pt$/.test(name));
  return isTorch || data.every(isSharded) ? data : [];
}

/** Next to an index, transformers loads a model in one file. Without one, that file is the checkpoint which an index replaces
 *  if nothing else is: a model that fits in one shard is written so. */
function ownFiles(directory, files, written) {
  const has = (wanted) => files.some(({ name }) => name === wanted), model = files.filter(({ name, kind }) => name === MODEL && kind === "safetensors");
  if (has(METADATA)) return ownOfDcp(directory, files);
  if (has(INDEX)) return model.length ? model : ownOfIndex(directory, files);
  const own = ownOfRanks(files);
  return own.length || !written.has(INDEX) || files.some((file) => file !== model[0] && (isMarker(file) || hasTensors(file))) ? own : model;
}

/** Refuses a kept model in one file, which transformers would load instead of the new index. */
function refuseHidden(directory, kept, written) {
  if (!written.has(INDEX) || !kept.some(({ name }) => name === MODEL)) return;
  throw refusal(`'${directory}' cannot be replaced: '${MODEL}' in it does not belong to the checkpoint there and would be kept, and transformers would load it instead of the new '${INDEX}'; move it away, or write to another directory`);
}

/** Refuses files that stay and would be taken for part of the new checkpoint. A .metadata takes precedence over all of
 *  them, unless it is Megatron's. */
function refuseSpoilers(directory, kept, written) {
  if (written.has(METADATA) && !written.has(MEGATRON)) return;
  const hasMarker = written.has(MEGATRON) || written.has(INDEX);
  const spoiler = kept.find((file) => isMarker(file) || (!hasMarker && hasTensors(file)));
  if (spoiler) throw refusal(`'${directory}' cannot be replaced: '${spoiler.name}' in it is not listed by the checkpoint there and would be mistaken for part of the new one; move it away, or write to another directory`);
}

/** Returns the names in a directory that stay when files with the names `written` replace the checkpoint there. Throws if
 *  the checkpoint cannot be replaced. */
export function keptNames(directory, written) {
  const files = filesIn(directory), own = new Set(ownFiles(directory, files, written).map(({ name }) => name));
  for (const { name, at } of files) if (/^objects(-g\d+)?\.json$/.test(name) && written.has(name) && isSidecar(at)) own.add(name);
  const others = files.filter(({ name }) => !own.has(name));
  refuseSpoilers(directory, others, written);
  refuseHidden(directory, others, written);
  const kept = fs.readdirSync(directory).filter((name) => !own.has(name)), blocked = kept.find((name) => written.has(name));
  if (blocked !== undefined) throw refusal(`'${blocked}' in '${directory}' is not part of the checkpoint there and blocks the write`);
  return kept;
}
