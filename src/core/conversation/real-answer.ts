/** Tells whether a model's last text is an answer, rather than reasoning or a tool call written as text. */

import { afterString, isObject, parseForeign } from '../json-object.ts'
import { FOOTER_START } from '../terminal.ts'

/** A word for a call, a part of one, or reasoning; models differ in brackets, bars, namespaces and ends. */
const HIDDEN =
  /^(?:(?:tool|function|call|invoke|param(?:eter)?|arg(?:ument)?|action|plugin|python|interpreter|recipient)s?)+(?:use)?$|^(?:think|thinking|thoughts?|reasoning|inner)$/
/** A word that only says that a mark is the first, or (group 1) the last, of two. */
const EDGE = /^(?:begin|start|open|prefix|(end|stop|close|suffix))$/
/** The name of a mark that ends a message, and with it all that is open. */
const MESSAGE_END = /^(?:end|eom|eot|eos|call|return|s$|im_end)/
/** The name of a mark of a chat template that has no bars. */
const OF_TEMPLATE = /^(?:s|eos|(?:start|end)_of_\w+)$/

/** A mark of a chat template, up to the end of its name, in the brackets that words of the user seldom begin with. */
const MARK = /^[<◁✿](\/?)([|｜]*)(\/?)([\w:.▁|｜-]{1,80})(?![\w:.▁|｜-])/u
/** Attributes of a mark and its end. */
const MARK_REST = /^[^<>◁▷✿]{0,400}[>▷✿]/u
/** In square brackets, only what names a tool's call is a mark. */
const BRACKETED = /^\[(\/?)()()((?:END_)?(?:TOOL|FUNCTION)_[A-Z_]{1,40}|(?:tool|function)_calls?)(?=[\]:\s])\]?/
/** A code block in a language of calls. */
const FENCED = /^```(?:tool|function)[\w-]{0,40}(?=\s)/
/** What may become one of these marks once more characters come. */
const SO_FAR =
  /^(?:[<◁✿]\/?[|｜]*\/?[\w:.▁|｜-]{0,80}|\[\/?[A-Za-z_]{0,50}|`{1,3}(?:[tf][a-z]{0,7})?|```(?:tool|function)[\w-]{0,40})$/u
/** The author of a message, whom some templates name after the mark that begins it. */
const AUTHOR = 'assistant'
/** Characters in which every mark is found. */
const LONGEST_MARK = 500

/** A mark in a reply: `opens` hides text up to its `closes`; a `header` says who gets the message after it. */
interface Mark {
  readonly kind: 'opens' | 'closes' | 'header' | 'none'
  readonly name: string
  readonly length: number
}

/** Returns the mark that a text begins with; `so_far` if more characters may make one; `undefined` if it has none. */
function markAt(text: string): Mark | 'so_far' | undefined {
  if (text.startsWith(FOOTER_START)) return { kind: 'opens', name: '\n', length: FOOTER_START.length }
  const fence = FENCED.exec(text)
  if (fence) return { kind: 'opens', name: '```', length: fence[0].length }
  const [all, slash, bars, later, stated = ''] = MARK.exec(text) ?? BRACKETED.exec(text) ?? []
  if (all === undefined || all.length === text.length) {
    if (SO_FAR.test(text) || FOOTER_START.startsWith(text)) return 'so_far'
    if (all === undefined) return undefined
  }
  const words = stated.toLowerCase().match(/[a-z]+/g) ?? []
  const name = words.flatMap((word) => (EDGE.test(word) ? [] : [word.replace(/s$/, '')])).join('_')
  const isHidden = words.some((word) => HIDDEN.test(word))
  const hasBars = /[|｜]/.test(bars + stated)
  if (!isHidden && !hasBars && !OF_TEMPLATE.test(stated)) return undefined
  // A mark in square brackets has no attributes: what follows is its text.
  const isBracketed = text.startsWith('[')
  const [rest] = (isBracketed ? undefined : MARK_REST.exec(text.slice(all.length))) ?? []
  // A model may be cut off within a mark.
  if (rest === undefined && !isBracketed && text.length < LONGEST_MARK && !/.[<◁✿]/u.test(text)) return 'so_far'
  const length = all.length + (rest?.length ?? 0)
  const only = words.join('_')
  if (hasBars && MESSAGE_END.test(only) && (!isHidden || only === 'call')) return { kind: 'closes', name: '', length }
  if (hasBars && /^(?:start|channel)$/.test(only)) return { kind: 'header', name, length }
  if (!isHidden) {
    const after = text.slice(length)
    if (AUTHOR.startsWith(after)) return 'so_far'
    return { kind: 'none', name, length: length + (after.startsWith(AUTHOR) ? AUTHOR.length : 0) }
  }
  const isRightOnly = bars === '' && /[|｜]$/.test(stated)
  const isEnd = slash !== '' || later !== '' || isRightOnly || words.some((word) => EDGE.exec(word)?.[1])
  return { kind: rest?.endsWith('/>') ? 'none' : isEnd ? 'closes' : 'opens', name, length }
}

/** What a call and its parts are called where a model writes it as JSON. */
const NAME_KEY = /^(?:(?:tool|function|action|recipient)_?)?name$|^(?:tool|function|action)$/
const INPUT_KEY = /^(?:(?:tool|function|action)_?)?(?:arg(?:ument)?s|param(?:eter)?s|input)$/
const LABEL_KEY = /^(?:type|index|(?:(?:tool_?)?call_?)?id)$/
const CALLS_KEY = /^(?:function|(?:tool|function)_?calls?)$/
const CALL_KEYS = [NAME_KEY, INPUT_KEY, LABEL_KEY, CALLS_KEY]

/** How a call, or a list of calls, begins that a model writes as JSON or Python, and what may become it. */
const CALL_START =
  /^(?:```(?:json)?\s*|functools\s*)?(?:\[\s*[a-z_][\w.]{0,80}\(|(?:\[\s*)?\{\s*"(?:[a-z]{1,10}_?)?(?:name|tool|function|action|args|arguments|params|parameters|input|type|index|id|calls?)"\s*:)/i
const CALL_START_SO_FAR =
  /^(?:```(?:j|js|jso|json)?\s*|functools\s*)?(?:\[\s*(?:[a-z_][\w.]{0,80})?|(?:\[\s*)?(?:\{\s*(?:"[a-z_]{0,22}(?:"\s*)?)?)?)$/i
const FUNCTOOLS = 'functools'
/** A list of calls with named arguments. */
const PYTHON_CALLS = /^\[\s*[\w.]+\(\s*(?:\w+\s*=.*)?\)\s*\]$/s
/** Characters; longer texts count as answers. */
const MAX_CALL = 65_536

/** True for an object with a tool's name and arguments, or with such calls, and nothing else. */
function isCall(value: unknown): boolean {
  if (!isObject(value)) return false
  const { type = 'function' } = value
  const members = Object.entries(value).filter(([key]) => !LABEL_KEY.test(key))
  const [[key = '', one] = []] = members
  if (members.length === 1 && CALLS_KEY.test(key) && typeof one === 'object') return areCalls(one)
  const name = members.find((member) => NAME_KEY.test(member[0]))?.[1]
  const input = members.find((member) => INPUT_KEY.test(member[0]))?.[1]
  const hasInput = isObject(input) || (typeof input === 'string' && input.trimStart().startsWith('{'))
  const isNamed = typeof name === 'string' && /function|tool|call/.test(String(type))
  return members.length === 2 && isNamed && hasInput
}

function areCalls(value: unknown): boolean {
  return Array.isArray(value) ? value.length > 0 && value.every(isCall) : isCall(value)
}

/** Reads the brackets of a value: where it ends, -1 if it does not, and the keys of its outermost object. */
function outline(text: string): { readonly end: number; readonly keys: readonly string[] } {
  const keys: string[] = []
  const outermost = text.startsWith('[') ? 2 : 1
  let depth = 0
  for (let at = 0; at < text.length; at++) {
    const char = text[at]
    if (char === '"') {
      const end = afterString(text, at)
      if (depth === outermost && /^\s{0,9}:/.test(text.slice(end, end + 10))) keys.push(text.slice(at + 1, end - 1))
      at = end - 1
    } else if (char === '[' || char === '{') depth++
    else if ((char === ']' || char === '}') && --depth === 0) return { end: at + 1, keys }
  }
  return { end: -1, keys }
}

/** True if a text that begins as a call is only calls: whole ones, or one that was cut off, and marks after them. */
function isOnlyCalls(text: string): boolean {
  let rest = text
  for (;;) {
    const [start] = CALL_START.exec(rest.slice(0, LONGEST_MARK)) ?? []
    if (start === undefined) return !isRealAnswer(rest.replace(/^\s*```/, ''))
    const value = rest.slice(start.search(/[[{]/))
    const { end, keys } = outline(value)
    const isPython = !/^[^(]*"/.test(value.slice(0, LONGEST_MARK))
    if (end === -1) return isPython || keys.every((key) => CALL_KEYS.some((one) => one.test(key)))
    const stated = value.slice(0, end)
    if (!(isPython ? PYTHON_CALLS.test(stated) : isCallText(stated))) return false
    rest = value.slice(end).replace(/^[\s;,]+/, '')
  }
}

function isCallText(text: string): boolean {
  try {
    return areCalls(parseForeign(text))
  } catch {
    return false
  }
}

/**
 * The beginning of a reply that comes in pieces. `isJson`: the client asked for an object, so that one is an answer.
 */
export interface ReplyStart {
  readonly isJson: boolean
  /** Text that is not decided yet. It stays short, so that no character is read again with each piece. */
  rest: string
  /** The name of the mark that hides what follows, and the character with which the mark that closes it begins. */
  hidden: { readonly name: string; readonly bracket: string } | undefined
  /** Characters of what may be a call in JSON; 0 if the reply has not begun as one. */
  callLength: number
}

/** Returns the state of a reply before its first piece. */
export function beginReply(isJson: boolean): ReplyStart {
  return { isJson, rest: '', hidden: undefined, callLength: 0 }
}

const MESSAGE = '<|message|>'

/** Removes what a mark hides, and the mark that closes it. Returns false if more of the reply is needed for that. */
function skipHidden(start: ReplyStart, { name, bracket }: NonNullable<ReplyStart['hidden']>): boolean {
  const { rest } = start
  if (name === 'header') {
    const end = rest.indexOf(MESSAGE)
    if (end === -1 && rest.length < LONGEST_MARK) return false
    // A message with a recipient is a call, and the analysis is the model's reasoning.
    const isShown = end !== -1 && !/\bto=|analysis/.test(rest.slice(0, end))
    start.rest = rest.slice(end === -1 ? 0 : end + MESSAGE.length)
    start.hidden = isShown ? undefined : { name: 'message', bracket: '<' }
    return true
  }
  for (let at = rest.indexOf(bracket); at !== -1; at = rest.indexOf(bracket, at + 1)) {
    const mark =
      name === bracket ? { kind: 'closes', name, length: name.length } : markAt(rest.slice(at, at + LONGEST_MARK))
    if (mark === 'so_far') {
      start.rest = rest.slice(at)
      return false
    }
    if (mark?.kind !== 'closes' || (mark.name !== name && mark.name !== '')) continue
    start.rest = rest.slice(at + mark.length)
    start.hidden = undefined
    return true
  }
  // The closing mark may have begun.
  start.rest = bracket.length > 1 ? rest.slice(1 - bracket.length) : ''
  return false
}

/** Removes markup and white space before what is `rest`. Returns true if that has begun and is no markup. */
function skipMarkup(start: ReplyStart): boolean {
  for (;;) {
    if (start.hidden && !skipHidden(start, start.hidden)) return false
    if (start.hidden) continue
    start.rest = start.rest.trimStart()
    const { rest } = start
    const mark = markAt(rest.slice(0, LONGEST_MARK))
    if (mark === undefined || mark === 'so_far' || rest === '') return mark === undefined && rest !== ''
    const { kind, name, length } = mark
    start.rest = rest.slice(length)
    const bracket = name === '```' || name === '\n' ? name : (rest[0] ?? '')
    if (kind === 'opens') start.hidden = { name, bracket }
    else if (kind === 'header') start.hidden = { name: kind, bracket }
  }
}

/** True if the text is not only reasoning, calls or white space. `isJson`: any object is an answer. Linear. */
export function isRealAnswer(text: string, isJson = false): boolean {
  const reply = beginReply(isJson)
  // Some chat templates open the reasoning block, so that the reply has only its end.
  const orphanClose = text.indexOf('</think>')
  reply.rest = orphanClose === -1 || text.includes('<think>') ? text : text.slice(orphanClose + '</think>'.length)
  if (!skipMarkup(reply)) return false
  const rest = reply.rest.trimEnd()
  if (isJson || rest.length > MAX_CALL) return true
  // Also where the reply ends before it can be known.
  const start = rest.slice(0, LONGEST_MARK)
  return CALL_START.test(start) ? !isOnlyCalls(rest) : !/[[{`]/.test(start) || !CALL_START_SO_FAR.test(rest)
}

/** Returns true if a reply that is no markup so far may still be a call written as JSON. */
function mayStillBeCall(start: ReplyStart, piece: string): boolean {
  if (start.isJson) return false
  if (start.callLength === 0) {
    const { rest } = start
    // As long as it is white space that comes, one character of it is enough.
    start.rest = rest.replace(/\s+/g, ' ')
    if (!CALL_START.test(start.rest)) return CALL_START_SO_FAR.test(start.rest) || FUNCTOOLS.startsWith(start.rest)
    start.callLength = rest.length
    start.rest = ''
  } else {
    start.callLength += piece.length
  }
  return start.callLength <= MAX_CALL
}

/** Takes the next piece; returns true while the reply may be no answer, so that a stream must hold it. */
export function mayStillBeMarkup(start: ReplyStart, piece: string): boolean {
  if (start.callLength === 0) {
    start.rest += piece
    if (!skipMarkup(start)) return true
  }
  return mayStillBeCall(start, piece)
}
