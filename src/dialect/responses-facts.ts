/** What a Responses response says of itself: its id, what it took, what it called. */
import type { TokenUsage } from '../core/usage.ts'
import { chatUsage } from './chat-facts.ts'
import type { Facts, Tapped } from './dialect.ts'
import { firstText, lastObject } from './usage-text.ts'

/** Its numbers have names of their own, and those inside them. */
function usageOf(usage: unknown): TokenUsage | undefined {
  const renamed =
    typeof usage === 'object' && usage !== null
      ? {
          ...usage,
          prompt_tokens_details: Reflect.get(usage, 'input_tokens_details'),
          completion_tokens_details: Reflect.get(usage, 'output_tokens_details'),
        }
      : usage
  return chatUsage(renamed)
}

/** Does the response say that its provider has not kept it? */
function isForgotten({ head, tail }: Tapped): boolean {
  const said = /"store"\s{0,4}:\s{0,4}(true|false)/g
  const [, last] = [...tail.toString('latin1').matchAll(said)].at(-1) ?? []
  return (last ?? said.exec(head.toString('latin1'))?.[1]) === 'false'
}

/** The id stands at the beginning, in a stream in the first event; what it took at the end. */
export function responsesFacts(tapped: Tapped): Facts {
  const usage = usageOf(lastObject(tapped.tail, 'usage'))
  const id = firstText(tapped.head, 'id')
  return {
    ...(usage ? { usage } : {}),
    ...(id === undefined || isForgotten(tapped) ? {} : { id }),
  }
}
