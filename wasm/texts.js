/** Converts texts to UTF-8 and back. Names in checkpoints may have lone surrogates, which Python encodes by 'surrogatepass' as
 *  three bytes each; TextEncoder and TextDecoder replace them. */

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // a name may begin with U+FEFF

const LONE = /(\p{Cs})/u; // with this flag, surrogates of pairs do not match

function encodedSurrogate(surrogate) {
  const unit = surrogate.charCodeAt(0);
  return [0xe0 | (unit >> 12), 0x80 | ((unit >> 6) & 63), 0x80 | (unit & 63)];
}

export function encoded(text) {
  if (!LONE.test(text)) return encoder.encode(text);
  const parts = text.split(LONE).map((part, i) => (i % 2 ? encodedSurrogate(part) : encoder.encode(part)));
  const bytes = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

const isSurrogate = (bytes, at) => bytes[at] === 0xed && bytes[at + 1] >= 0xa0 && bytes[at + 1] < 0xc0 && (bytes[at + 2] & 0xc0) === 0x80;

export function decoded(bytes) {
  const text = decoder.decode(bytes);
  if (!text.includes("\ufffd")) return text;
  let result = "", from = 0;
  for (let at = 0; at < bytes.length; at++) {
    if (!isSurrogate(bytes, at)) continue;
    result += decoder.decode(bytes.subarray(from, at)) + String.fromCharCode(0xd000 | ((bytes[at + 1] & 63) << 6) | (bytes[at + 2] & 63));
    from = at + 3;
  }
  return result + decoder.decode(bytes.subarray(from));
}
