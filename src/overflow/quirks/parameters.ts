import { hasCode, type Quirk } from '../quirk.ts'

const CODES = new Set([
  'unsupported_parameter',
  'unknown_parameter',
  'unsupported_value',
  'missing_required_parameter',
  'integer_below_min_value',
  'decimal_above_max_value',
  'decimal_below_min_value',
  'invalid_type',
  'string_above_max_length',
  'array_above_max_length',
])

const WORDS =
  /(?:unsupported|unknown|unrecognized|unexpected) (?:request )?(?:parameter|argument|keyword|field)|extra inputs are not permitted|is not supported with this model|cannot be set at the same time|cannot both be|must be (?:strictly )?positive|below minimum value|must be (?:at least|greater than|>=?|≥|a positive)|should be (?:at least|greater than|a positive)|greater than or equal to|missing required|field required|\b(?:temperature|top_p|top_k|top_logprobs|presence_penalty|frequency_penalty|stop|n|logprobs|seed) (?:must|should|cannot|is too|exceeds)|'(?:temperature|top_p|top_k|top_logprobs|n|stop)'|(?:string|array|object) too (?:long|large)|budget_tokens (?:must|should)|\bmin_tokens\b|maximum (?:nesting )?depth|(?<!physical |current )\bbatch (?:size|too)|too many inputs|number of inputs|prompt_cache_key|safety_identifier|\blogit_bias\b|\bvocab(?:ulary)?\b|\bstop sequences?\b|could not finish the message|length limit was reached|too many (?:images|tools|functions|stop sequences|files|documents|tool calls)|context (?:window|length|size) (?:is )?too small|does not support (?:tools|images|image|functions|function|streaming|audio|vision|the parameter)|invalid (?:role|json|function arguments|message role|api key)/

export const parameters: Quirk = {
  id: 'parameters',
  provider: 'everyone',
  claims: 'Parameters that are wrong rather than too large.',
  source: 'OpenAI, Anthropic, vLLM, Cohere and Volcengine parameter errors',
  read: (reply) => (hasCode(reply, CODES) || WORDS.test(reply.text) ? 'none' : undefined),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
          code: 'unsupported_parameter',
        },
      },
      means: 'none',
    },
    {
      status: 400,
      body: {
        type: 'error',
        error: { type: 'invalid_request_error', message: 'max_tokens: must be positive' },
      },
      means: 'none',
    },
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message: '`max_tokens` must be greater than `thinking.budget_tokens`.',
        },
      },
      means: 'none',
    },
    { status: 400, body: { error: { message: 'max_tokens must be at least 1, got -500.' } }, means: 'none' },
    {
      status: 400,
      body: {
        error: {
          message:
            "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1000, but got a string with length 2000 instead.",
          code: 'string_above_max_length',
        },
      },
      means: 'none',
    },
    {
      status: 400,
      body: { message: 'invalid request: temperature must be between 0 and 2.0 inclusive.' },
      means: 'none',
    },
  ],
}
