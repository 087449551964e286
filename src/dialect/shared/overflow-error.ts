/** The errors about too large an input that clients of an API know: they compress their history when they read one. */

/** As OpenAI's clients know it, in Chat Completions and Responses alike. */
export function openaiOverflow(limit: number | undefined, promptTokens: number | undefined): object {
  const message =
    limit === undefined
      ? 'Your input exceeds the context window of this model. Please adjust your input and try again.'
      : promptTokens === undefined
        ? `This model's maximum context length is ${limit} tokens. Please reduce the length of the messages.`
        : `This model's maximum context length is ${limit} tokens. However, your messages resulted in ${promptTokens} tokens. Please reduce the length of the messages.`
  return { message, type: 'invalid_request_error', param: null, code: 'context_length_exceeded' }
}

/** As Anthropic's clients know it; they read the numbers out of it. */
export function anthropicOverflow(limit: number | undefined, promptTokens: number | undefined): object {
  const numbers =
    limit === undefined || promptTokens === undefined ? '' : `: ${promptTokens} tokens > ${limit} maximum`
  return { type: 'invalid_request_error', message: `prompt is too long${numbers}` }
}
