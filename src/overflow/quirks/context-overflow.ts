import { type Quirk, says } from '../quirk.ts'

export const contextOverflow: Quirk = {
  id: 'context-overflow',
  provider: 'clients and gateways',
  claims: 'A context overflow, and nothing more.',
  source: 'wordings of agents that pass an overflow on',
  read: says(/detected (?:a )?context overflow|^context[ _]overflow\.?$/m, () => ({
    recovery: 'unknown_overflow',
  })),
  examples: [{ status: 400, body: 'Context overflow', means: 'unknown_overflow' }],
}
