import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Player, Words } from '../src/player/player.js';
import { Course, Sequence, type Generation } from '../src/sequence/sequence.js';

const VOCABULARY = 97;
const fields = (...names: string[]) => ({ fields: Object.fromEntries(names.map((name) => [name, 'u32'])), words: names.length });
const records = { step_header: fields('rows', 'last_n'), step_row: fields('token', 'position', 'sequence', 'slot') };
const pass = (rows: number) => ({ rows, body: [{ kernel: 0, ranges: [] }], head: [], sample: [{ kernel: 1, ranges: [] }] });

/** What a model that looks at all ids of a text continues it with. */
const following = (ids: readonly number[]): number => ids.reduce((sum, id, at) => (sum + (at + 1) * (id + 3)) % VOCABULARY, 1);

/** A player whose model is `following`, over the ids that it has in its slots. */
class Imagined {
  readonly program = { vocabulary: VOCABULARY, ends: [] as number[], step: 0, ring: 1, records, passes: [pass(1), pass(4)] };
  readonly device = { queue: { onSubmittedWorkDone: async (): Promise<void> => {} } };
  ran = 0;
  private slots: number[] = [];
  private ring: number[] = [];
  private step: number[][] = [];
  private next: { slot: number; token: number } = { slot: 0, token: 0 };

  constructor(readonly context: number) {}

  buffersOf(): [] {
    return [];
  }

  async prepare(): Promise<void> {}

  write(_: number, words: Uint32Array): void {
    this.step = Array.from({ length: words[0]! }, (_row, at) => [...words.subarray(2 + 4 * at, 6 + 4 * at)]);
  }

  async run(phases: { kernel: number }[], rows: number, { times = 1, reads = [] }: { times?: number; reads?: Words[] } = {}): Promise<Uint32Array[]> {
    const chooses = phases.some(({ kernel }) => kernel === 1);
    for (let time = 0; time < times; time += 1) {
      const step = this.step.length ? this.step : [[this.next.token, 0, 0, this.next.slot]];
      if (this.step.length) this.ring = [];
      this.step = [];
      for (const [token, , , slot] of step) {
        assert.ok(slot! < this.context, 'a slot behind the cache');
        this.slots[slot!] = token!;
      }
      this.ran += rows;
      const last = step.at(-1)![3]!;
      this.next = { slot: last + 1, token: following(this.slots.slice(0, last + 1)) };
      if (chooses) this.ring.push(this.next.token);
    }
    return this.read(reads);
  }

  async read(reads: Words[]): Promise<Uint32Array[]> {
    return reads.map(({ first, count }) => Uint32Array.from(this.ring.slice(first, first + count)));
  }
}

async function generated(sequence: Sequence, prompt: number[], options: Generation): Promise<number[]> {
  const ids: number[] = [];
  for await (const group of sequence.generate(new Course([...prompt]), options)) ids.push(...group.ids);
  return ids;
}

/** The ids that whole texts give, without a cache. */
function expected(prompt: number[], count: number, context: number, keep: number): number[] {
  let ids = [...prompt];
  return Array.from({ length: count }, () => {
    while (ids.length > context) ids = [...ids.slice(0, keep), ...ids.slice(keep + Math.ceil((ids.length - keep) / 2))];
    const id = following(ids);
    ids.push(id);
    return id;
  });
}

const sequenceOf = (player: Imagined, grow?: (least: number) => Promise<Player | null>): Sequence => new Sequence(player as unknown as Player, grow);

for (const keep of [0, 1, 4, 8]) {
  test(`a full context drops the older half behind ${keep} ids, and the text goes on`, async () => {
    const sequence = sequenceOf(new Imagined(16));
    assert.deepEqual(await generated(sequence, [5, 6, 7], { max_tokens: 60, context_shift: keep }), expected([5, 6, 7], 60, 16, keep));
  });
}

test('a prompt that is too long is shortened in the same way', async () => {
  const prompt = Array.from({ length: 50 }, (_, at) => at);
  const ids = await generated(sequenceOf(new Imagined(16)), prompt, { max_tokens: 9, context_shift: 2 });
  assert.deepEqual(ids, expected(prompt, 9, 16, 2));
  await assert.rejects(generated(sequenceOf(new Imagined(16)), prompt, { max_tokens: 9 }), /expected 1 to 16 tokens, found 50/);
});

test('a text without a shift ends when its last id has no slot', async () => {
  const ids = await generated(sequenceOf(new Imagined(16)), [5, 6, 7], { max_tokens: 60 });
  assert.deepEqual(ids, expected([5, 6, 7], 14, 16, 0));
});

test('more than half of the context is not kept', async () => {
  await assert.rejects(generated(sequenceOf(new Imagined(16)), [1], { context_shift: 9 }), /context_shift: expected 0 to 8/);
});

test('a cache that grows gives the ids of a large one, and shifts when it grows no more', async () => {
  const grow = async (least: number): Promise<Player | null> => (least > 32 ? null : (new Imagined(Math.max(least, 24)) as unknown as Player));
  const sequence = sequenceOf(new Imagined(8), grow);
  assert.deepEqual(await generated(sequence, [5, 6, 7], { max_tokens: 60 }), expected([5, 6, 7], 30, 32, 0));
  assert.deepEqual(await generated(sequence, [5, 6, 8], { max_tokens: 40, context_shift: 1 }), expected([5, 6, 8], 40, 32, 1));
});

test('a second turn runs only what the cache has not', async () => {
  const player = new Imagined(64);
  const sequence = sequenceOf(player);
  const first = await generated(sequence, [5, 6, 7], { max_tokens: 5 });
  const before = player.ran;
  const prompt = [5, 6, 7, ...first, 9];
  assert.deepEqual(await generated(sequence, prompt, { max_tokens: 1 }), expected(prompt, 1, 64, 0));
  assert.equal(player.ran - before, 2); // the last id of the answer did not run
});
