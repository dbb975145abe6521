import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['tests/client/**/*.test.ts', 'tests/page/**/*.test.ts'],
    environment: 'node',
    expect: { poll: { timeout: 30_000 } },
  },
});
