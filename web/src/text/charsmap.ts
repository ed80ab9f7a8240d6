// The normalizer `Precompiled`: the table of characters that a SentencePiece model brings along.
import { RdrrError } from '../errors.js';

const MOST_BYTES = 5; // of a group of characters that is looked up whole
const encoder = new TextEncoder();

/** Return the function that replaces characters as a table says, which is a double array of UTF-8 keys and the texts they become. */
export function charsmap(base64: string): (text: string) => string {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const size = bytes.length >= 4 ? new DataView(bytes.buffer).getUint32(0, true) : 0;
  if (size % 4 || size + 4 > bytes.length) throw new RdrrError('format', 'tokenizer.json: the table of the normalizer Precompiled is damaged');
  const units = new Uint32Array(bytes.buffer.slice(4, 4 + size));
  const texts = bytes.subarray(4 + size);
  const become = (part: string): string | null => {
    const at = firstValue(units, encoder.encode(part));
    if (at === null) return null;
    const end = texts.indexOf(0, at);
    return new TextDecoder().decode(texts.subarray(at, end < 0 ? undefined : end));
  };
  const replaced = (group: string): string =>
    (encoder.encode(group).length <= MOST_BYTES ? become(group) : null) ?? Array.from(group, (character) => become(character) ?? character).join('');
  const groups = new Intl.Segmenter('en', { granularity: 'grapheme' });
  return (text) => Array.from(groups.segment(text), ({ segment }) => replaced(segment)).join('');
}

/** Return the value of the shortest key that a text begins with; what follows it in a group is dropped, as in Python's library. */
function firstValue(units: Uint32Array, key: Uint8Array): number | null {
  let node = offsetOf(units[0] ?? 0);
  for (const byte of key) {
    if (byte === 0) return null;
    node ^= byte;
    const unit = units[node] ?? 0;
    if ((unit & 0x800000ff) >>> 0 !== byte) return null;
    node ^= offsetOf(unit);
    if ((unit >>> 8) & 1) return (units[node] ?? 0) & 0x7fffffff;
  }
  return null;
}

function offsetOf(unit: number): number {
  return (unit >>> 10) << ((unit & 0x200) >>> 6);
}
