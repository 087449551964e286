import { type Quirk, says } from '../quirk.ts'

export const groqReduce: Quirk = {
  id: 'groq-reduce',
  provider: 'Groq',
  claims: 'An advice is all it says.',
  source: 'console.groq.com',
  read: says(/^please reduce the length of the messages or completion\.?$/m, () => ({
    recovery: 'compress_only',
  })),
  examples: [
    {
      status: 400,
      body: { error: { message: 'Please reduce the length of the messages or completion.' } },
      means: 'compress_only',
    },
  ],
}
