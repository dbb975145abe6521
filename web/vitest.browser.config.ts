import { defineConfig } from 'vitest/config';

/** A real server, a real browser: one after the other, and no hurry. */
export default defineConfig({
  test: {
    include: [process.env.PICTURES ? 'tests/browser/screenshots.ts' : 'tests/browser/**/*.test.ts'],
    environment: 'node',
    fileParallelism: false,
    testTimeout: 90_000,
    hookTimeout: 90_000,
    expect: { poll: { timeout: 30_000 } },
  },
});
