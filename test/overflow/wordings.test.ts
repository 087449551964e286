import { describe, expect, it } from 'vitest'
import { statedNumbers } from '../../src/core/overflow.ts'
import { classify } from '../../src/overflow/classify.ts'
import { QUIRKS } from '../../src/overflow/quirks/index.ts'

const meaning = (message: string, status = 400) => classify({ status, body: { error: { message } } }, QUIRKS)

/** Wordings of nobody in particular, with what they may be taken for (either of several) and the numbers in them. */
const TOO_LARGE: readonly [message: string, recovery: string, numbers: object][] = [
  [
    'max_tokens or max_completion_tokens must be less than 4096 (context length) minus prompt tokens 96',
    'clamp_output_only|unknown_overflow',
    {},
  ],
  [
    'This model supports at most 8192 completion tokens, whereas you provided 9000.',
    'clamp_output_only',
    { maxOutput: 8192 },
  ],
  ['The supplied max_tokens 9000 is above the upper bound 8192', 'clamp_output_only', { maxOutput: 8192 }],
  [
    'max_tokens exceeds the maximum output tokens for model gpt-x: 9000 > 8192',
    'clamp_output_only',
    { maxOutput: 8192 },
  ],
  ['Total input tokens 9001 exceeds limit 8192', 'shrink_context', { limit: 8192, promptTokens: 9001 }],
  [
    'Total prompt tokens: 9001, context window: 8192. Prompt too long.',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'Estimated prompt size (9,001 tokens) exceeds context window (8,192 tokens)',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'request_tokens=9001 limit=8192 error=context_overflow',
    'shrink_context|unknown_overflow',
    { limit: 8192 },
  ],
  ['input too large: 9001 tokens vs 8192 allowed', 'shrink_context', { limit: 8192, promptTokens: 9001 }],
  [
    'Your conversation is 9001 tokens long but this model can only handle 8192.',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'Maximum context length exceeded. Limit: 8192, Actual: 9001',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'Model max length: 8192. Input length: 9001. Input is too long.',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    '(9001 tokens) is longer than the model max (8192 tokens)',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'input_ids length 9001 exceeds max_position_embeddings 8192',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  ['seq_len 9001 > max_seq_len 8192', 'shrink_context', { limit: 8192 }],
  ['Tokens in prompt: 9001; max: 8192', 'shrink_context', { limit: 8192, promptTokens: 9001 }],
  [
    'The prompt tokens you sent, 9001, are more than the 8192 we support.',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'This request requires 9001 tokens of context but only 8192 are available.',
    'shrink_context|unknown_overflow',
    { limit: 8192 },
  ],
  [
    'You tried to send 9001 tokens. Only 8192 tokens fit.',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'Message exceeds the 8192-token limit by 809 tokens',
    'shrink_context|compress_only',
    { limit: 8192, overflowBy: 809 },
  ],
  [
    'context window exceeded: 9001 of 8192 tokens used',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'Prompt uses 112% of the context window (9001/8192)',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'The combined length of the prompt and completion (9001 tokens) is over the context length of 8192',
    'unknown_overflow',
    { limit: 8192 },
  ],
  [
    'Error: max_total_tokens exceeded: 7000 prompt + 2000 completion > 8192',
    'clamp_output_only',
    { limit: 8192, promptTokens: 7000, maxOutput: 1192 },
  ],
  [
    'input=7000 output=2000 total=9000 limit=8192: context length exceeded',
    'clamp_output_only',
    { limit: 8192, promptTokens: 7000, maxOutput: 1192 },
  ],
  [
    'input=9000 output=2000 total=11000 limit=8192: context length exceeded',
    'shrink_context',
    { limit: 8192, promptTokens: 9000 },
  ],
  [
    'Le nombre de tokens (9001) dépasse la limite du modèle (8192)',
    'shrink_context|unknown_overflow',
    { limit: 8192 },
  ],
  ['O prompt tem 9001 tokens, mas o limite é 8192', 'shrink_context', { limit: 8192, promptTokens: 9001 }],
  ['Der Prompt überschreitet das Kontextfenster von 8192 Tokens', 'shrink_context', { limit: 8192 }],
  ['Длина запроса 9001 токенов превышает лимит 8192', 'shrink_context', { limit: 8192, promptTokens: 9001 }],
  ['Tokens exceed the limit, please shorten the text', 'compress_only|unknown_overflow', {}],
  ['本次请求token数(9001)超过模型上下文窗口(8192)', 'shrink_context|unknown_overflow', { limit: 8192 }],
  ['모델의 최대 토큰 수를 초과했습니다', 'compress_only|unknown_overflow', {}],
  ['プロンプトが長すぎます', 'compress_only', {}],
  [
    'The total number of tokens (input + output) 140000 exceeds the maximum of 131072',
    'unknown_overflow',
    { limit: 131072 },
  ],
  [
    'Sum of input tokens and max_tokens (140000) exceeds the maximum sequence length (131072)',
    'unknown_overflow',
    { limit: 131072 },
  ],
  [
    'Prompt tokens + max tokens exceeds context: 7000 + 2000 = 9000 > 8192',
    'clamp_output_only',
    { limit: 8192, promptTokens: 7000, maxOutput: 1192 },
  ],
  [
    'requested max_tokens=4000 with prompt of 7000 tokens exceeds the context of 8192',
    'clamp_output_only',
    { limit: 8192, promptTokens: 7000, maxOutput: 1192 },
  ],
  [
    "'max_tokens' is too large. You requested 5000, the maximum for this model is 4096",
    'clamp_output_only',
    { maxOutput: 4096 },
  ],
  ['Value error, max_tokens must be <= 4096, got 5000', 'clamp_output_only', { maxOutput: 4096 }],
  [
    'The parameter `max_tokens` is out of range: must be in (0, 8192]',
    'clamp_output_only',
    { maxOutput: 8192 },
  ],
  ['max_output_tokens exceeds the model limit (65536)', 'clamp_output_only', { maxOutput: 65536 }],
  [
    'Requested output tokens (70000) exceed maximum output tokens (64000) for model',
    'clamp_output_only',
    { maxOutput: 64000 },
  ],
  ['max_tokens: maximum is 8192', 'clamp_output_only', { maxOutput: 8192 }],
  ['Max tokens 5000 over model max output 4096', 'clamp_output_only', { maxOutput: 4096 }],
  [
    'The maximum number of output tokens is 4096. You asked for 5000.',
    'clamp_output_only',
    { maxOutput: 4096 },
  ],
  [
    'generation length 5000 is larger than the allowed 4096 new tokens',
    'clamp_output_only',
    { maxOutput: 4096 },
  ],
  ['max_completion_tokens (70000) > 65536 (limit for this model)', 'clamp_output_only', { maxOutput: 65536 }],
  ['Parameter max_tokens is over the limit, allowed maximum 8192', 'clamp_output_only', { maxOutput: 8192 }],
  [
    'The prompt is too long for this model: it has ~1.2M tokens and the window is 1M tokens.',
    'shrink_context',
    { limit: 1000000, promptTokens: 1200000 },
  ],
  ['The context window of 200K tokens has been exceeded.', 'shrink_context|compress_only', { limit: 200000 }],
  [
    "Model's maximum context is 8192 tokens; prompt 7000 + completion 2000 = 9000",
    'clamp_output_only',
    { limit: 8192, promptTokens: 7000, maxOutput: 1192 },
  ],
  [
    'Requested 2000 completion tokens but only 1192 remain in the context window (prompt: 7000 tokens, window: 8192 tokens)',
    'clamp_output_only',
    { limit: 8192, promptTokens: 7000, maxOutput: 1192 },
  ],
  [
    'max_tokens (2000) is more than the remaining context of 1192 tokens',
    'clamp_output_only',
    { maxOutput: 1192 },
  ],
  [
    'The prompt uses 7000 of 8192 tokens, leaving 1192; max_tokens=2000 does not fit.',
    'clamp_output_only',
    { limit: 8192, promptTokens: 7000, maxOutput: 1192 },
  ],
  ['ERROR: Input (9001 tok) > context (8192 tok)', 'shrink_context', { limit: 8192, promptTokens: 9001 }],
  [
    'Cannot fit 9001 prompt tokens in a context of 8192',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'ValidationError: number of prompt tokens must not exceed 8192 (got: 9001)',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'Token limit exceeded: your input used 9001 tokens, the model allows 8192',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'Model limit is 8192 tokens, your prompt has 9001 tokens',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'This is 809 tokens more than the maximum context of 8192',
    'compress_only|shrink_context|unknown_overflow',
    { overflowBy: 809 },
  ],
  ['Context window exceeded by 809 tokens (max 8192)', 'shrink_context|compress_only', { limit: 8192 }],
  ['Invalid input: the maximum input length is 8192 tokens.', 'shrink_context', { limit: 8192 }],
  ['The body is too large for small-model. Max size: 8192 tokens.', 'shrink_context', { limit: 8192 }],
  [
    'Input validation error: `max_new_tokens` must be <= 4096. Given: 9000',
    'clamp_output_only',
    { maxOutput: 4096 },
  ],
  [
    'Error in `parameters.max_new_tokens`: ensure this value is less than or equal to 4096',
    'clamp_output_only',
    { maxOutput: 4096 },
  ],
  [
    'The max allowed tokens per submitted batch is 8192. Your batch has 9001 tokens.',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'The maximum context length of small-model is 8192. However, answering your request will take 9001 tokens.',
    'unknown_overflow',
    { limit: 8192 },
  ],
  [
    'Request 0 prompt has 9001 tokens in total, larger than the model input length limit 8192.',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  ['model max length exceeded, max length:8192', 'shrink_context|unknown_overflow', { limit: 8192 }],
  ['input is too large to process. increase the physical batch size', 'compress_only', {}],
  [
    'Prompt exceeds maximum context length: 9001 requested, 8192 available',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  ['exceed session max length. Restart the session.', 'compress_only|unknown_overflow', {}],
  ['token数量超过上限', 'compress_only|unknown_overflow', {}],
  [
    'The prompt (total length 9001) is too long to fit into the model (context length 8192).',
    'shrink_context',
    { limit: 8192, promptTokens: 9001 },
  ],
  [
    'Malformed input request: #/generation/max_new_tokens: 9000 is not less or equal to 4096',
    'clamp_output_only',
    { maxOutput: 4096 },
  ],
  [
    'Malformed input request: #/max_gen_len: 9000 is not less or equal to 4096',
    'clamp_output_only',
    { maxOutput: 4096 },
  ],
]

/** Errors that use the same words about something else. */
const OTHERS: readonly [status: number, message: string][] = [
  [
    429,
    'Requests to the Embeddings_Create Operation have exceeded call rate limit of your current pricing tier. Please retry after 3 seconds.',
  ],
  [429, "This request would exceed your account's rate limit. Please try again later."],
  [400, 'Number of tokens has exceeded your daily token limit'],
  [503, "We currently can't process this many tokens at once. Limit resets in 20s"],
  [503, 'Too many tokens being processed right now, slow down'],
  [429, "You've hit your usage limit. Upgrade to Plus to continue."],
  [403, 'Your account has reached its hourly token allowance'],
  [400, 'Output blocked by content filtering policy'],
  [400, 'messages.1: `tool_use` ids must have `tool_result` blocks immediately after'],
  [400, 'messages: text content blocks must be non-empty'],
  [422, 'prompt: field required'],
  [400, "Invalid 'max_tokens': expected an integer but got a string"],
  [400, "Invalid value: 'max'. Supported values are: 'low', 'medium', 'high'."],
  [400, '`max_tokens` must be greater than 0'],
  [400, 'max_tokens: Input should be greater than or equal to 1'],
  [400, 'Only one of max_tokens and max_completion_tokens can be set'],
  [400, 'Image dimensions exceed max allowed size: 8000 pixels'],
  [400, 'Failed to download image: file too large (25 MB, max 20 MB)'],
  [400, 'Audio file is too long; maximum 1500 seconds'],
  [400, 'A maximum of 128 tools is supported'],
  [400, 'The tool description is too long: 2000 characters, maximum 1024'],
  [400, 'Expected at most 16 items in stop'],
  [400, 'Schema exceeds the maximum of 100 properties'],
  [400, 'Batch too large: 2049 > 2048 inputs'],
  [400, 'Too many inputs for this request. The max number of inputs is 100.'],
  [400, 'input must have less than 2048 items'],
  [431, 'Request header fields too large'],
  [413, 'client intended to send too large body: 12582912 bytes'],
  [413, 'FUNCTION_PAYLOAD_TOO_LARGE'],
  [413, 'HTTP body size exceeds the limit of 10485760'],
  [500, 'KV cache allocation failed for context of 131072 tokens'],
  [400, 'Error rendering prompt with jinja template: Expected an expression'],
  [400, 'Conversation roles must alternate user/assistant'],
  [404, 'Unknown model context-window-test'],
  [404, 'Model not found: gpt-4-32k'],
  [503, 'upstream connect error or disconnect/reset before headers. reset reason: overflow'],
  [502, 'buffer overflow in upstream'],
  [500, 'stack overflow'],
  [400, 'integer overflow in field seed'],
  [503, 'request queue overflow'],
  [503, 'Connection pool limit reached'],
  [502, 'max retries exceeded with url: /v1/chat/completions'],
  [500, 'Max iterations exceeded'],
  [500, 'context deadline exceeded (Client.Timeout exceeded while awaiting headers)'],
  [504, 'operation timed out: max time exceeded'],
  [401, 'Your session token is too long'],
  [400, 'Invalid session context'],
  [400, 'seed must be less than 4294967296'],
  [400, 'top_k must be at most 500'],
  [400, "'n' must be between 1 and 128"],
  [400, 'logprobs is limited to 5'],
  [400, 'temperature exceeds maximum of 1'],
  [400, 'presence_penalty must be <= 2'],
  [400, 'thinking budget 128 is invalid. Please choose a value between 512 and 24576.'],
  [400, 'thinking.budget_tokens must be at most 32000'],
  [400, 'The thinking budget must be less than max_tokens'],
  [400, 'reasoning effort high not supported'],
  [400, 'prompt_cache_key exceeds maximum length of 64'],
  [400, 'metadata.user_id: string should have at most 256 characters'],
  [400, "Invalid 'user': string too long. Expected a string with maximum length 64"],
  [400, "Previous response with id 'resp_1' not found."],
  [400, 'No tool output found for function call call_1.'],
  [400, 'Encrypted content could not be verified'],
  [502, 'Provider returned error'],
  [500, 'Internal error encountered.'],
  [400, 'Bad Request'],
  [503, 'no available channel for model gpt-4-turbo-128k'],
  [403, '预扣费额度失败, 用户剩余额度: 0.5'],
  [429, '当前分组上游负载已饱和，请稍后再试'],
  [400, '请求频率超过限制'],
  [400, 'Token余额不足'],
  [400, '<400> InvalidParameter: The input messages do not contain elements with the role of user'],
  [400, 'BadRequestError -> messages: the conversation ends with the assistant'],
  [400, 'Malformed input request: #/temperature: 2 is not less or equal to 1'],
  [400, 'messages: Too much media: 0 document pages + 101 images > 100'],
  [400, 'invalid request: total number of texts must be at most 1024 - received 1280'],
  [400, 'The prompt has 640 images, more than the 500 images allowed'],
  [400, 'The model supports prompts of at most 8192 tokens and does not support tools'],
]

describe('wordings that no quirk knows', () => {
  it.each(TOO_LARGE)('%s: %s', (message, recovery, numbers) => {
    const overflow = meaning(message)?.overflow
    expect(recovery.split('|')).toContain(overflow?.recovery)
    expect(overflow && statedNumbers(overflow)).toMatchObject(numbers)
  })

  it.each(OTHERS)('%i %s: no overflow', (status, message) => {
    expect(meaning(message, status)).toBeUndefined()
  })
})
