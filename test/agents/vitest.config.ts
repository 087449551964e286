import { defineConfig } from 'vitest/config'

/** The big coding agents: `npm run test:agents`. They are downloaded, so that `npm test` does without them. */
export default defineConfig({
  test: {
    include: ['test/agents/*.agent.ts'],
    globalSetup: 'test/support/build.ts',
    // One after the other: each is a program of hundreds of megabytes.
    fileParallelism: false,
    testTimeout: 180_000,
    hookTimeout: 600_000,
    expect: { poll: { timeout: 60_000 } },
    reporters: ['default', './test/support/closing-line.ts'],
  },
})
