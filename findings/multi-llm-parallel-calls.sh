#!/usr/bin/env bash
# multi-llm-ts over Chat Completions, with a model that reads eight files in one answer, writes 4,000 characters into each in the next, and ends.
#
# Seen with multi-llm-ts 5.1.1, Node 20.20: streamed, the whole answer stands before the result of each of its calls. The third request has 16
# answers with 128 calls, where the model gave two with 16, and is 272,000 characters long instead of 35,000: with n calls in an answer it
# grows with the square of n. Nearly every answer in it has calls that no result follows. Each call is executed once. Asked for whole
# answers the same engine tells the run as it was.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error multi-llm-ts@5.1.1
cat >run.mjs <<'JS'
import { igniteEngine, logger, Message, Plugin } from 'multi-llm-ts'
import { serve, verdict } from './server.mjs'

// Else it logs the arguments and the result of each call.
logger.disable()
const files = [1, 2, 3, 4, 5, 6, 7, 8]
const content = 'A word. '.repeat(500)
const executed = []

class File extends Plugin {
  isEnabled = () => true
  getName = () => 'file'
  getDescription = () => 'Reads or writes a file'
  getPreparationDescription = () => ''
  getRunningDescription = () => ''
  getCompletedDescription = () => ''
  getCanceledDescription = () => ''
  getParameters = () =>
    ['path', 'content'].map((name) => ({ name, type: 'string', description: name, required: name === 'path' }))
  execute = async (_, { path, content }) => {
    executed.push(path)
    return { done: content ? 'written' : 'read' }
  }
}

/** The model: reads eight files, writes 4,000 characters into each, and answers. */
function model(_, number) {
  if (number === 3) return { text: 'Done.' }
  const more = number === 2 ? { content } : {}
  return {
    text: 'Eight files.',
    calls: files.map((file) => ({ name: 'file', arguments: { path: `${number}-${file}`, ...more } })),
  }
}

async function run(streams) {
  executed.length = 0
  const { url, bodies } = await serve(model)
  const engine = igniteEngine('openai', { apiKey: 'k', baseURL: url })
  engine.addPlugin(new File())
  const chat = engine.buildModel('m')
  chat.capabilities.tools = true
  const question = [new Message('user', 'Go through the files.')]
  if (streams) for await (const _ of engine.generate(chat, question));
  else await engine.complete(chat, question)
  const { messages } = bodies.at(-1)
  const answers = messages.filter(({ tool_calls: calls }) => calls)
  return {
    executed: executed.length,
    answersInTheLastRequest: answers.length,
    callsInThem: answers.flatMap(({ tool_calls: calls }) => calls).length,
    results: messages.filter(({ role }) => role === 'tool').length,
    answersThatNotAllResultsFollow: messages.filter(({ tool_calls: calls = [] }, index) =>
      messages.slice(index + 1, index + 1 + calls.length).some(({ role }) => role !== 'tool'),
    ).length,
    thousandCharacters: Math.round(JSON.stringify(messages).length / 1000),
  }
}

verdict(
  { streamed: await run(true), whole: await run(false) },
  {
    streamed: {
      executed: 16,
      answersInTheLastRequest: 16,
      callsInThem: 128,
      results: 16,
      answersThatNotAllResultsFollow: 15,
      thousandCharacters: 272,
    },
    whole: {
      executed: 16,
      answersInTheLastRequest: 2,
      callsInThem: 16,
      results: 16,
      answersThatNotAllResultsFollow: 0,
      thousandCharacters: 35,
    },
  },
)
process.exit()
JS
node run.mjs
