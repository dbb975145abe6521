/** Chromium and the servers that the test files share, started once per run. */

import { chromium } from 'playwright-core';
import type { TestProject } from 'vitest/node';
import { Server } from './server.js';
import { freePort, Subprocess } from './subprocess.js';

declare module 'vitest' {
  interface ProvidedContext {
    /** Address at which tests connect to Chromium. */
    chromium: string;
    /** `continuo serve --demo` with the bundled model under two names. */
    server: { url: string; printedUrl: string };
    /** `tests.browser.failing`: slow, and failing on request. */
    failing: { url: string; pid: number };
  }
}

const NAMES = ['--served-model-name', 'demo', '--served-model-name', 'second'];

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const port = await freePort();
  const failing = Subprocess.python('tests.browser.failing', ['--port', String(port)], 'Listening on');
  const [browser, server] = await Promise.all([
    chromium.launchServer({
      executablePath: process.env.CONTINUO_CHROMIUM ?? '/usr/bin/chromium',
      args: ['--no-sandbox', '--host-resolver-rules=MAP foreign.test 127.0.0.1'],
    }),
    Server.start(['--demo', ...NAMES]),
    failing.start(),
  ]);
  project.provide('chromium', browser.wsEndpoint());
  project.provide('server', { url: server.url, printedUrl: server.printedUrl });
  project.provide('failing', { url: `http://127.0.0.1:${port}/`, pid: failing.pid });
  return async () => {
    await Promise.all([browser.close(), server.stop(), failing.stop()]);
  };
}
