#!/usr/bin/env bash
# Copilot CLI with a model of its user's own that asks for the same shell command four times.
#
# Seen with @github/copilot 1.0.102, Node 22.23: what the model gets is never the same, though the command prints the same: each result ends
# with the number of a new shell (`<shellId: 0 completed with exit code 0>`, then 1, 2, 3). Whatever compares results to find an agent that
# repeats itself finds none. The numbers begin at 0 again in the next run.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "node@22.23.3" "@github/copilot@1.0.102"
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { mkdirSync, realpathSync } from 'node:fs'
import { dirname } from 'node:path'
import { serve, verdict } from './server.mjs'

const node = dirname(realpathSync('node_modules/.bin/node'))
const call = { name: 'bash', arguments: { command: 'echo same', description: 'step' } }
const { url, bodies } = await serve((_, number) => (number <= 4 ? { calls: [call] } : { text: 'Done.' }))
mkdirSync('home')
const args = ['-p', 'Run the steps you planned.', '--allow-all-tools']
const child = spawn(`${process.cwd()}/node_modules/.bin/copilot`, args, {
  cwd: 'home',
  stdio: 'ignore',
  env: {
    PATH: `${node}:${process.env.PATH}`,
    HOME: `${process.cwd()}/home`,
    CI: '1',
    COPILOT_PROVIDER_BASE_URL: url,
    COPILOT_PROVIDER_API_KEY: 'k',
    COPILOT_MODEL: 'gpt-4.1',
    COPILOT_OFFLINE: 'true',
    COPILOT_AUTO_UPDATE: 'false',
  },
})
const code = await new Promise((resolve) => child.once('close', resolve))
const results = bodies.at(-1).messages.filter(({ role }) => role === 'tool').map(({ content }) => content)
verdict(
  { code, results, different: new Set(results).size },
  {
    code: 0,
    results: [0, 1, 2, 3].map((shell) => `same\n<shellId: ${shell} completed with exit code 0>`),
    different: 4,
  },
)
JS
node run.mjs
