/** The JavaScript snippets of docs/recipes.md and of the package's README, under a strict compiler. */

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import * as client from '../../src/client/index.js';

const web = new URL('../..', import.meta.url).pathname;
const folder = mkdtempSync(join(tmpdir(), 'snippets-'));
afterAll(() => {
  rmSync(folder, { recursive: true });
});

/** What the prose around the snippets says that they use. */
const SURROUNDINGS = {
  client: "RealtimeClient = new RealtimeClient({ url: '' })",
  url: "string = ''",
  input: 'HTMLInputElement = document.createElement("input")',
  output: 'HTMLElement = document.body',
  form: 'HTMLFormElement = document.createElement("form")',
};

/** Returns a snippet with the imports and names it takes for granted. */
function complete(snippet: string): string {
  const uses = (name: string) => new RegExp(`\\b${name}\\b`).test(snippet);
  const defines = (name: string) => new RegExp(`(const|import .*) \\b${name}\\b`).test(snippet);
  const names = Object.keys(client).filter((name) => uses(name) || name === 'RealtimeClient');
  const importsOwn = /^import .* from '@continuo\/client';$/m;
  const surroundings = Object.entries(SURROUNDINGS)
    .filter(([name]) => uses(name) && !defines(name))
    .map(([name, definition]) => `const ${name}: ${definition};`);
  return [
    `import { ${names.join(', ')} } from '@continuo/client';`,
    ...surroundings,
    snippet.replace(importsOwn, ''),
    'export {};',
  ].join('\n');
}

it('have the types of the library', { timeout: 120_000 }, () => {
  const blocks = [
    ['recipes', '../docs/recipes.md', /^```js\n(.*?)^```/gms],
    ['readme', 'src/client/README.md', /^```ts\n(.*?)^```/gms],
  ] as const;
  const sources = blocks.flatMap(([name, path, pattern]) =>
    [...readFileSync(join(web, path), 'utf8').matchAll(pattern)].map(
      ([, snippet], index) => [`${name}_${index + 1}.ts`, snippet ?? ''] as const,
    ),
  );
  expect(sources.length).toBeGreaterThan(15);
  for (const [file, snippet] of sources) {
    for (const [, names] of snippet.matchAll(/^import \{(.*)\} from '@continuo\/client'/gm)) {
      for (const name of names?.split(',') ?? []) expect(client, file).toHaveProperty(name.trim());
    }
    writeFileSync(join(folder, file), complete(snippet));
  }
  const compilerOptions = {
    strict: true,
    noEmit: true,
    target: 'es2022',
    module: 'esnext',
    moduleResolution: 'bundler',
    lib: ['es2023', 'dom', 'dom.iterable'],
    types: [],
    typeRoots: [join(web, 'node_modules/@types')],
    paths: {
      '@continuo/client': [join(web, 'src/client/index.ts')],
      '@continuo/client/react': [join(web, 'src/client/react.ts')],
    },
  };
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, include: ['*.ts'] }));
  let errors = '';
  try {
    execFileSync(process.execPath, [join(web, 'node_modules/typescript/bin/tsc'), '-p', folder]);
  } catch (error) {
    errors = String((error as { stdout: Buffer }).stdout);
  }
  expect(errors).toBe('');
});

it('stand beside every Python recipe', () => {
  const page = readFileSync(join(web, '../docs/recipes.md'), 'utf8');
  const missing = page
    .split(/^## /m)
    .slice(1)
    .filter((section) => !section.includes('```js'))
    .map((section) => section.split('\n')[0]);
  expect(missing).toEqual([]);
});
