/** Some frameworks keep one user message: each question takes the place of the one before, ahead of all answers. */
import { describe, expect, it } from 'vitest'
import { afterStep, callModel, type Step } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { ChatMessage, Script } from '../support/provider.ts'

const SYSTEM: ChatMessage = { role: 'system', content: 'You are a researcher.' }
const ANSWER: ChatMessage = { role: 'assistant', content: 'This is what I found.' }

const asks = (question: string, history: readonly ChatMessage[]) => [
  SYSTEM,
  { role: 'user', content: question },
  ...history,
]

/** Asks until the model answers in words; returns the steps, and what the framework keeps of them. */
async function ask(url: string, question: string, history: readonly ChatMessage[]) {
  const kept = [...history]
  const steps: Step[] = []
  for (let at = 0; at < 12; at++) {
    const step = await callModel(url, asks(question, kept))
    steps.push(step)
    if (!step.message.tool_calls) return { steps, kept: [...kept, step.message] }
    kept.push(...afterStep([], step))
  }
  return { steps, kept }
}

const iterationsOf = (steps: readonly Step[]) => steps.map(({ headers }) => headers.get('x-governor-iteration'))

/** Calls so many times after each question, with other words each time or always the same, and answers then. */
function searcher(calls: number, query = (number: number) => `q${number}`): Script {
  let asked = ''
  let before = 0
  return ({ json }, number) => {
    const question = String(json.messages[1]?.content).replace(/\n\n\[.*/s, '')
    if (question !== asked) [asked, before] = [question, number - 1]
    if (json.tool_choice === 'none' || number - before > calls) return { text: String(ANSWER.content) }
    return { calls: [{ name: 'search', arguments: { query: query(number) } }] }
  }
}

describe('a question in the place of the one before, ahead of all answers', () => {
  it('begins a run where the run before it ended with an answer', async () => {
    const { url } = await startBoth(searcher(3), { budget: { max_iterations: 9, adaptive: false } })
    let history: readonly ChatMessage[] = []
    for (const question of ['Who was it?', 'And where?', 'And why?']) {
      const { steps, kept } = await ask(url, question, history)
      expect(iterationsOf(steps), question).toEqual(['1/9', '2/9', '3/9', '4/9'])
      history = kept
    }
  })

  it('gets an answer of its own where the run before it was stopped', async () => {
    const { url, provider } = await startBoth(searcher(99), { budget: { max_iterations: 3, adaptive: false } })
    let history: readonly ChatMessage[] = []
    for (const question of ['Who was it?', 'And where?', 'And why?']) {
      const asked = provider.requests.length
      const { steps, kept } = await ask(url, question, history)
      expect(iterationsOf(steps), question).toEqual(['1/3', '2/3', '3/3', '3/3'])
      expect(steps.at(-1)?.governor).toMatchObject({ terminal_state: 'tool_limit_reached', has_final_answer: true })
      expect(provider.requests).toHaveLength(asked + 4)
      history = kept
    }
  })

  it('begins without the loops of the runs before it', async () => {
    const { url } = await startBoth(searcher(2, () => 'the same'))
    let history: readonly ChatMessage[] = []
    for (const question of ['Who was it?', 'And where?', 'And why?']) {
      const { steps, kept } = await ask(url, question, history)
      expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual(['allow', 'allow', 'allow'])
      history = kept
    }
  })

  it('begins no run where a harness writes other words there in each request, of an agent that goes on', async () => {
    const { url, provider } = await startBoth(searcher(99), { budget: { max_iterations: 3, adaptive: false } })
    let history: readonly ChatMessage[] = []
    const steps: Step[] = []
    for (let at = 1; at <= 7; at++) {
      const step = await callModel(url, asks(`Who was it? This is step ${at}.`, history))
      steps.push(step)
      history = step.message.tool_calls ? [...history, ...afterStep([], step)] : [...history, step.message]
    }
    expect(iterationsOf(steps)).toEqual(['1/3', '2/3', '3/3', '3/3', '3/3', '3/3', '3/3'])
    expect(provider.requests).toHaveLength(4)
  })

  it('gets a run back neither for the same question, nor for a summary before the beginning of an answer', async () => {
    const { url } = await startBoth(searcher(99), { budget: { max_iterations: 9, adaptive: false } })
    const first = await callModel(url, asks('Who was it?', []))
    const second = await callModel(url, asks('Who was it?', afterStep([], first)))
    const begun = [...afterStep([], second), { role: 'assistant', content: 'Thought:' }]
    const third = await callModel(url, asks('The search for the one who did it goes on.', begun))
    expect(iterationsOf([first, second, third])).toEqual(['1/9', '2/9', '3/9'])
    const { url: other } = await startBoth(searcher(1), { budget: { max_iterations: 9, adaptive: false } })
    const { kept } = await ask(other, 'Who was it?', [])
    const again = await callModel(other, asks('Who was it?', [...kept, { ...ANSWER, content: 'Also:' }]))
    expect(iterationsOf([again])).toEqual(['3/9'])
  })
})
