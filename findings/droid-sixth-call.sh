#!/usr/bin/env bash
# droid (`droid exec`) with a model of its user's own that asks for the same command in every answer.
#
# Seen with droid 0.215.0: it executes the command six times and ends: it prints an empty line and nothing about a loop, and the exit code is 0.
# As `-o json` it is `"subtype":"success"` with an empty result. A script that looks at either takes that for done.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "droid@0.215.0"
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { serve, verdict } from './server.mjs'

const command = { command: 'echo x >>executed', summary: 'step', timeout: 60, riskLevel: 'low', riskLevelReason: 'echo' }
const { url: base_url, bodies } = await serve(() => ({ calls: [{ name: 'Execute', arguments: command }] }))
const model = { model_display_name: 'X', model: 'gpt-5', base_url, api_key: 'k', provider: 'generic-chat-completion-api' }

async function run(format) {
  const folder = `${process.cwd()}/${format}`
  mkdirSync(`${folder}/.factory`, { recursive: true })
  writeFileSync(`${folder}/.factory/config.json`, JSON.stringify({ custom_models: [{ ...model, max_tokens: 1000 }] }))
  const args = ['exec', '--auto', 'high', '-o', format, '-m', 'custom:X-0', 'Run the steps you planned.']
  const child = spawn(`${process.cwd()}/node_modules/.bin/droid`, args, {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env.PATH, HOME: folder, CI: '1', NO_COLOR: '1', FACTORY_API_KEY: 'fk-none' },
  })
  let [stdout, stderr] = ['', '']
  child.stdout.on('data', (data) => (stdout += data))
  child.stderr.on('data', (data) => (stderr += data))
  const code = await new Promise((resolve) => child.once('close', resolve))
  const executed = readFileSync(`${folder}/executed`, 'utf8').trim().split('\n').length
  return { code, executed, stdout: stdout.trim(), stderr: stderr.trim() }
}

const text = await run('text')
const { stdout, ...json } = await run('json')
const { subtype, is_error, result } = JSON.parse(stdout)
verdict(
  { asked: bodies.length, text, json: { ...json, subtype, is_error, result } },
  {
    asked: 12,
    text: { code: 0, executed: 6, stdout: '', stderr: '' },
    json: { code: 0, executed: 6, stderr: '', subtype: 'success', is_error: false, result: '' },
  },
)
JS
node run.mjs
