/** Programs of the system that some tests need. */
import { spawnSync } from 'node:child_process'
import { describe } from 'vitest'

/** Returns whether a program can be run by its name. */
export function isInstalled(name: string): boolean {
  return spawnSync('sh', ['-c', 'command -v "$0"', name]).status === 0
}

/** Returns the first of these programs that is installed. @throws if CI=true and none is installed, because no test may be skipped there. */
export function findProgram(...names: readonly string[]): string | undefined {
  const found = names.find(isInstalled)
  if (found === undefined && process.env['CI'] === 'true')
    throw new Error(`${names.join(' or ')} is not installed: .ci/run installs it`)
  return found
}

/** Describes tests that need one of these programs. If none is installed, it reports that and skips them. */
export function describeWith(
  needed: string | readonly string[],
  title: string,
  tests: (program: string) => void,
): void {
  const names = [needed].flat()
  const program = findProgram(...names)
  if (program === undefined) {
    process.stderr.write(`Skipped, as ${names.join(' or ')} is not installed: ${title}\n`)
    describe.runIf(false)(title, () => tests(''))
  } else describe(title, () => tests(program))
}
