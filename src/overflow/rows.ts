/**
 * Errors that the general reader would misread. The first row that matches says what an error means; if none matches,
 * the reader reads it. Several wordings of one error are several rows with one id.
 * Text patterns match the error in normal form (`normalised`: lower case, plain digits, no quotes); code patterns also
 * match a code's letters alone (`contextlengthexceeded` for `context_length_exceeded`). No repetition is unbounded. The
 * named groups `limit` and `prompt` are numbers of tokens.
 */
import type { Recovery } from './meaning.ts'

/** The named groups of a match; a group that matched nothing has no value. */
export type Groups = Readonly<Record<string, string | undefined>>

/** A pattern of another engine than JavaScript's: one that matches any text in linear time. */
export interface LinearPattern {
  /** Returns the named groups of the first match; `undefined` if there is none. */
  match(text: string): Groups | undefined
}

/** A regular expression has no flags `g` and `y`. */
export type Pattern = RegExp | LinearPattern

/** `not_overflow`: it only looks like an overflow; `input_too_large`: the error's words and fields say the rest. */
export type Meaning = Recovery | 'not_overflow' | 'input_too_large'

/** A row of the table: an error that meets all its conditions means `means`. */
export interface Row {
  /** Its name in replies and metrics; never changes. */
  readonly id: string
  /** The document or program that has the wording. */
  readonly source?: string | undefined
  readonly status?: readonly number[] | undefined
  /** One of the error's codes or types matches. */
  readonly code?: Pattern | undefined
  readonly text?: Pattern | undefined
  readonly unless?: Pattern | undefined
  readonly means: Meaning
}

/** Returns one pattern from a list with alternatives on each line. */
function anyOf({ raw }: TemplateStringsArray, ...parts: readonly string[]): RegExp {
  const list = String.raw({ raw }, ...parts).trim()
  return new RegExp(list.replace(/\n */g, '|'))
}

const LONG_CONTEXT = '(?:long|1m|1000000|extended|larger)[ -](?:token )?context'
const MORE_THAN = '(?:over|above|beyond|larger than|longer than|more than|exceed(?:s|ing)?)'
const YOUR_PLAN = '(?:your|this|current) (?:plan|tier|subscription)'
const PAID_PLAN = '(?:pro|max|paid|enterprise) (?:plan|tier|subscribers)'
const PLAN = `(?:${YOUR_PLAN}|usage tier|${PAID_PLAN})`
const NOT_INCLUDED = "(?:does not|doesn't|do not) (?:include|support|allow|cover|have access to)"
const UNAVAILABLE = 'not (?:yet )?(?:available|enabled|supported|included)|only available|requires?'
/** A number of tokens, not of tokens per minute. */
const TOKENS = '\\d{4,9}(?! ?(?:tokens? )?(?:per|\\/|requests?))(?: tokens)?'
const TOO_LARGE = '(?:toolong|toolarge|toobig|exceed|overflow|limitexceeded|limitreached)'
const PASSED = 'passed \\d+'
const ONLY = "however, the model's context length is only (?<limit>\\d+)"
const REQUESTED = 'however, you requested \\d+ output tokens'
const SAMPLING = '(?:temperature|top_p|top_k|top_logprobs|presence_penalty|frequency_penalty|stop|n|logprobs|seed)'

/** Errors that look like an overflow and are something else. */
const LOOK_ALIKES: readonly Omit<Row, 'means'>[] = [
  {
    id: 'status-says-no',
    source: 'RFC 9110, section 15.5',
    status: [401, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 414, 415, 416, 417, 421, 426, 431, 451, 504],
  },
  {
    id: 'credits',
    source: 'OpenRouter; opencode zen CreditLimitExceeded',
    text: anyOf`
      \bcredits?\b|can only afford|\bbilling\b|\bbalance\b|insufficient funds|payment required
      package has expired|spend(?:ing)? limit|余额`,
  },
  {
    id: 'budget-of-money',
    source: 'docs.litellm.ai/docs/proxy/error_reference: budgets of keys, teams and users',
    code: /^budgetexceeded$/,
  },
  {
    id: 'budget-of-account',
    source: 'gateways with budgets in tokens for keys, teams and sessions',
    text: anyOf`
      \bbudget (?:has been |was |is )?exceeded\b
      \b(?:key|team|user|account|session)\b[^.\n]{0,40}\btoken budget\b`,
    unless: /\b(?:context|prompt|input|model|messages|conversation|chat|history|sequence|kv)\b/,
  },
  {
    id: 'thinking-budget',
    source: 'DashScope, Anthropic and Gemini: the budget of thinking is a parameter',
    text: /\b(?:thinking|reasoning)[ _.]{0,3}(?:enabled\.)?budget|\bbudget_?tokens\b/,
    // Beside something else that is too large, or in advice, it is not what the error is about.
    unless: anyOf`
      \b(?:context|prompt|messages|conversation|sequence)\b|\binput (?:tokens|length)\b
      (?:\b(?:and|or|plus|reduce|lower|decrease|disable)|\+) (?:the |your )?(?:thinking|reasoning)\b`,
  },
  {
    id: 'rate-limit',
    source: 'RFC 6585, section 4; Anthropic 529',
    status: [429, 529],
  },
  {
    id: 'rate-limit',
    source: 'OpenAI, Azure, Anthropic, Groq, Bedrock and Google rate limit errors',
    code: anyOf`
      ^ratelimit(?:error|exceeded|ed)$
      ^throttling(?:error|exception)?$
      ^(?:resourceexhausted|toomanyrequests|overloadederror)$
      ^(?:insufficientquota|exceededcurrentquotaerror|quotaexceeded)$`,
  },
  {
    id: 'rate-limit',
    source: 'OpenAI, Azure, Anthropic, Groq, Bedrock and Google rate limit errors',
    text: anyOf`
      (?:tokens?|requests?|characters?)[ _-]?(?:per|\/)[ _-]?(?:s|sec|second|m|min|minute|h|hour|d|day)\b
      (?:\b|_)per[ _-](?:minute|day|hour|second)(?:\b|_)
      tokens (?:in|within|over|every) \d{1,6}[ -]?(?:s|sec|seconds?|min|minutes?|hours?)\b
      tokens (?:in|within|over) (?:a|the last|the past) (?:\d{1,6}[ -]?)?(?:s|sec|seconds?|min|minutes?|hours?|day)\b
      \b(?:tpm|rpm|tpd|rpd|itpm|otpm)\b|rate[ _-]?limit|too many (?:concurrent )?requests|throttl|\bquota\b
      (?:daily|weekly|monthly|hourly|usage) (?:\w{1,30} )?(?:limit|allowance|cap\b|budget\b)
      \benqueued\b|concurren(?:t|cy)|(?<!tokens )\bat once\b
      high demand|overloaded|peak load|please wait|slow down|right now
      try again (?:later|in \d|once|after|when)|\bresets? (?:at|in|on|after)\b|retry (?:after|in|shortly)
      \b(?:used|tokens|limit|quota) (?:for )?(?:today|this (?:minute|hour|day|week|month))\b
      频率限制|速率限制|每分钟`,
  },
  {
    id: 'parameters',
    source: 'OpenAI, Anthropic, vLLM, Cohere and Volcengine parameter errors',
    code: anyOf`
      ^(?:unsupported|unknown|missingrequired)parameter$
      ^(?:unsupportedvalue|invalidtype)$
      ^(?:integer|decimal)belowminvalue$
      ^decimalabovemaxvalue$
      ^(?:string|array)abovemaxlength$`,
  },
  {
    id: 'parameters',
    source: 'OpenAI, Anthropic, vLLM, Cohere and Volcengine parameter errors',
    text: anyOf`
      (?:unsupported|unknown|unrecognized|unexpected) (?:request )?(?:parameter|argument|keyword|field)
      extra inputs are not permitted|is not supported with this model|missing required|field required
      cannot be set at the same time|cannot both be|must be (?:strictly )?positive
      below minimum value|greater than or equal to
      must be (?:at least|greater than|>=?|≥|a positive)|should be (?:at least|greater than|a positive)
      \b${SAMPLING} (?:must|should|cannot|is too|exceeds)|'${SAMPLING}'
      \blogit_bias\b|\bvocab(?:ulary)?\b|\bstop sequences?\b
      (?:string|array|object) too (?:long|large)|maximum (?:nesting )?depth|prompt_cache_key|safety_identifier
      \bmin_tokens\b|(?<!physical |current )\bbatch (?:size|too)
      too many inputs|number of inputs
      too many (?:images|tools|functions|stop sequences|files|documents|tool calls)
      could not finish the message|length limit was reached|context (?:window|length|size) (?:is )?too small
      does not support (?:tools|images|image|functions|function|streaming|audio|vision|the parameter)
      invalid (?:role|json|function arguments|message role|api key)`,
  },
  {
    id: 'memory',
    source: 'ollama/ollama: model requires more system memory; vLLM KV cache check',
    text: anyOf`
      out of memory|(?:system|available) memory
      memory (?:is )?(?:insufficient|available|required)|memory (?:guard|budget|limit)
      (?:insufficient|not enough|requires more) (?:system |gpu )?(?:memory|resources)|\boom\b|\bvram\b
      stored in kv cache|cuda error|failed to allocate|显存|内存不足`,
  },
  {
    id: 'moderation',
    source: 'Azure content management policy; DashScope data_inspection_failed',
    code: /^(?:contentfilter|contentpolicyviolation|responsibleaipolicyviolation|datainspectionfailed)$/,
  },
  {
    id: 'moderation',
    source: 'Azure content management policy',
    text: anyOf`
      \bsafety\b(?! (?:margin|buffer|reserve|factor))|\bmoderation\b|content[ _](?:filter|policy|management)
      \binappropriate\b|\brisk (?:score|level)|\b(?:was|been|is) flagged\b`,
  },
  {
    id: 'time-is-up',
    source: 'Go and gRPC: context deadline exceeded',
    text: /deadline[ _]?exceeded|\btimed? ?out\b|timeout|\bretries (?:\(\d{1,3}\) )?exceeded/,
  },
  {
    id: 'bytes',
    source: 'HTTP 413 of gateways; Gemini payload size; gRPC message size',
    text: anyOf`
      \b\d{1,15}(?:\.\d{1,15})? ?(?:bytes?|kb|mb|gb|kib|mib|gib|characters?|chars)\b
      \bbytes\b|character limit|number of characters
      payload|request entity too large|request_too_large|body (?:is |was )?too large|maximum (?:request |body )?size
      message larger than max|header|buffer limit|member must have length|content[- ]length (?:exceeded|too)`,
    unless: /\btokens?\b|context (?:length|window|size)/,
  },
  {
    id: 'attachments',
    source: 'docs.anthropic.com: image exceeds 5 MB maximum',
    text: anyOf`
      (?:image|pdf|file|audio|video|attachment|document)s?\b[^.\n]{0,60}(?:too (?:large|many|big)|exceeds?)
      (?:audio|video|clip)s?\b[^.\n]{0,60}too long`,
    unless: /\btokens?\b|context/,
  },
]

/** The built-in rows, in the order in which they are matched: errors that the general reader misreads or misses. */
export const ROWS: readonly Row[] = [
  {
    id: 'loop-refused',
    source: "a provider's own search for loops, with 400 or 500",
    status: [400, 500],
    text: /repetitive tool calls? (?:were |was )?detected/,
    means: 'loop_refused',
  },
  // Plan limits, which look like rate limits.
  {
    id: 'anthropic-long-context',
    source: 'anthropics/claude-code#6871, #53607',
    text: anyOf`
      context-\d{0,9}(?:1m|000)[^.\n]{0,60}not\b
      ${LONG_CONTEXT}[^.\n]{0,60}(?:${UNAVAILABLE}|\bbeta\b)
      (?:extra usage|credits?)[^.\n]{0,30}required[^.\n]{0,30}${LONG_CONTEXT}`,
    means: 'tier_downgrade',
  },
  {
    id: 'plan-context',
    source: 'wordings of coding plans and gateways',
    text: anyOf`
      (?:context|prompts?|requests?)[^.\n]{0,50}${MORE_THAN} ${TOKENS}[^.\n]{0,40}${PLAN}
      (?:plan|tier|subscription) ${NOT_INCLUDED}[^.\n]{0,30}${LONG_CONTEXT}
      (?:upgrade|higher tier)[^.\n]{0,40}${LONG_CONTEXT}`,
    means: 'tier_downgrade',
  },
  // A lack of credits is no overflow, whatever the code says.
  { id: 'credits', source: 'OpenRouter', status: [402], means: 'not_overflow' },
  // Codes before words.
  {
    id: 'context-length-code',
    source: 'context_length_exceeded, ContextWindowExceededError, context_too_large: OpenAI and others',
    code: anyOf`
      context(?:length|window|size|limit|tokens?|tokenlimit|tokencount)?${TOO_LARGE}
      context(?:length|window|size)failed
      exceed(?:s|ed)?(?:max)?context
      outofcontext`,
    means: 'input_too_large',
  },
  // Wordings that a later row would take for no overflow, or the reader for another one.
  {
    id: 'vllm-passed-tokens',
    source:
      'vllm/renderers/params.py: tokenising is cut at limit - output + 1, so the count of input tokens says nothing',
    text: anyOf`${PASSED} input tokens and requested \d+ output tokens\. ${ONLY}`,
    means: 'unknown_overflow',
  },
  {
    id: 'vllm-passed-tokens',
    source: 'vllm/renderers/params.py',
    text: anyOf`length is (?<limit>\d+) tokens\. ${REQUESTED} and your prompt contains at least \d+ input`,
    means: 'unknown_overflow',
  },
  {
    id: 'vllm-passed-characters',
    source: 'vllm/renderers/params.py: text length check',
    text: anyOf`${PASSED} input characters[^.]{0,60}\. ${ONLY} tokens`,
    means: 'shrink_context',
  },
  {
    id: 'bedrock-max-length',
    source: 'docs.aws.amazon.com/bedrock: characters, no window to learn',
    text: /expected maxlength: ?\d+, actual: ?\d+/,
    means: 'compress_only',
  },
  {
    id: 'minimax-window',
    source: 'MiniMax-AI/MiniMax-M2#119: (2013) is the status of every refusal, and no number',
    text: /context window exceeds? (?:the )?limit/,
    means: 'compress_only',
  },
  ...LOOK_ALIKES.map((row): Row => ({ ...row, means: 'not_overflow' })),
  // Wordings of single servers.
  {
    id: 'llama-cpp-python',
    source: 'abetlen/llama-cpp-python, Llama.create_completion',
    text: /requested tokens \((?<prompt>\d+)\) exceed context window of (?<limit>\d+)/,
    means: 'shrink_context',
  },
  {
    id: 'lmstudio-keep',
    source: 'lmstudio-ai/lmstudio-bug-tracker',
    text: /n_keep[: (]{1,3}(?<prompt>\d+)\)? ?>= ?n_ctx[: (]{1,3}(?<limit>\d+)/,
    means: 'shrink_context',
  },
  {
    id: 'cerebras-length',
    source: 'cline/cline#5140',
    text: /current length is (?<prompt>\d+) while limit is (?<limit>\d+)/,
    means: 'shrink_context',
  },
  {
    id: 'groq-reduce',
    source: 'console.groq.com: it only gives advice',
    text: /^please reduce the length of (?:the|your) (?:messages|prompt)[^.\n]{0,30}\.?$/m,
    means: 'compress_only',
  },
  {
    id: 'too-large-for-model',
    source: 'wordings of proxies: tokens or bytes is not said',
    text: /request (?:is )?too large for (?:the |this )?model\b/,
    means: 'unknown_overflow',
  },
  {
    id: 'context-overflow',
    source: 'wordings of agents that pass an overflow on',
    text: /detected (?:a )?context overflow|^context[ _]overflow\.?$/m,
    means: 'unknown_overflow',
  },
]
