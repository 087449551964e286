#!/usr/bin/env bash
# The SDK of Codex: ten turns of one thread, each of two requests of 1,007 tokens, and the usage that `run` returns for each.
#
# Seen with @openai/codex-sdk 0.163.0, Node 20.20: the usage of a turn is that of its thread until then. The tenth turn, which took 2,014 tokens,
# has 20,140, and the sum over the turns says 110,770, five and a half times what was used. A thread that another process resumes goes on
# so. A turn that the output limit cuts is an error of `run`, which has neither usage nor the text that there is; its tokens are in
# the next turn's, and the text is sent in every later request. The attempts that the content filter ended are in no usage.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @openai/codex-sdk@0.163.0
cat >run.mjs <<'JS'
import { mkdirSync } from 'node:fs'
import { Codex } from '@openai/codex-sdk'
import { serve, verdict } from './server.mjs'

const home = `${process.cwd()}/home`
mkdirSync(home)
const options = { model: 'gpt-5', workingDirectory: home, skipGitRepoCheck: true, sandboxMode: 'danger-full-access' }
const tokens = ({ usage }) => usage.input_tokens + usage.output_tokens
const client = (base_url) =>
  new Codex({
    apiKey: 'k',
    env: { PATH: process.env.PATH, HOME: home, CODEX_HOME: home },
    config: { model_provider: 'local', model_providers: { local: { name: 'local', base_url, wire_api: 'responses' } } },
  })

/** Ten turns with a command in each, and one more in a thread that is resumed. */
async function turns() {
  const { url, bodies } = await serve(({ input, tools }) => {
    if (input.at(-1).type === 'function_call_output') return { text: 'Oslo.' }
    return { calls: [{ name: tools.find(({ name }) => name === 'exec_command').name, arguments: { cmd: 'echo 1' } }] }
  })
  const thread = client(url).startThread(options)
  const counted = []
  for (let turn = 0; turn < 10; turn++) counted.push(tokens(await thread.run('Which city?')))
  const sum = counted.reduce((total, count) => total + count)
  const used = bodies.length * 1007
  const resumed = tokens(await client(url).resumeThread(thread.id, options).run('Which city?'))
  return { counted: counted.join(' '), sum, used, resumed }
}

/** Three turns, of whose requests the first is cut, or the first two are ended by the content filter. */
async function cut(incomplete) {
  const { url, bodies } = await serve((_, number) => ({
    text: `Answer ${number}.`,
    ...(number <= incomplete.length ? { finish: 'incomplete', reason: incomplete[number - 1] } : {}),
  }))
  const thread = client(url).startThread(options)
  const seen = []
  for (let turn = 0; turn < 3; turn++)
    seen.push(
      await thread.run('Which city?').then(
        (end) => `${end.finalResponse} ${tokens(end)} tokens of ${bodies.length * 1007}`,
        ({ message }) => message,
      ),
    )
  return { seen, 'first answer in the last request': JSON.stringify(bodies.at(-1).input).includes('Answer 1.') }
}

verdict(
  {
    'ten turns': await turns(),
    'the first one is cut': await cut(['max_output_tokens']),
    'the content filter ends two attempts': await cut(['content_filter', 'content_filter']),
  },
  {
    'ten turns': {
      counted: '2014 4028 6042 8056 10070 12084 14098 16112 18126 20140',
      sum: 110_770,
      used: 20_140,
      resumed: 22_154,
    },
    'the first one is cut': {
      seen: [
        'Incomplete response returned, reason: max_output_tokens',
        'Answer 2. 2014 tokens of 2014',
        'Answer 3. 3021 tokens of 3021',
      ],
      'first answer in the last request': true,
    },
    'the content filter ends two attempts': {
      seen: ['Answer 3. 1007 tokens of 3021', 'Answer 4. 2014 tokens of 4028', 'Answer 5. 3021 tokens of 5035'],
      'first answer in the last request': true,
    },
  },
)
process.exit()
JS
node run.mjs
