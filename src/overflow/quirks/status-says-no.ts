import type { Quirk } from '../quirk.ts'

const STATUSES = new Set([
  401, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 414, 415, 416, 417, 421, 426, 431, 451, 504,
])

export const statusSaysNo: Quirk = {
  id: 'status-says-no',
  provider: 'everyone',
  claims: 'Statuses that speak of keys, paths, methods and waiting.',
  source: 'RFC 9110, section 15.5',
  read: ({ status }) => (STATUSES.has(status) ? 'none' : undefined),
  examples: [
    {
      status: 401,
      body: { error: { message: 'Token limit: this token has exceeded its lifetime' } },
      means: 'none',
    },
    {
      status: 408,
      body: { error: { message: 'Timed out reading request body. Try a smaller request size.' } },
      means: 'none',
    },
  ],
}
