import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForBun, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.omp

let installed: Awaited<ReturnType<typeof installForBun>>
beforeAll(async () => {
  installed = await installForBun(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  const model = { id: 'gpt-4o', name: 'm', reasoning: false, input: ['text'], contextWindow: 128_000, maxTokens: 8_000 }
  const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }
  const provider = { baseUrl: `${url}/v1`, api: 'openai-completions', apiKey: 'sk-test', models: [{ ...model, cost }] }
  // JSON is YAML as well.
  const folder = await workspace({ '.omp/agent/models.yml': JSON.stringify({ providers: { test: provider } }) })
  return start(installed.binary, ['-p', '--model', 'test/gpt-4o', prompt], folder, installed.env)
}

describe('oh-my-pi over Chat Completions', () => {
  let intents = 0
  behavesBehindGovernor(drive, {
    client: 'oh-my-pi',
    program: PROGRAM,
    setting: '`baseUrl` in `models.yml`',
    // Models word the intent of each call anew.
    call: (command) => ({ name: 'bash', arguments: { i: `Running step number ${++intents}`, command } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
