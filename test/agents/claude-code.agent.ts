import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, type Program, start, workspace } from './program.ts'

const PROGRAM: Program = { name: '@anthropic-ai/claude-code', version: '2.1.330', bin: 'claude' }

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  const folder = await workspace()
  const args = ['-p', prompt, '--model', 'claude-sonnet-4-5', '--allowedTools', 'Bash']
  return start(binary, args, folder, {
    ANTHROPIC_BASE_URL: url,
    ANTHROPIC_API_KEY: 'sk-ant-test',
    CLAUDE_CONFIG_DIR: `${folder}/.claude`,
    DISABLE_AUTOUPDATER: '1',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    IS_SANDBOX: '1',
  })
}

describe('Claude Code', () => {
  behavesBehindGovernor(drive, {
    call: (command) => ({ name: 'Bash', arguments: { command, description: 'step' } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
    session: 'x-claude-code-session-id',
  })
})
