/** The npm package of the client library: its contents, and that a strict compiler accepts it. */

import { execFileSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';

const web = new URL('../..', import.meta.url).pathname;
const folder = mkdtempSync(join(tmpdir(), 'client-'));
afterAll(() => {
  rmSync(folder, { recursive: true });
});

const run = (command: string, ...args: string[]) =>
  execFileSync(command, args, { cwd: folder, encoding: 'utf8' });

interface Manifest {
  version: string;
  license: string;
}

const manifest = JSON.parse(readFileSync(join(web, 'src/client/package.json'), 'utf8')) as Manifest;

beforeAll(() => {
  execFileSync('npm', ['pack', '--silent', '--pack-destination', folder], {
    cwd: join(web, 'src/client'),
  });
  run('tar', '-xzf', `continuo-client-${manifest.version}.tgz`);
}, 120_000);

it('contains the licence, the readme, and the sources that its maps name', () => {
  const text = (file: string) => readFileSync(join(folder, 'package', file), 'utf8');
  expect(manifest.license).toBe('Apache-2.0');
  expect(text('LICENSE')).toBe(readFileSync(join(web, '../LICENSE'), 'utf8'));
  expect(text('README.md')).toContain('@continuo/client');
  const dist = readdirSync(join(folder, 'package/dist'));
  expect(dist).toContain('index.js');
  for (const file of dist.filter((name) => /\.(js|d\.ts)$/.test(name))) {
    expect(text(join('dist', file))).toContain(`//# sourceMappingURL=${file}.map`);
    const { sources } = JSON.parse(text(join('dist', `${file}.map`))) as { sources: string[] };
    for (const source of sources) {
      expect(existsSync(resolve(folder, 'package/dist', source)), source).toBe(true);
    }
  }
});

it('has the version of the server', () => {
  const project = readFileSync(join(web, '../pyproject.toml'), 'utf8');
  expect(/^version = "(.*)"$/m.exec(project)?.[1]).toBe(manifest.version);
});

it('has complete types', { timeout: 120_000 }, () => {
  const scope = join(folder, 'node_modules/@continuo');
  mkdirSync(scope, { recursive: true });
  symlinkSync(join(folder, 'package'), join(scope, 'client'));

  writeFileSync(join(folder, 'package.json'), '{"type": "module"}');
  writeFileSync(
    join(folder, 'app.ts'),
    `import { RealtimeClient, type RealtimeClientOptions } from '@continuo/client';
     const options: RealtimeClientOptions = { url: 'ws://x/v1/realtime' };
     const client = new RealtimeClient(options);
     client.on('response.output_text.delta', (event) => { const text: string = event.delta; text; });
     // @ts-expect-error: no such setting
     client.updateSession({ temprature: 1 });
     export const phase: string = client.state.value.phase;`,
  );
  const flags = ['--strict', '--noEmit', '--module', 'nodenext', '--lib', 'es2022,dom'];
  run(process.execPath, join(web, 'node_modules/typescript/bin/tsc'), ...flags, 'app.ts');
  const script = `import { RealtimeClient } from '@continuo/client';
    console.log(new RealtimeClient({ url: 'ws://x' }).state.value.phase);`;
  expect(run(process.execPath, '--input-type=module', '-e', script).trim()).toBe('idle');
});
