/** The dialects Governor guards, in the order in which a path is offered to them. */
import { chat } from './chat.ts'
import type { Dialect } from './dialect.ts'
import { messages } from './messages.ts'
import { responses } from './responses.ts'

export const DIALECTS: readonly Dialect[] = [chat, messages, responses]
