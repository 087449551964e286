import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import xxhash from 'xxhash-wasm'
import { hashOf, hashOfBytes, hashOfText, nameOf } from '../../src/core/hash.ts'

/** Longer texts are hashed in pieces. */
const LONG = 131_072

describe('hashes of texts', () => {
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

  it('do not depend on what was hashed before', () => {
    const before = hashOfText('a')
    hashOfText('x'.repeat(LONG))
    hashOfText('y'.repeat(LONG + 1))
    expect(hashOfText('a')).toBe(before)
  })

  it('differ from those of the same bytes', () => {
    for (const length of [0, 1, 31, 32, 33, 1_000, LONG, LONG + 1]) {
      const text = 'a'.repeat(length)
      expect(hashOfBytes(Buffer.from(text))).not.toBe(hashOfText(text))
    }
  })

  it('are different for long texts that differ in their last character', () => {
    for (const length of [LONG - 1, LONG, LONG + 1]) {
      const text = 'é'.repeat(length - 1)
      expect(hashOfText(`${text}a`)).not.toBe(hashOfText(`${text}b`))
      expect(hashOfBytes(Buffer.from(`${text}a`))).not.toBe(hashOfBytes(Buffer.from(`${text}b`)))
    }
  })

  it('are equal in every process, because processes may share a store', () => {
    // xxh64 with seed 0: test vectors of the algorithm.
    expect(hashOfText('')).toBe('ef46db3751d8e999')
    expect(hashOfText('abc')).toBe('44bc2cf5ad770999')
    expect(hashOfBytes(Buffer.from('abc'))).toBe(0x44bc2cf5ad770999n.toString(36))
  })

  it('equal the hash of the whole text when they are computed in pieces', async () => {
    const { h64Raw, h64ToString } = await xxhash()
    for (const length of [LONG - 1, LONG, LONG + 1, 3 * LONG, 3 * LONG + 7]) {
      const bytes = Buffer.from(Array.from({ length }, (_, at) => (at * 31 + (at >> 7)) % 251))
      expect(hashOfBytes(bytes)).toBe(h64Raw(bytes).toString(36))
      const text = bytes.toString('latin1')
      expect(hashOfText(text)).toBe(h64ToString(text))
    }
  })

  it('differ for bodies that differ in one bit', () => {
    const body = Buffer.alloc(2 * LONG, '{"a":1}')
    const names = new Set([hashOfBytes(body)])
    for (let bit = 0; bit < 8; bit++) {
      for (const at of [0, LONG - 1, LONG, body.length - 1]) {
        const changed = Buffer.from(body)
        changed.writeUInt8((body[at] ?? 0) ^ (1 << bit), at)
        names.add(hashOfBytes(changed))
      }
    }
    expect(names.size).toBe(33)
  })
})

describe('an engine without WebAssembly', () => {
  it('is rejected, because its hashes would differ from those of other machines', async () => {
    vi.stubGlobal('WebAssembly', undefined)
    vi.resetModules()
    await expect(import('../../src/core/hash.ts')).rejects.toThrow('Governor needs WebAssembly')
    vi.unstubAllGlobals()
    vi.resetModules()
  })
})

describe('hashes of possible secrets', () => {
  it('are made with SHA-256', () => {
    expect(hashOf('abc')).toHaveLength(43)
    expect(nameOf('abc')).toMatch(/^[0-9a-f]{32}$/)
  })
})
