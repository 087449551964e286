/** `governor check-config [FILE]`: reads a configuration and says what is wrong with it. */
import { ConfigError, loadConfig } from '../config/load.ts'
import type { Call, Terminal } from './command.ts'
import { openKeys } from './start/start.ts'

/** Says that the configuration is valid, and returns 0. Throws `ConfigError`. */
export function checkConfiguration({ args: [given], flags }: Call, terminal: Terminal): number {
  const { config, file } = loadConfig({ ...flags, config: given ?? flags.config }, terminal.env)
  const problem = openKeys(config)
  if (problem) throw new ConfigError(`${file ?? 'configuration'}: server.host: found ${config.server.host}: ${problem}`)
  terminal.out(`${file ?? 'no configuration file: defaults'}: valid\n`)
  return 0
}
