import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { hashOf, hashOfBytes, hashOfText, nameOf } from '../../src/core/hash.ts'

/** Around the length from which on another hash is taken. */
const LONG = 131_072

describe('names of texts', () => {
  it('are equal for equal texts and for no others', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), fc.string({ unit: 'grapheme' }), (a, b) => {
        expect(hashOfText(a) === hashOfText(b)).toBe(a === b)
      }),
    )
  })

  it('are different for a million texts that differ in one digit', () => {
    const names = new Set<string>()
    for (let number = 0; number < 1_000_000; number++) names.add(hashOfText(`call number ${number}`))
    expect(names.size).toBe(1_000_000)
  })

  it('do not depend on what was named before', () => {
    const before = hashOfText('a')
    hashOfText('x'.repeat(LONG))
    hashOfText('y'.repeat(LONG + 1))
    expect(hashOfText('a')).toBe(before)
  })

  it('are different for texts and for bytes', () => {
    for (const length of [0, 1, 31, 32, 33, 1_000, LONG, LONG + 1]) {
      const text = 'a'.repeat(length)
      expect(hashOfBytes(Buffer.from(text))).not.toBe(hashOfText(text))
    }
  })

  it('tell long texts apart by their last character', () => {
    for (const length of [LONG - 1, LONG, LONG + 1]) {
      const text = 'é'.repeat(length - 1)
      expect(hashOfText(`${text}a`)).not.toBe(hashOfText(`${text}b`))
      expect(hashOfBytes(Buffer.from(`${text}a`))).not.toBe(hashOfBytes(Buffer.from(`${text}b`)))
    }
  })

  it('are the same in every process, as several may share a store', () => {
    // xxh64 with seed 0: test vectors of the algorithm.
    expect(hashOfText('')).toBe('ef46db3751d8e999')
    expect(hashOfText('abc')).toBe('44bc2cf5ad770999')
    expect(hashOfBytes(Buffer.from('abc'))).toBe(0x44bc2cf5ad770999n.toString(36))
  })
})

describe('names of what may be a secret', () => {
  it('are made by sha256', () => {
    expect(hashOf('abc')).toHaveLength(43)
    expect(nameOf('abc')).toMatch(/^[0-9a-f]{32}$/)
  })
})
