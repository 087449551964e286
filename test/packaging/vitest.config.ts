import { defineConfig } from 'vitest/config'

/** What installs hundreds of packages or other versions of Node: `npm run test:packaging`. */
export default defineConfig({
  test: {
    include: ['test/packaging/*.slow.ts'],
    globalSetup: 'test/support/build.ts',
    fileParallelism: false,
    testTimeout: 600_000,
    hookTimeout: 600_000,
    reporters: ['default', './test/support/closing-line.ts'],
  },
})
