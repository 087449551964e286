/**
 * Texts that a model called for, and that its harness writes in the role of a user after the result of that call: a
 * skill, for example, whose result only says that it was loaded.
 */
import { parseObject } from '../json-object.ts'
import type { Conversation } from './conversation.ts'

/** The start of an element: its name, and its attributes. */
const START = /^<([A-Za-z_][\w.:-]{0,127})((?:\s[^<>]{0,2000})?)>/
const NAME = /\sname="([^"]{1,200})"/

/** The most characters of arguments that are read: those that name something to load are short. */
const MAX_ARGUMENTS = 4096

/** Returns the names of an element that is the whole text: its own, and what its `name` says; none if it is no such. */
function namesOf(text: string): readonly string[] {
  const [, tag, attributes = ''] = START.exec(text) ?? []
  if (tag === undefined || !text.endsWith(`</${tag}>`)) return []
  const [, name] = NAME.exec(attributes) ?? []
  return name === undefined ? [tag] : [tag, name]
}

/** Returns the index of the answer whose results stand right before a message, or in it; -1 if none do. */
function answerBefore(conversation: Conversation, index: number): number {
  let hasResults = false
  for (let at = index; at >= 0; at--) {
    const role = conversation.role(at)
    if (role === 'assistant') return hasResults ? at : -1
    hasResults ||= conversation.resultCount(at) > 0
  }
  return -1
}

/**
 * Returns the text parts of a user message without those that the newest answer called for: each is one element whose
 * name a call has among its arguments.
 */
export function withoutLoaded(conversation: Conversation, index: number): readonly string[] {
  const texts = conversation.texts(index)
  const names = texts.map((text) => namesOf(text.trim()))
  if (names.every(({ length }) => length === 0)) return texts
  const answer = answerBefore(conversation, index)
  if (answer < 0) return texts
  const asked = new Set<unknown>()
  for (const { arguments: text } of conversation.calls(answer))
    if (text.length <= MAX_ARGUMENTS) for (const value of Object.values(parseObject(text) ?? {})) asked.add(value)
  return texts.filter((_, at) => !names[at]?.some((name) => asked.has(name)))
}
