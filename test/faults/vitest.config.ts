import { defineConfig } from 'vitest/config'

/** What goes wrong around Governor, all of it: `npm run test:faults`. `npm test` runs the part outside of `long`. */
export default defineConfig({
  test: {
    include: ['test/faults/**/*.test.ts'],
    globalSetup: 'test/support/build.ts',
    // One after the other: they take all processors, and some of them hundreds of connections.
    fileParallelism: false,
    testTimeout: 600_000,
    hookTimeout: 60_000,
    reporters: ['default', './test/support/closing-line.ts'],
  },
})
