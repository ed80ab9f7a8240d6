import { tensorNamed, type Manifest } from './manifest.js';

/** Bytes [first, end) of a tensor, and what is done with them. */
export interface Piece {
  tensor: string;
  first: number;
  end: number;
  use: (bytes: Uint8Array) => void;
}

/** The bytes of a piece that lie in one shard. */
interface Part {
  piece: Piece;
  shard: number;
  offset: number;
  size: number;
  /** First byte of the part in the piece. */
  at: number;
}

/**
 * Deliver bytes shard by shard, so that memory holds one shard, and what pieces have in two of them.
 *
 * @param pieces - What is delivered.
 * @param manifest - Where tensors lie.
 * @param read - Returns the bytes of a shard.
 * @param delivered - Called after the pieces of a shard.
 */
export async function deliver(
  pieces: Iterable<Piece>,
  manifest: Manifest,
  read: (shard: number) => Promise<Uint8Array>,
  delivered: () => Promise<void>,
): Promise<void> {
  const parts = new Map<number, Part[]>();
  for (const piece of pieces) {
    for (const part of partsOf(piece, manifest)) {
      const others = parts.get(part.shard);
      if (others) others.push(part);
      else parts.set(part.shard, [part]);
    }
  }
  const halves = new Map<Piece, { bytes: Uint8Array; left: number }>();
  for (const shard of [...parts.keys()].sort((one, other) => one - other)) {
    const bytes = await read(shard);
    for (const { piece, offset, size, at } of parts.get(shard)!.sort((one, other) => one.offset - other.offset)) {
      const data = bytes.subarray(offset, offset + size);
      const length = piece.end - piece.first;
      if (size === length) {
        piece.use(data);
        continue;
      }
      const half = halves.get(piece) ?? { bytes: new Uint8Array(length), left: length };
      halves.set(piece, half);
      half.bytes.set(data, at);
      half.left -= size;
      if (half.left) continue;
      halves.delete(piece);
      piece.use(half.bytes);
    }
    await delivered();
  }
}

function* partsOf(piece: Piece, manifest: Manifest): Generator<Part> {
  let start = 0; // of the span in the tensor
  for (const { shard, offset, size } of tensorNamed(manifest, piece.tensor).spans) {
    const [first, end] = [Math.max(piece.first, start), Math.min(piece.end, start + size)];
    if (first < end) yield { piece, shard, offset: offset + first - start, size: end - first, at: first - piece.first };
    start += size;
  }
}
