#!/usr/bin/env bash
# cline's command line with a model that asks for the same command in every answer.
#
# Seen with cline 3.0.65: it executes the command four times, does not execute the fifth call, and ends: it prints that it was aborted
# "by another client", though there is none, nothing about a loop, and the exit code is 0. A script that looks at the exit code takes that for done.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "cline@3.0.65"
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { serve, verdict } from './server.mjs'

const call = { name: 'run_commands', arguments: { commands: ['echo x >>executed'] } }
const { url: baseUrl, bodies } = await serve(() => ({ calls: [call] }))
const folder = `${process.cwd()}/home`
// What `cline auth` writes.
const provider = 'openai-compatible'
const settings = { provider, apiKey: 'k', model: 'gpt-4o', baseUrl }
const known = { settings, updatedAt: '2026-01-01T00:00:00.000Z', tokenSource: 'manual' }
mkdirSync(`${folder}/.cline/data/settings`, { recursive: true })
writeFileSync(
  `${folder}/.cline/data/settings/providers.json`,
  JSON.stringify({ version: 1, lastUsedProvider: provider, modes: {}, providers: { [provider]: known } }),
)
const args = ['-P', provider, '-m', 'gpt-4o', 'Run the steps you planned.']
const child = spawn(`${process.cwd()}/node_modules/.bin/cline`, args, {
  cwd: folder,
  stdio: ['ignore', 'pipe', 'pipe'],
  env: { PATH: process.env.PATH, HOME: folder, CI: '1', NO_COLOR: '1', CLINE_NO_AUTO_UPDATE: '1' },
})
let [stdout, stderr] = ['', '']
child.stdout.on('data', (data) => (stdout += data))
child.stderr.on('data', (data) => (stderr += data))
const code = await new Promise((resolve) => child.once('close', resolve))
verdict(
  {
    code,
    asked: bodies.length,
    executed: readFileSync(`${folder}/executed`, 'utf8').trim().split('\n').length,
    saysAborted: stdout.includes('aborted by another client'),
    saysLoop: /loop|repeat/i.test(stdout + stderr),
  },
  { code: 0, asked: 5, executed: 4, saysAborted: true, saysLoop: false },
)
JS
node run.mjs
