#!/usr/bin/env bash
# Claude Code's `claude -p` with an answer that the output limit cuts.
#
# Seen with @anthropic-ai/claude-code 2.1.332: it sends the half back and asks to resume directly, without a recap. The model writes the
# other half, and that half alone is printed, with exit code 0; with `--output-format json` it is the `result` of a `success`. The first half
# is in neither; the JSON has the usage of both, two turns, and the reason `end_turn`. A model that is cut each time is asked four times;
# then an error is printed, with exit code 1, and none of the four texts.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @anthropic-ai/claude-code@2.1.332
cat >run.mjs <<'JS'
import { runClaude, serveMessageStreams, verdict } from './server.mjs'

async function claude(answer, ...args) {
  const { url, bodies } = await serveMessageStreams(answer)
  const { code, printed } = await runClaude(url, `${process.cwd()}/home`, ['-p', ...args, 'Which city?'])
  return { code, requests: bodies.length, printed }
}

const half = { text: 'It is not Bergen, and', stop_reason: 'max_tokens' }
const halves = (body) =>
  JSON.stringify(body.messages).includes('It is not Bergen, and')
    ? { text: 'the tallest one is in Oslo.' }
    : half

const text = await claude(halves)
const json = await claude(halves, '--output-format', 'json')
const { subtype, is_error, result } = JSON.parse(json.printed)
const always = await claude(() => half)
verdict(
  {
    text,
    json: { code: json.code, requests: json.requests, subtype, is_error, result },
    always: { ...always, printed: always.printed.replace(/(?<=maximum\.).*/s, '') },
  },
  {
    text: { code: 0, requests: 2, printed: 'the tallest one is in Oslo.\n' },
    json: { code: 0, requests: 2, subtype: 'success', is_error: false, result: 'the tallest one is in Oslo.' },
    always: {
      code: 1,
      requests: 4,
      printed: "API Error: Claude's response exceeded the 128000 output token maximum.",
    },
  },
)
JS
node run.mjs
