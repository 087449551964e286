import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { skipValue } from '../../src/json/scan.ts'
import { Segments } from '../../src/proxy/kept-bytes.ts'
import { KnownValues } from '../../src/proxy/known-values.ts'

/** A list of tools, so many bytes long at least, and something after it. */
const toolsOf = (name: string, bytes: number) =>
  Buffer.from(`${JSON.stringify([{ name, description: '"[]{}'.repeat(bytes / 5) }])} ,"x":1}`)

function takeIn(values: KnownValues, owner: string, key: string, json: Buffer, start = 0) {
  const known = values.find(owner, key, json, start)
  return known ?? values.add(owner, key, json, start, skipValue(json, start))
}

describe('values that are known', () => {
  it('end where they end, however many there are, with one checksum for the same bytes', () => {
    const value = fc.record({
      owner: fc.constantFrom('me', 'you'),
      key: fc.constantFrom('tools', 'system'),
      name: fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f'),
      bytes: fc.constantFrom(10, 1100, 1200, 5000),
      lead: fc.nat({ max: 5 }),
    })
    fc.assert(
      fc.property(fc.array(value, { maxLength: 40 }), (all) => {
        const values = new KnownValues(new Segments(64), 65_536)
        const checksums = new Map<string, number>()
        for (const { owner, key, name, bytes, lead } of all) {
          const text = toolsOf(name, bytes)
          const json = Buffer.concat([Buffer.alloc(lead, ' '), text])
          const found = takeIn(values, owner, key, json, lead)
          if (bytes === 10) {
            expect(found).toBeUndefined()
            continue
          }
          const end = skipValue(json, lead)
          const checksum = checksums.get(`${name}${bytes}`) ?? found?.checksum ?? -1
          checksums.set(`${name}${bytes}`, checksum)
          expect(found).toEqual({ start: lead, end, checksum })
        }
        expect(new Set(checksums.values()).size).toBe(checksums.size)
      }),
      { numRuns: 100 },
    )
  })

  it('are not kept under keys of any length, which would take memory without a bound', () => {
    const values = new KnownValues(new Segments(64), 65_536)
    const json = toolsOf('a', 2000)
    expect(takeIn(values, 'me', 'k'.repeat(64), json)).toBeDefined()
    expect(takeIn(values, 'me', 'k'.repeat(65), json)).toBeUndefined()
    expect(values.find('me', 'k'.repeat(65), json, 0)).toBeUndefined()
  })

  it('are known to their owner under their key alone', () => {
    const values = new KnownValues(new Segments(64), 65_536)
    const json = toolsOf('a', 2000)
    takeIn(values, 'me', 'tools', json)
    expect(values.find('me', 'tools', json, 0)).toBeDefined()
    expect(values.find('you', 'tools', json, 0)).toBeUndefined()
    expect(values.find('me', 'system', json, 0)).toBeUndefined()
    expect(values.find('me', 'tools', json.subarray(0, 1500), 0)).toBeUndefined()
  })

  it('take no more memory than they may', () => {
    const memory = new Segments(64)
    const values = new KnownValues(memory, 65_536)
    for (let at = 0; at < 400; at++) {
      takeIn(values, `owner ${at % 90}`, 'tools', toolsOf(`tool ${at}`, 1100 + 17 * at))
    }
    // Slabs are of 64 segments each.
    expect(memory.take()).toBeLessThan(65_536 / 64 + 64)
  })
})
