import { defineConfig } from 'vitest/config'

/** The tests that a changed source must fail: those without sockets and processes. */
export default defineConfig({
  test: {
    include: ['test/core/**/*.test.ts', 'test/dialect/**/*.test.ts'],
    // Those with sockets; the first ends each of many streams at every byte, and takes a minute and a half.
    exclude: ['test/dialect/cut-streams.test.ts', 'test/dialect/toy.test.ts', 'test/dialect/held-text.test.ts'],
    setupFiles: 'test/mutation/fast-check.ts',
    // Stryker ends a mutant that takes too long; the first run takes as long as a busy machine needs.
    testTimeout: 600_000,
  },
})
