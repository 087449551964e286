import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // `npm run test:faults` runs them as well.
    exclude: ['test/faults/long/**'],
    globalSetup: 'test/support/build.ts',
    // Real sockets and real clients on small machines: a limit that only a hang reaches.
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // The default of a second is not enough on a busy machine.
    expect: { poll: { timeout: 20_000 } },
    // Most tests wait for sockets and processes: one worker, the default on two cores, leaves both idle half of the time.
    isolate: false,
    maxWorkers: Math.max(3, availableParallelism() - 1),
    reporters: ['default', './test/support/closing-line.ts'],
  },
})
