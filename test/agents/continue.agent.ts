import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.cn

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  const model = { name: 'm', provider: 'openai', model: 'gpt-4o', apiKey: 'sk-test', apiBase: `${url}/v1` }
  const config = { name: 'test', version: '1.0.0', schema: 'v1', models: [{ ...model, roles: ['chat'] }] }
  // JSON is YAML as well.
  const folder = await workspace({ 'config.yaml': JSON.stringify(config) })
  const args = ['-p', prompt, '--auto', '--config', `${folder}/config.yaml`]
  return start(binary, args, folder, { CONTINUE_TELEMETRY_ENABLED: '0' })
}

describe('Continue over Chat Completions', () => {
  behavesBehindGovernor(drive, {
    client: 'Continue',
    program: PROGRAM,
    setting: '`apiBase` in `config.yaml`',
    call: (command) => ({ name: 'Bash', arguments: { command } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
