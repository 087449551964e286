#!/usr/bin/env bash
# qwen-code in its headless form (`-p`) with a model that answers the only question at once, without a call.
#
# Seen with @qwen-code/qwen-code 0.24.4, Node 22.23: after the answer is printed, the program goes on and asks the model again: a second
# agent, with a system text of its own, is told to keep what is worth remembering of the talk, and may use the shell and write
# files. Its request is more than half as long as the one for the answer, and nothing that is printed mentions it. A setting turns it
# off (`memory.enableManagedAutoMemory`).
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "node@22.23.3" "@qwen-code/qwen-code@0.24.4"
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { mkdirSync, realpathSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { serve, verdict } from './server.mjs'

const node = dirname(realpathSync('node_modules/.bin/node'))

/** Runs the program in a folder of its own; returns the tools of each request, and what it printed. */
async function run(name, memory) {
  const { url, bodies } = await serve(() => ({ text: 'It is Oslo.' }))
  const folder = `${process.cwd()}/${name}`
  mkdirSync(`${folder}/.qwen`, { recursive: true })
  writeFileSync(`${folder}/.qwen/settings.json`, JSON.stringify({ memory, general: { enableAutoUpdate: false } }))
  const args = ['-p', 'Which city is it?', '--yolo', '--auth-type', 'openai', '-m', 'qwen3-coder-plus']
  const child = spawn(`${process.cwd()}/node_modules/.bin/qwen`, args, {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {
      PATH: `${node}:${process.env.PATH}`,
      HOME: folder,
      CI: '1',
      OPENAI_API_KEY: 'sk',
      OPENAI_BASE_URL: url,
      QWEN_CODE_SUPPRESS_YOLO_WARNING: '1',
    },
  })
  let [stdout, stderr] = ['', '']
  child.stdout.on('data', (data) => (stdout += data))
  child.stderr.on('data', (data) => (stderr += data))
  await new Promise((resolve) => child.once('close', resolve))
  const mayRun = ({ tools = [] }) =>
    ['run_shell_command', 'write_file'].every((tool) => tools.some(({ function: { name: one } }) => one === tool))
  return {
    requests: bodies.length,
    withShellAndFiles: bodies.filter(mayRun).length,
    printed: stdout.trim(),
    saysMemory: /memor/i.test(stdout + stderr),
  }
}

const seen = {
  byDefault: await run('default', {}),
  turnedOff: await run('off', { enableManagedAutoMemory: false, enableManagedAutoDream: false }),
}
verdict(seen, {
  byDefault: { requests: 2, withShellAndFiles: 2, printed: 'It is Oslo.', saysMemory: false },
  turnedOff: { requests: 1, withShellAndFiles: 1, printed: 'It is Oslo.', saysMemory: false },
})
JS
node run.mjs
