import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { test } from 'node:test';

// The table of web/README.md, whose rooms import only those above them.
const rooms = [...readFileSync('README.md', 'utf8').matchAll(/^\| `([\w.]+)` \|/gm)].map(([, name]) => name!);
const modules = (readdirSync('src', { recursive: true }) as string[]).filter((path) => path.endsWith('.ts'));
const roomOf = (path: string): number => rooms.indexOf(path.includes('/') ? path.split('/')[0]! : path);

function imports(path: string): string[] {
  const source = readFileSync(join('src', path), 'utf8');
  const paths = [...source.matchAll(/from '(\.[^']+)\.js'/g)].map(([, relative]) => `${relative}.ts`);
  return paths.map((relative) => normalize(join(dirname(path), relative)));
}

test('every module is in a room that the README lists', () => {
  assert.deepEqual(modules.filter((path) => roomOf(path) < 0), []);
});

test('rooms import only rooms above them', () => {
  const wrong = modules.flatMap((path) => imports(path).filter((other) => roomOf(other) > roomOf(path)).map((other) => `${path}: ${other}`));
  // The script of a worker is a module of its own beside the public names.
  assert.deepEqual(wrong, ['worker/main.ts: index.ts']);
});
