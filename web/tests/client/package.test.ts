/** The npm package of the client library: packs, installs, and compiles with a strict compiler. */

import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';

const web = new URL('../..', import.meta.url).pathname;
const folder = mkdtempSync(join(tmpdir(), 'client-'));
afterAll(() => {
  rmSync(folder, { recursive: true });
});

it('packs with complete types', { timeout: 120_000 }, () => {
  const run = (command: string, ...args: string[]) =>
    execFileSync(command, args, { cwd: folder, encoding: 'utf8' });
  execFileSync('npm', ['pack', '--silent', '--pack-destination', folder], {
    cwd: join(web, 'src/client'),
  });
  const scope = join(folder, 'node_modules/@continuo');
  mkdirSync(scope, { recursive: true });
  run('tar', '-xzf', 'continuo-client-0.1.0.tgz');
  symlinkSync(join(folder, 'package'), join(scope, 'client'));
  expect(run('tar', '-tzf', 'continuo-client-0.1.0.tgz')).toContain('package/README.md');

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
