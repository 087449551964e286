#!/usr/bin/env bash
# What ccusage says that Claude Code has used, behind a server whose answers have a `request-id` header, as Anthropic's have, and behind one
# whose answers have none, as those of many gateways and of Ollama.
#
# Seen with ccusage 20.0.24, @anthropic-ai/claude-code 2.1.332, Node 20.20: Claude Code writes a line for each part of an answer (its text, each
# call), all with the usage of the whole. ccusage tells by the two ids, of the message and of the request, that they are one answer, and without the
# second counts each line: an answer with a text and eight calls counts nine times. Of a run of 20,200 tokens it says 101,000, and
# five times the money; `total_cost_usd` of Claude Code itself is right in both cases.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @anthropic-ai/claude-code@2.1.332 ccusage@20.0.24
cat >run.mjs <<'JS'
import { execFileSync } from 'node:child_process'
import { runClaude, serveMessageStreams, verdict } from './server.mjs'

async function run(name, headersOf) {
  const { url } = await serveMessageStreams((_, number) => {
    const calls = [1, 2, 3, 4, 5, 6, 7, 8].map((page) => ({
      name: 'Bash',
      input: { command: `echo ${page}`, description: 'Looks' },
    }))
    const usage = { input_tokens: 10_000, output_tokens: 100 }
    return { ...(number === 1 ? { text: 'I look.', calls } : { text: 'Oslo.' }), usage, headers: headersOf(number) }
  })
  const folder = `${process.cwd()}/${name}`
  const args = ['-p', '--model', 'claude-sonnet-5', '--allowedTools', 'Bash', '--output-format', 'json', 'Which city?']
  const { printed, env } = await runClaude(url, folder, args)
  const ccusage = `${process.cwd()}/node_modules/.bin/ccusage`
  const counted = execFileSync(ccusage, ['daily', '--json', '--offline'], { cwd: folder, env })
  const { totalTokens, totalCost } = JSON.parse(counted).totals
  const cents = (dollars) => (dollars * 100).toFixed(1)
  const { total_cost_usd: cost, usage } = JSON.parse(printed)
  return {
    'Claude Code': `${usage.input_tokens + usage.output_tokens} tokens, ${cents(cost)} cents`,
    ccusage: `${totalTokens} tokens, ${cents(totalCost)} cents`,
  }
}

verdict(
  {
    'with request-id': await run('with', (number) => ({ 'request-id': `req_${number}` })),
    without: await run('without', () => ({})),
  },
  {
    'with request-id': { 'Claude Code': '20200 tokens, 4.2 cents', ccusage: '20200 tokens, 4.2 cents' },
    without: { 'Claude Code': '20200 tokens, 4.2 cents', ccusage: '101000 tokens, 21.0 cents' },
  },
)
process.exit()
JS
node run.mjs
