#!/usr/bin/env bash
# cline's command line, asked one thing, in two runs that have no answer.
#
# Seen with cline 3.0.65: where the model asks for the same command in every answer, cline executes it four times, does not execute the
# fifth, and ends: it prints that it was aborted "by another client", though there is none, and the exit code is 0. Where nothing listens at
# the base URL, it prints an error, and the exit code is 0 as well. A script that looks at the exit code takes both for done.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "cline@3.0.65"
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { freePort, serve, verdict } from './server.mjs'

/** Runs the program in a folder of its own, with what `cline auth` writes. */
async function run(name, baseUrl) {
  const folder = `${process.cwd()}/${name}`
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
  return { code, saysAborted: stdout.includes('aborted by another client'), saysError: stderr.includes('error:') }
}

const call = { name: 'run_commands', arguments: { commands: ['echo x >>executed'] } }
const { url, bodies } = await serve(() => ({ calls: [call] }))
const loop = await run('loop', url)
const executed = readFileSync('loop/executed', 'utf8').trim().split('\n').length
const gone = await run('gone', `http://127.0.0.1:${await freePort()}/v1`)
verdict(
  { loop: { ...loop, asked: bodies.length, executed }, gone },
  {
    loop: { code: 0, saysAborted: true, saysError: false, asked: 5, executed: 4 },
    gone: { code: 0, saysAborted: false, saysError: true },
  },
)
JS
node run.mjs
