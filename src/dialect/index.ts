/** The dialects Governor guards, in the order in which a path is offered to them. */
import { chat } from './chat/index.ts'
import type { Dialect } from './dialect.ts'
import { messages } from './messages/index.ts'
import { responses } from './responses/index.ts'

export const DIALECTS: readonly Dialect[] = [chat, messages, responses]
