/** The wire format of Gemini's API, for the scripted provider, and requests that speak it. */
import type { Answer, Received, Script } from './provider.ts'

export type Part = Readonly<Record<string, unknown>>
export interface Content {
  readonly role?: string
  readonly parts: readonly Part[]
}

/** A response, or a chunk of one. */
export interface GeminiBody {
  readonly candidates: readonly { readonly content?: Content; readonly finishReason?: string }[]
  readonly usageMetadata?: Readonly<Record<string, number>>
  readonly governor?: Readonly<Record<string, unknown>>
}

export const MODEL = 'gemini-2.5-flash'
export const WHOLE = `/v1beta/models/${MODEL}:generateContent`
export const EVENTS = `/v1beta/models/${MODEL}:streamGenerateContent?alt=sse`
export const LIST = `/v1beta/models/${MODEL}:streamGenerateContent`

const USAGE = { promptTokenCount: 100, candidatesTokenCount: 10, totalTokenCount: 110 }

const base = (number: number) => ({ modelVersion: MODEL, responseId: `response-${number}` })

/** The parts of an answer: those given before it, its text word by word, its calls. Only the first call is signed. */
function partsOf(answer: Answer): Part[] {
  const words = (answer.text ?? '').split(/(?<= )/).filter((word) => word !== '')
  const calls = (answer.calls ?? []).map(({ id, name, arguments: args }, at) => ({
    functionCall: {
      ...(id === undefined ? {} : { id }),
      name,
      args: typeof args === 'string' ? JSON.parse(args) : args,
    },
    ...(at === 0 ? { thoughtSignature: 'c2lnbmVk' } : {}),
  }))
  return [...((answer.blocks as readonly Part[] | undefined) ?? []), ...words.map((text) => ({ text })), ...calls]
}

/** A response of `generateContent`; its finish reason does not say whether it has calls. */
export function generated(answer: Answer, number: number): object {
  const content = { parts: partsOf(answer), role: 'model' }
  const candidate = { content, finishReason: answer.finish ?? 'STOP', index: 0 }
  return { candidates: [candidate], usageMetadata: answer.usage ?? USAGE, ...base(number) }
}

/** The same as chunks, one for each part, with usage that grows. */
export function generatedChunks(answer: Answer, number: number): object[] {
  const stated = answer.usage ?? USAGE
  const chunk = (part: Part, more: object = {}, usage: object = {}) => ({
    candidates: [{ content: { parts: [part], role: 'model' }, index: 0, ...more }],
    usageMetadata: { ...stated, candidatesTokenCount: 1, totalTokenCount: 101, ...usage },
    ...base(number),
  })
  const parts = partsOf(answer)
  // The last chunk holds the last call, or an empty text.
  const last = answer.calls?.length ? parts.pop() : undefined
  const end = chunk(last ?? { text: '' }, { finishReason: answer.finish ?? 'STOP' }, stated)
  return [...parts.map((part) => chunk(part)), end]
}

/** The same as events, whose lines end as Google's do. */
export function generatedEvents(answer: Answer, number: number): string[] {
  return generatedChunks(answer, number).map((chunk) => `data: ${JSON.stringify(chunk)}\r\n\r\n`)
}

/** What the scripted provider sends for a request of this API: content type and pieces; `undefined` for other requests. */
export function geminiReply({ target }: Received, answer: Answer, number: number) {
  const [, verb, query = ''] =
    /:(generateContent|streamGenerateContent)(?:\?(.*))?$/.exec(target.replace(/%3a/i, ':')) ?? []
  if (verb === undefined) return undefined
  const type = 'application/json; charset=UTF-8'
  if (verb === 'generateContent') return { type, pieces: [JSON.stringify(generated(answer, number))] }
  if (query.includes('alt=sse')) return { type: 'text/event-stream', pieces: generatedEvents(answer, number) }
  const pieces = generatedChunks(answer, number).map(
    (chunk, at) => `${at === 0 ? '[' : ',\r\n'}${JSON.stringify(chunk)}`,
  )
  return { type, pieces: [...pieces, ']'] }
}

/** True if a request is one of this API. */
export function isGemini({ target }: Received): boolean {
  return /:(?:stream)?generateContent/i.test(target)
}

/** True if a request lets the model call a tool. */
export function mayCall({ json }: Received): boolean {
  const config = json['toolConfig'] as { functionCallingConfig?: { mode?: string } } | undefined
  return json.tools !== undefined && config?.functionCallingConfig?.mode !== 'NONE'
}

/** A model that calls one tool for ever, and answers only when it may call none. */
export function runawayGemini(name = 'search', answer = 'This is what I found so far.'): Script {
  return (request, number) =>
    mayCall(request) ? { calls: [{ name, arguments: { query: `q${number}` } }] } : { text: answer }
}

/** The chunks in the body of any response. */
export function chunksIn(body: string): GeminiBody[] {
  const start = body.trimStart()
  if (start.startsWith('[')) return JSON.parse(body) as GeminiBody[]
  if (start.startsWith('{')) return [JSON.parse(body) as GeminiBody]
  return [...body.matchAll(/^data: (.*)$/gm)].map(([, data = '']) => JSON.parse(data) as GeminiBody)
}

/** What a client reads of a response. */
export function answerIn(body: string) {
  const chunks = chunksIn(body)
  const parts = chunks.flatMap(({ candidates }) => candidates[0]?.content?.parts ?? [])
  return {
    text: parts.map(({ text, thought }) => (thought ? '' : (text ?? ''))).join(''),
    parts,
    calls: parts.filter((part) => 'functionCall' in part),
    reason: chunks.findLast(({ candidates }) => candidates[0]?.finishReason)?.candidates[0]?.finishReason,
    usage: chunks.findLast((chunk) => chunk.usageMetadata)?.usageMetadata,
    governor: chunks.findLast((chunk) => chunk.governor)?.governor,
  }
}

export const RESULT = 'found all that there is to know about it'
export const TOOLS = [{ functionDeclarations: [{ name: 'search', description: 'Search' }] }]

/** Runs an agent until the model calls no tool, or `steps` responses have come. Returns what it saw. */
export async function runGemini(url: string, path: string, steps = 20, body: object = {}, prompt = 'What is it?') {
  const contents: Content[] = [{ role: 'user', parts: [{ text: prompt }] }]
  const seen: (ReturnType<typeof answerIn> & { status: number; headers: Headers; body: string })[] = []
  while (seen.length < steps) {
    const response = await fetch(`${url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-goog-api-key': 'k' },
      body: JSON.stringify({ contents, tools: TOOLS, ...body }),
    })
    const text = await response.text()
    const answer = response.ok ? answerIn(text) : answerIn('[]')
    seen.push({ ...answer, status: response.status, headers: response.headers, body: text })
    if (answer.calls.length === 0) break
    const results = answer.calls.map(({ functionCall }) => {
      const { id, name } = functionCall as { id?: string; name: string }
      return { functionResponse: { ...(id ? { id } : {}), name, response: { output: RESULT } } }
    })
    contents.push({ role: 'model', parts: answer.parts }, { role: 'user', parts: results })
  }
  return { seen, contents, last: seen.at(-1) }
}
