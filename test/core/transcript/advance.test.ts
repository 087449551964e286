import { describe, expect, it } from 'vitest'
import { Work } from '../../../src/core/bounds/work.ts'
import { advance, EMPTY_TRANSCRIPT } from '../../../src/core/conversation/transcript.ts'
import { conversationOf, registry, said, user } from '../transcript.ts'

describe('a transcript that is read in turns', () => {
  const messages = [user('Go.'), said('Hm.'), user('On.'), said('Hm.')]
  const work = new Work(10_000_000)
  work.spend(200_000)
  const conversation = { ...conversationOf(messages), work }
  const all = advance(EMPTY_TRANSCRIPT, conversation, 4, registry)

  it('goes on by one message in each turn while others wait, and ends as one that was read at once', () => {
    let state = EMPTY_TRANSCRIPT
    const lengths: number[] = []
    while (state.length < messages.length) {
      state = advance(state, conversation, messages.length, registry, true)
      lengths.push(state.length)
    }
    expect(lengths).toEqual([1, 2, 3, 4])
    expect(state).toEqual(all)
  })

  it('is read in one turn where nobody waits', () => {
    expect(advance(EMPTY_TRANSCRIPT, conversationOf(messages), 4, registry, true)).toEqual(all)
    expect(advance(all, conversation, 4, registry, true)).toBe(all)
  })
})
