import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.kimi

let installed: Awaited<ReturnType<typeof installForNode22>>
beforeAll(async () => {
  installed = await installForNode22(PROGRAM)
})

/** Drives it over one of the APIs that it speaks. */
const driveOver =
  (type: string, model: string, path: string): Drive =>
  async (url, prompt) => {
    const ran = await start(installed.binary, ['-p', prompt], await workspace(), {
      ...installed.env,
      KIMI_MODEL_PROVIDER_TYPE: type,
      KIMI_MODEL_NAME: model,
      KIMI_MODEL_API_KEY: 'sk-test',
      KIMI_MODEL_BASE_URL: `${url}${path}`,
      KIMI_CODE_NO_AUTO_UPDATE: '1',
    })
    // It notes its new session.
    return ran.code === 0 ? { ...ran, stderr: '' } : ran
  }

const AGENT = {
  program: PROGRAM,
  setting: '`KIMI_MODEL_BASE_URL`',
  call: (command: string) => ({ name: 'Bash', arguments: { command } }),
}

describe('Kimi Code over Chat Completions', () => {
  behavesBehindGovernor(driveOver('openai', 'kimi-k2', '/v1'), {
    ...AGENT,
    client: 'Kimi Code',
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})

describe('Kimi Code over Messages', () => {
  behavesBehindGovernor(driveOver('anthropic', 'claude-sonnet-4-5', ''), {
    ...AGENT,
    client: 'Kimi Code over Messages',
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
