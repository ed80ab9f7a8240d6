import { RdrrError } from '../errors.js';
import type { EmbeddingBlock, Projection } from '../load/manifest.js';

const SMALLEST = 1e-12; // least norm that a vector is divided by
const POOLINGS = ['cls', 'last', 'mean'];

// The activations of projections, by the manifest's names; `gelu_erf` is that of heads for labels only.
const ACTIVATIONS: Readonly<Record<string, (value: number) => number>> = {
  identity: (x) => x,
  tanh: Math.tanh,
  relu: (x) => Math.max(x, 0),
  silu: (x) => x / (1 + Math.exp(-x)),
  gelu: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

/** Return the names of the tensors that the host projects with. */
export function projectionTensors(block: EmbeddingBlock | null): string[] {
  return (block?.projections ?? []).flatMap(({ weightTensor, biasTensor }) => [weightTensor, biasTensor ?? []].flat());
}

/** What makes the embedding of a text of its hidden states, by the formula of sentence-transformers. */
export class Pooling {
  constructor(
    private readonly block: EmbeddingBlock,
    private readonly tensors: ReadonlyMap<string, Float32Array>,
  ) {
    const { poolingMode: mode, projections = [], normalize } = block;
    const other = projections.find(({ activation = 'identity', normTensor }) => !ACTIVATIONS[activation] || normTensor);
    const unknown = other && (other.normTensor ?? other.activation);
    if (unknown || !POOLINGS.includes(mode) || ![undefined, null, 'none', 'l2'].includes(normalize)) {
      throw new RdrrError('format', `inference.output.embeddingPostprocessor: browsers know no ${unknown ?? normalize ?? mode}; use rdrr in Python`);
    }
  }

  /** Return the prompt of this name; that of the default name, or none, if no name is given. */
  prompt(name: string | null | undefined): string {
    const { prompts = {}, defaultPromptName } = this.block;
    const chosen = name ?? defaultPromptName;
    if (chosen == null) return '';
    const prompt = Object.hasOwn(prompts, chosen) ? prompts[chosen] : undefined;
    if (prompt !== undefined) return prompt;
    const known = Object.keys(prompts).sort().join(', ') || 'none: the package has no prompts';
    throw new RdrrError('usage', `prompt: expected ${known}, found ${chosen}`);
  }

  /** Whether the mean leaves out the tokens of the prompt. */
  get leavesOutPrompt(): boolean {
    return this.block.includePrompt === false;
  }

  /** Return the embedding of a text; a mean leaves out its first `skipped` rows. */
  pool(rows: Float32Array, width: number, skipped = 0): Float32Array {
    const { poolingMode: mode, projections = [], normalize } = this.block;
    const count = rows.length / width;
    let pooled = mode === 'mean' ? mean(rows.subarray(skipped * width), width) : rows.slice(mode === 'cls' ? 0 : (count - 1) * width).slice(0, width);
    for (const projection of projections) pooled = this.project(pooled, projection);
    if (normalize !== 'l2') return pooled;
    const norm = Math.max(Math.hypot(...pooled), SMALLEST);
    return pooled.map((value) => value / norm);
  }

  private project(x: Float32Array, { weightTensor, biasTensor, activation = 'identity' }: Projection): Float32Array {
    const weight = this.tensors.get(weightTensor)!;
    const bias = biasTensor ? this.tensors.get(biasTensor)! : null;
    return Float32Array.from({ length: weight.length / x.length }, (_, row) => {
      let sum = bias ? bias[row]! : 0;
      for (let column = 0; column < x.length; column += 1) sum += weight[row * x.length + column]! * x[column]!;
      return ACTIVATIONS[activation]!(sum);
    });
  }
}

function mean(rows: Float32Array, width: number): Float32Array {
  const sums = new Float64Array(width);
  for (const [at, value] of rows.entries()) sums[at % width]! += value;
  return Float32Array.from(sums, (sum) => sum / Math.max(1, rows.length / width));
}
