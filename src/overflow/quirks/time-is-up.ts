import { type Quirk, says } from '../quirk.ts'

export const timeIsUp: Quirk = {
  id: 'time-is-up',
  provider: 'everyone',
  claims: 'Time limits, which also exceed.',
  source: 'Go and gRPC: context deadline exceeded',
  read: says(/deadline exceeded|\btimed? ?out\b|timeout/, () => 'none'),
  examples: [
    {
      status: 500,
      body: { error: { message: 'context deadline exceeded', type: 'server_error' } },
      means: 'none',
    },
  ],
}
