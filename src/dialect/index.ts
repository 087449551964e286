/** The dialects that Governor guards, in the order in which they may claim a path. */
import { chat } from './chat/index.ts'
import type { Api, Dialect } from './dialect.ts'
import { messages } from './messages/index.ts'
import { responses } from './responses/index.ts'
import { openai } from './shared/openai.ts'

export const DIALECTS: readonly Dialect[] = [chat, messages, responses]

/** The API of requests that no dialect claims and no other API recognizes. */
export const DEFAULT_API: Api = openai
