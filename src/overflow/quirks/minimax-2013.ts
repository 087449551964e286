import type { Quirk } from '../quirk.ts'

export const minimax2013: Quirk = {
  id: 'minimax-2013',
  provider: 'MiniMax',
  claims: 'Status 2013 closes every refusal of parameters; none of the others is about size.',
  source: 'platform.minimax.io error codes',
  read: (reply) =>
    reply.codes.has('2013') || /invalid params[^\n]{0,400}\(2013\)$/.test(reply.text) ? 'none' : undefined,
  examples: [
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message: 'invalid params, tool result has no tool call (2013)',
        },
      },
      means: 'none',
    },
    {
      status: 200,
      body: { base_resp: { status_code: 2013, status_msg: 'invalid params, role not supported' } },
      means: 'none',
    },
  ],
}
