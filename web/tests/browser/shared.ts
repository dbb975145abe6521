/** What the test files share: Chromium, a server with the bundled model, and one that fails on request. */

import { chromium } from 'playwright-core';
import { inject } from 'vitest';

export const browser = await chromium.connect(inject('chromium'));

/** `continuo serve --demo` with the bundled model; its engine may be killed, itself not. */
export const server = inject('server');

/** A slow server, so that a response in progress can be observed. SIGUSR1 makes its model fail, SIGHUP kills
 * its engine, and SIGUSR2 undoes both. */
export const failing = {
  url: inject('failing').url,
  signal: (signal: NodeJS.Signals): void => {
    process.kill(inject('failing').pid, signal);
  },
};
