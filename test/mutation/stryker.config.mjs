/** Changes the sources in small ways and runs the tests that cover each change: `npm run test:mutation`. */
export default {
  mutate: ['src/core/**/*.ts', 'src/dialect/**/*.ts'],
  plugins: ['@stryker-mutator/vitest-runner', './test/mutation/sample.mjs'],
  checkers: ['sample'],
  // Of about 15,100 mutants: 400. MUTANTS=1 runs all of them, which suits one file (--mutate src/core/guards.ts).
  sample: 400 / 15_100,
  testRunner: 'vitest',
  vitest: { configFile: 'test/mutation/vitest.config.ts', related: false },
  coverageAnalysis: 'perTest',
  // A mutant of what runs once, as a module loads, would need all tests.
  ignoreStatic: true,
  warnings: { unknownOptions: false },
  ignorePatterns: ['**', '!package.json', '!src/**', '!test/**', '!config/**'],
  // Nothing of it matters in the copy, and Stryker reads it with an API that TypeScript 7 no longer has.
  tsconfigFile: 'none',
  // A busy machine is no killed mutant.
  timeoutMS: 10_000,
  dryRunTimeoutMinutes: 20,
  tempDirName: 'node_modules/.mutation',
  concurrency: 1,
  reporters: ['survivors', 'progress-append-only', 'clear-text'],
  clearTextReporter: { reportTests: false, reportMutants: false },
  thresholds: { high: 90, low: 85, break: 85 },
}
