import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.nanocoder

let installed: Awaited<ReturnType<typeof installForNode22>>
beforeAll(async () => {
  installed = await installForNode22(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  const provider = { name: 'test', baseUrl: `${url}/v1`, apiKey: 'sk-test', models: ['gpt-4o'] }
  const folder = await workspace({ 'agents.config.json': JSON.stringify({ nanocoder: { providers: [provider] } }) })
  const args = ['--provider', 'test', '--model', 'gpt-4o', '--mode', 'yolo', '--trust-directory', 'run', prompt]
  return start(installed.binary, args, folder, installed.env)
}

describe('nanocoder over Chat Completions', () => {
  behavesBehindGovernor(drive, {
    client: 'nanocoder',
    program: PROGRAM,
    setting: '`baseUrl` in `agents.config.json`',
    call: (command) => ({ name: 'execute_bash', arguments: { command } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
