import { type Quirk, says } from '../quirk.ts'

export const timeIsUp: Quirk = {
  id: 'time-is-up',
  provider: 'everyone',
  claims: 'Time limits and retries, which also exceed.',
  source: 'Go and gRPC: context deadline exceeded',
  read: says(
    /deadline[ _]?exceeded|\btimed? ?out\b|timeout|\bretries (?:\(\d{1,3}\) )?exceeded/,
    () => 'none',
  ),
  examples: [
    {
      status: 500,
      body: { error: { message: 'context deadline exceeded', type: 'server_error' } },
      means: 'none',
    },
  ],
}
