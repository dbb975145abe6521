/** The openai SDK in pages of other origins: one that is allowed, and one that is not. */

import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Server as WebServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build, type Rolldown } from 'vite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { run } from './openai_sdk_page.js';
import { Server } from './server.js';
import { browser } from './shared.js';

const KEY = 'sk-test-browser';
const ANSWER = '7';
const folder = mkdtempSync(join(tmpdir(), 'continuo-tls-'));
let program: string;
let allowed: WebServer;
let refused: WebServer;
let server: Server;

/** Bundle a file of this folder for a page. Returns the script. */
async function bundle(name: string): Promise<string> {
  const [output] = (await build({
    configFile: false,
    logLevel: 'warn',
    build: {
      write: false,
      minify: false,
      lib: { entry: fileURLToPath(new URL(name, import.meta.url)), formats: ['es'] },
    },
  })) as Rolldown.RolldownOutput[];
  const [chunk] = output?.output ?? [];
  if (chunk === undefined) throw new Error(`${name} has no output`);
  return chunk.code;
}

async function servePage(): Promise<WebServer> {
  const page = createServer((request, response) => {
    const isScript = request.url === '/program.js';
    response.setHeader('Content-Type', isScript ? 'text/javascript' : 'text/html');
    response.end(isScript ? program : '<!doctype html><script type="module" src="program.js"></script>');
  });
  await new Promise<void>((resolve) => page.listen(0, '127.0.0.1', resolve));
  return page;
}

/** The origin of a page that is on another host, as the browser sees it. */
function originOf(page: WebServer): string {
  return `http://foreign.test:${(page.address() as AddressInfo).port}`;
}

/** Run programs with `key` in a page of `origin`. Returns the result of each. */
async function runIn(
  origin: string,
  key: string,
  ...names: Parameters<typeof run>[0][]
): Promise<string[]> {
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const page = await context.newPage();
  await page.goto(origin);
  const results: string[] = [];
  for (const name of names) {
    const parameters: Parameters<typeof run> = [name, `https://127.0.0.1:${server.port}/v1`, key];
    results.push(
      await page.evaluate(
        (parameters) => (globalThis as unknown as { run: typeof run }).run(...parameters),
        parameters,
      ),
    );
  }
  await context.close();
  return results;
}

const hasOpenssl = spawnSync('openssl', ['version']).error === undefined;
describe.skipIf(!hasOpenssl)('the openai SDK', () => {
  beforeAll(async () => {
    program = await bundle('openai_sdk_page.ts');
    [allowed, refused] = await Promise.all([servePage(), servePage()]);
    // The SDK connects to the Realtime API with `wss:` only.
    const [certificate, key] = [join(folder, 'certificate.pem'), join(folder, 'key.pem')];
    const request = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost'];
    execFileSync('openssl', [...request, '-keyout', key, '-out', certificate], { stdio: 'ignore' });
    const files = ['--ssl-certfile', certificate, '--ssl-keyfile', key];
    server = await Server.start(['--api-key', KEY, '--allowed-origins', originOf(allowed), ...files]);
  });
  afterAll(async () => {
    await server.stop();
    allowed.close();
    refused.close();
    rmSync(folder, { recursive: true });
  });

  it('gives a page of an allowed origin every answer', async () => {
    const programs = ['chatCompletions', 'responses', 'realtime', 'realtimeAtOnce'] as const;
    for (const text of await runIn(originOf(allowed), KEY, ...programs)) expect(text).toContain(ANSWER);
  });

  it('lets a page of an allowed origin read why it is refused', async () => {
    const [error] = await runIn(originOf(allowed), 'sk-wrong', 'responses');
    expect(error).toMatch(/^401: .*Incorrect API key/);
  });

  it('gives a page of another origin nothing', async () => {
    const results = await runIn(originOf(refused), KEY, 'chatCompletions', 'responses', 'realtime');
    expect(results).toEqual(Array(3).fill('unreachable: Connection error.'));
    const [error] = await runIn(originOf(refused), KEY, 'realtimeAtOnce');
    expect(error).toMatch(/^OpenAIRealtimeError/);
  });
});
