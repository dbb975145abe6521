import { defineConfig } from 'vitest/config';

/** Tests with real servers and a real browser: one file at a time, with generous timeouts. */
export default defineConfig({
  test: {
    include: [process.env.SCREENSHOTS ? 'tests/browser/screenshots.ts' : 'tests/browser/**/*.test.ts'],
    environment: 'node',
    globalSetup: 'tests/browser/shared_setup.ts',
    fileParallelism: false,
    isolate: false, // the files share a connection to Chromium
    testTimeout: 90_000,
    hookTimeout: 90_000,
    expect: { poll: { timeout: 30_000 } },
  },
});
