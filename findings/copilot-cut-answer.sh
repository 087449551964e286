#!/usr/bin/env bash
# Copilot CLI with a model of its user's own, each of whose answers the output limit cuts.
#
# Seen with @github/copilot 1.0.102, Node 22.23: it asks the model twice to continue where it left off, prints the three parts as one text, and ends,
# in the middle of a word here, with exit code 0. Nothing in what it prints says that the answer is cut, so a script takes three limits' worth of
# text without an end for an answer.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "node@22.23.3" "@github/copilot@1.0.102"
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, realpathSync } from 'node:fs'
import { dirname } from 'node:path'
import { serve, verdict } from './server.mjs'

const node = dirname(realpathSync('node_modules/.bin/node'))
const parts = ['It is not Bergen, and', ' it is not Molde, and', ' it is not Bod']
const { url, bodies } = await serve((_, number) => ({ text: parts[number - 1], finish: 'length' }))
mkdirSync('home')

const child = spawn(`${process.cwd()}/node_modules/.bin/copilot`, ['-p', 'Which city?', '--allow-all-tools'], {
  cwd: 'home',
  stdio: ['ignore', 'pipe', 'pipe'],
  env: {
    PATH: `${node}:${process.env.PATH}`,
    HOME: `${process.cwd()}/home`,
    CI: '1',
    NO_COLOR: '1',
    COPILOT_PROVIDER_BASE_URL: url,
    COPILOT_PROVIDER_API_KEY: 'k',
    COPILOT_MODEL: 'gpt-4.1',
    COPILOT_OFFLINE: 'true',
    COPILOT_AUTO_UPDATE: 'false',
  },
})
let [stdout, stderr] = ['', '']
child.stdout.on('data', (data) => {
  stdout += data
})
child.stderr.on('data', (data) => {
  stderr += data
})
const [code] = await once(child, 'close')
verdict(
  {
    code,
    requests: bodies.length,
    asksBy: bodies.at(-1).messages.at(-1).content,
    printed: stdout.trim(),
    saysThatItIsCut: /limit|cut|trunc|incomplete|length/i.test(stdout + stderr),
  },
  {
    code: 0,
    requests: 3,
    asksBy: 'Please continue from where you left off.',
    printed: 'It is not Bergen, and it is not Molde, and it is not Bod',
    saysThatItIsCut: false,
  },
)
JS
node run.mjs
