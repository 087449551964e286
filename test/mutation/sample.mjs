/** Plugins of Stryker: a sample of the mutants, the same ones each time for the same sources, and the list of survivors. */
import { createHash } from 'node:crypto'
import { relative } from 'node:path'
import { commonTokens, declareClassPlugin, PluginKind, tokens } from '@stryker-mutator/api/plugin'

class Sample {
  static inject = tokens(commonTokens.options)

  constructor({ sample }) {
    this.share = Number(process.env.MUTANTS ?? sample)
  }

  async init() {}

  /** Returns for each mutant whether it is run: one that is left out counts as one that does not compile. */
  async check(mutants) {
    const results = mutants.map(({ id, fileName, mutatorName, replacement, location: { start, end } }) => {
      const place = [start.line, start.column, end.line, end.column].join(':')
      const name = [relative('.', fileName), mutatorName, place, replacement].join(' ')
      const isIn = createHash('sha256').update(name).digest().readUInt32BE() < this.share * 2 ** 32
      return [id, isIn ? { status: 'passed' } : { status: 'compileError', reason: 'not in the sample' }]
    })
    return Object.fromEntries(results)
  }
}

/** Writes each mutant that no test failed for as soon as that is known: a run takes an hour and more. */
class Survivors {
  onMutantTested({ fileName, location: { start }, mutatorName, replacement, status }) {
    if (status !== 'Survived' && status !== 'NoCoverage') return
    process.stdout.write(
      `${status} ${relative('.', fileName)}:${start.line}:${start.column} ${mutatorName} ${replacement}\n`,
    )
  }
}

export const strykerPlugins = [
  declareClassPlugin(PluginKind.Checker, 'sample', Sample),
  declareClassPlugin(PluginKind.Reporter, 'survivors', Survivors),
]
