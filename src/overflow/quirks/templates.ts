import { type Quirk, says } from '../quirk.ts'

export const templates: Quirk = {
  id: 'templates',
  provider: 'LM Studio, llama.cpp, vLLM',
  claims: 'The chat template refuses the shape of the conversation.',
  source: 'jinja exceptions of chat templates',
  read: says(
    /(?:chat|prompt|jinja) ?template|this template|jinja|raise_exception|roles must alternate/,
    () => 'none',
  ),
  examples: [
    {
      status: 400,
      body: {
        error: { message: 'Error rendering prompt with jinja template: No user query found in messages.' },
      },
      means: 'none',
    },
    {
      status: 500,
      body: { error: { message: 'Conversation roles must alternate user/assistant/user/assistant' } },
      means: 'none',
    },
  ],
}
