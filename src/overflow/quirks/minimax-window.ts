import { type Quirk, says } from '../quirk.ts'

export const minimaxWindow: Quirk = {
  id: 'minimax-window',
  provider: 'MiniMax',
  claims: 'The context window is exceeded; 2013 is the status of every refusal, and no number.',
  source: 'MiniMax-AI/MiniMax-M2#119',
  read: says(/context window exceeds? (?:the )?limit/, () => ({ recovery: 'compress_only' })),
  examples: [
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message: 'invalid params, context window exceeds limit (2013)',
        },
      },
      means: 'compress_only',
    },
    {
      status: 200,
      body: { base_resp: { status_code: 2013, status_msg: 'invalid params, context window exceeds limit' } },
      means: 'compress_only',
    },
  ],
}
