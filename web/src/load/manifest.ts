import { RdrrError } from '../errors.js';

/** A file with weights. */
export interface Shard {
  filename: string;
  size: number;
  /** Expected SHA-256; null if it is not known, then only the size is checked. */
  sha256: string | null;
}

/** Bytes of a tensor that lie in one shard. */
export interface Span {
  shard: number;
  offset: number;
  size: number;
}

export interface Tensor {
  shape: readonly number[];
  dtype: string;
  size: number;
  layout: string;
  spans: readonly Span[];
}

/** The block `tokenizer` of a manifest. */
export interface TokenizerBlock {
  file?: string;
  addBosToken?: boolean;
  bosTokenId?: number;
}

/** A linear layer behind the pooling. */
export interface Projection {
  weightTensor: string;
  biasTensor?: string | null;
  activation?: string;
  normTensor?: string | null;
}

/** The block `inference.output.embeddingPostprocessor`: how hidden states become an embedding. */
export interface EmbeddingBlock {
  poolingMode: string;
  includePrompt?: boolean;
  projections?: readonly Projection[];
  normalize?: string | null;
  prompts?: Readonly<Record<string, string>>;
  defaultPromptName?: string | null;
}

/** The block `processor`: how an image becomes patches, and what stands for them in a prompt. */
export interface ProcessorBlock {
  sizing: string;
  resample: string;
  minPixels?: number;
  maxPixels?: number;
  maxTokens?: number;
  height?: number; // after resizing, or of a tile
  width?: number;
  tiles?: { longestSide: number; before: string; rowAfter?: string; after?: string };
  rescaleFactor: number;
  mean: readonly number[];
  deviation: readonly number[];
  patchSize: number;
  temporalPatchSize?: number;
  mergeSize: number;
  patchOrder?: string;
  channelOrder?: string;
  placeholder: string;
  token: string;
  before?: string;
  after?: string;
}

/** What the runtime reads of a manifest; the program states all that is computed. */
export interface Manifest {
  id: string;
  shards: readonly Shard[];
  tensors: ReadonlyMap<string, Tensor>;
  tokenizer: TokenizerBlock;
  /** null for a package that makes no embeddings. */
  embedding: EmbeddingBlock | null;
  /** null for a package whose model sees no images. */
  processor: ProcessorBlock | null;
}

type Json = any; // decoded JSON of unknown form

/** Return the manifest that a file holds. `hashes` are the SHA-256 of the shards, where the manifest has other hashes. */
export function readManifest(text: string, where: string, hashes: readonly string[] | null = null): Manifest {
  let data: Json;
  try {
    data = JSON.parse(text);
    const shards: Shard[] = data.shards.map((shard: Json, index: number) => ({
      filename: String(shard.filename),
      size: Number(shard.size),
      sha256: hashes?.[index] ?? (data.hashAlgorithm === 'sha256' ? String(shard.hash).toLowerCase() : null),
    }));
    const tensors = new Map(Object.entries(data.tensors).map(([name, entry]) => [name, tensorOf(entry)]));
    const { embeddingPostprocessor, classifier } = data.inference?.output ?? {};
    const embedding = classifier ? null : (embeddingPostprocessor ?? null);
    return { id: String(data.modelId), shards, tensors, tokenizer: data.tokenizer ?? {}, embedding, processor: data.processor ?? null };
  } catch (error) {
    throw new RdrrError('format', `${where}: not a manifest that this runtime reads`, { cause: error });
  }
}

function tensorOf(entry: Json): Tensor {
  const spans: Json[] = entry.spans?.length ? entry.spans : [{ ...entry, shardIndex: entry.shard ?? 0 }];
  return {
    shape: entry.shape,
    dtype: String(entry.dtype),
    size: Number(entry.size),
    layout: String(entry.layout ?? 'row'),
    spans: spans.map(({ shardIndex, offset, size }) => ({ shard: shardIndex, offset: offset ?? 0, size })),
  };
}

/** Return the entry of a tensor, whose size is the one that the program was made for. */
export function tensorNamed(manifest: Manifest, name: string, size?: number): Tensor {
  const tensor = manifest.tensors.get(name);
  if (!tensor) throw new RdrrError('format', `${name}: the manifest has no such tensor; run \`rdrr web\` again`);
  if (size !== undefined && size !== tensor.size) {
    const message = `${name}: expected ${size} bytes, the manifest says ${tensor.size}; run \`rdrr web\` again`;
    throw new RdrrError('format', message);
  }
  return tensor;
}
