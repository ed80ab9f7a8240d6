import { RdrrError } from '../errors.js';
import type { Opened } from './open.js';

/** A text in the key-value cache, for the same package, program and context; browsers can keep it in IndexedDB. */
export interface Session {
  version: 1;
  /** Id of the package, and the SHA-256 of its manifest and of the program. */
  model: string;
  manifest: string;
  program: string;
  context: number;
  /** The ids whose keys and values, and states, the buffers hold. */
  ids: number[];
  buffers: ArrayBuffer[];
}

const ROLES = ['kv', 'state'];

/** Return what the cache holds. */
export async function saved({ player, entry }: Opened, manifest: string, ids: readonly number[]): Promise<Session> {
  const { program, context } = player;
  if (ids.some((id) => id >= program.vocabulary)) throw new RdrrError('usage', 'a text with images cannot be saved');
  const buffers = await player.contents(player.buffersOf(...ROLES));
  return { version: 1, model: program.model, manifest, program: entry.sha256, context, ids: [...ids], buffers };
}

/** Write a session into the cache, whose context is that of the session already. */
export function restored({ player, entry }: Opened, manifest: string, session: Session): void {
  const here = { version: 1, model: player.program.model, manifest, program: entry.sha256, context: player.context };
  for (const [name, value] of Object.entries(here)) {
    const other = session?.[name as keyof typeof here];
    if (other !== value) throw new RdrrError('usage', `the session has another ${name} than the engine: expected ${value}, found ${other}`);
  }
  const buffers = player.buffersOf(...ROLES);
  const isWhole = session.buffers.length === buffers.length && buffers.every(({ size }, index) => size === session.buffers[index]!.byteLength);
  if (!isWhole) throw new RdrrError('format', 'the session is damaged: its buffers have other sizes');
  for (const [index, buffer] of buffers.entries()) player.device.queue.writeBuffer(buffer, 0, session.buffers[index]!);
}
