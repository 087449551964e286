#!/usr/bin/env bash
# A chat of Google's SDK, and what a second question is sent with, by how the first answer ended.
#
# Seen with @google/genai 3.3.0, Node 20.20. Gemini often ends a stream with a chunk that has the finish reason and no parts. Then neither
# the question nor the answer, which the user has read, is in any later request, and nothing says so; `getHistory()` has the question and
# an empty answer. The same becomes of a question whose thinking took up all the output tokens, so that the answer has no text. A
# question whose stream was left with `break` is in no history at all. A streamed answer is sent back as one message for each piece.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @google/genai@3.3.0
cat >run.mjs <<'JS'
import { GoogleGenAI } from '@google/genai'
import { serveGemini, verdict } from './server.mjs'

const shown = (contents) =>
  contents.map(({ role, parts }) => `${role}: ${parts?.map(({ text }) => text).join('') ?? 'nothing'}`)
const whole = (chat, message) => chat.sendMessage({ message })
const streamed = async (chat, message) => {
  for await (const _ of await chat.sendMessageStream({ message }));
}
const left = async (chat, message) => {
  for await (const _ of await chat.sendMessageStream({ message })) break
}

/** Asks two questions, the first with `ask`, and says what the second is sent with. */
async function run(ask, first) {
  const { url, bodies } = await serveGemini((_, number) => (number === 1 ? first : { text: 'A second answer.' }))
  const client = new GoogleGenAI({ apiKey: 'k', httpOptions: { baseUrl: url } })
  const chat = client.chats.create({ model: 'gemini-2.5-flash' })
  await ask(chat, 'My name is Ada. Which city?')
  const history = shown(chat.getHistory())
  await whole(chat, 'And when?')
  return { 'sent with the second question': shown(bodies[1].contents.slice(0, -1)), 'getHistory()': history }
}

const question = 'user: My name is Ada. Which city?'
const both = (...contents) => ({ 'sent with the second question': contents, 'getHistory()': contents })
verdict(
  {
    whole: await run(whole, { text: 'It is Oslo.' }),
    'a stream whose last chunk has text': await run(streamed, { pieces: ['It is ', 'Oslo.'] }),
    'a stream whose last chunk has no parts': await run(streamed, { pieces: ['It is ', 'Oslo.', null] }),
    'all tokens went into thinking': await run(whole, { finishReason: 'MAX_TOKENS' }),
    'a stream that is left': await run(left, { pieces: ['It is ', 'Oslo.'] }),
  },
  {
    whole: both(question, 'model: It is Oslo.'),
    'a stream whose last chunk has text': both(question, 'model: It is ', 'model: Oslo.'),
    'a stream whose last chunk has no parts': { ...both(), 'getHistory()': [question, 'model: '] },
    'all tokens went into thinking': { ...both(), 'getHistory()': [question, 'model: nothing'] },
    'a stream that is left': both(),
  },
)
process.exit()
JS
node run.mjs
