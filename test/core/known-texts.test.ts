import { describe, expect, it } from 'vitest'
import { hashOfText } from '../../src/core/hash.ts'
import { KnownTexts } from '../../src/core/known-texts.ts'

const textOf = (name: string) => `You are ${name}. ${'Mind the gap. '.repeat(100)}`

describe('texts that are known', () => {
  it('have the hash they have, and are decoded once', () => {
    const texts = new KnownTexts()
    const asked: string[] = []
    const hash = (text: string) =>
      texts.hashOf(Buffer.from(JSON.stringify(text)), () => {
        asked.push(text)
        return text
      })
    for (let round = 0; round < 3; round++) {
      for (const name of ['a', 'b', 'cc']) expect(hash(textOf(name))).toBe(hashOfText(textOf(name)))
    }
    expect(asked).toEqual([textOf('a'), textOf('b'), textOf('cc')])
  })

  it('are forgotten when others come, and do not change with the bytes they came in', () => {
    const texts = new KnownTexts()
    const first = Buffer.from(textOf('a'))
    expect(texts.hashOf(first, () => 'a')).toBe(hashOfText('a'))
    const other = Buffer.from(textOf('b'))
    other.copy(first)
    expect(texts.hashOf(other, () => 'b')).toBe(hashOfText('b'))
    expect(texts.hashOf(Buffer.from(textOf('a')), () => 'x')).toBe(hashOfText('a'))
    for (let at = 0; at < 20; at++) texts.hashOf(Buffer.from(textOf(`${at}`)), () => `${at}`)
    expect(texts.hashOf(Buffer.from(textOf('a')), () => 'x')).toBe(hashOfText('x'))
  })

  it('are none that are short', () => {
    const texts = new KnownTexts()
    expect(texts.hashOf(Buffer.from('"a"'), () => 'a')).toBe(hashOfText('a'))
    expect(texts.hashOf(Buffer.from('"a"'), () => 'b')).toBe(hashOfText('b'))
  })
})
