import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  appendElement,
  appendParagraph,
  applyEdits,
  type Edit,
  prependElement,
  removeMembers,
  setMember,
} from '../../src/json/edit.ts'
import { members, root } from '../../src/json/scan.ts'
import { arrayText, jsonText, objectText, stringText } from './json-text.ts'

const RUNS = { numRuns: 200 }

function edited(text: string, make: (json: Buffer) => readonly Edit[]): string {
  const json = Buffer.from(text)
  return applyEdits(json, make(json)).toString('utf8')
}

describe('edits', () => {
  it('edits change no byte outside of their places', () => {
    const places = fc
      .tuple(
        fc.uint8Array({ minLength: 1, maxLength: 60 }),
        fc.array(fc.tuple(fc.nat(), fc.string()), { maxLength: 6 }),
      )
      .map(([bytes, cuts]) => {
        const at = cuts.map(([cut]) => cut % (bytes.length + 1)).sort((a, b) => a - b)
        // Every second gap between two cuts is replaced, so that no two places overlap.
        const edits = at.flatMap((start, index): Edit[] => {
          const end = at[index + 1]
          const text = cuts[index]?.[1] ?? ''
          return index % 2 === 0 && end !== undefined ? [{ start, end, text }] : []
        })
        return { bytes: Buffer.from(bytes), edits }
      })
    fc.assert(
      fc.property(places, fc.boolean(), ({ bytes, edits }, isReversed) => {
        const result = applyEdits(bytes, isReversed ? edits.toReversed() : edits)
        let kept = 0
        let at = 0
        const sameOrder = isReversed ? edits.toReversed() : edits
        const ordered = sameOrder.toSorted((a, b) => a.start - b.start || a.end - b.end)
        for (const { start, end, text } of ordered) {
          expect(result.subarray(at, at + start - kept)).toEqual(bytes.subarray(kept, start))
          at += start - kept
          const put = Buffer.from(text)
          expect(result.subarray(at, at + put.length)).toEqual(put)
          at += put.length
          kept = end
        }
        expect(result.subarray(at)).toEqual(bytes.subarray(kept))
      }),
      RUNS,
    )
  })

  it('edits at one place apply in the order of the list, insertions before a replacement', () => {
    const edits = [
      { start: 1, end: 3, text: 'X' },
      { start: 1, end: 1, text: '1' },
      { start: 1, end: 1, text: '2' },
    ]
    expect(applyEdits(Buffer.from('abcd'), edits).toString()).toBe('a12Xd')
  })

  it('an empty list of edits changes no byte', () => {
    fc.assert(
      fc.property(jsonText, (text) => {
        expect(edited(text, () => [])).toBe(text)
      }),
      RUNS,
    )
  })
})

describe('setMember', () => {
  it('sets a key of any object as an assignment does', () => {
    fc.assert(
      fc.property(objectText, fc.constantFrom('a', 'b', '', 'new', '"\n'), jsonText, (text, key, value) => {
        const result = edited(text, (json) => {
          const object = root(json)
          return [setMember(object, members(json, object), key, value)]
        })
        expect(JSON.parse(result)).toEqual({ ...JSON.parse(text), [key]: JSON.parse(value) })
      }),
      RUNS,
    )
  })

  it('changes only the value that it sets', () => {
    const text = '{ "n" : 9007199254740993 , "tool_choice":"auto", "z":1.0}'
    const result = edited(text, (json) => {
      const object = root(json)
      return [setMember(object, members(json, object), 'tool_choice', '"none"')]
    })
    expect(result).toBe('{ "n" : 9007199254740993 , "tool_choice":"none", "z":1.0}')
  })
})

describe('removeMembers', () => {
  it('removeMembers removes any keys from any object and keeps the bytes of the others', () => {
    const wanted = fc.tuple(objectText, fc.array(fc.nat({ max: 5 })), fc.boolean())
    fc.assert(
      fc.property(wanted, ([text, picks, all]) => {
        const keys = Object.keys(JSON.parse(text))
        const gone = new Set(all ? keys : picks.flatMap((pick) => keys[pick] ?? []))
        const json = Buffer.from(text)
        const before = members(json, root(json))
        const result = applyEdits(json, removeMembers(before, gone))
        const kept = Object.entries(JSON.parse(text)).filter(([key]) => !gone.has(key))
        expect(JSON.parse(result.toString('utf8'))).toEqual(Object.fromEntries(kept))
        const pieces = (from: Buffer) =>
          members(from, root(from)).map(({ start, end }) => from.toString('utf8', start, end))
        const keptPieces = before.filter(({ key }) => !gone.has(key))
        expect(pieces(result)).toEqual(keptPieces.map(({ start, end }) => json.toString('utf8', start, end)))
      }),
      RUNS,
    )
  })

  it('removeMembers removes every subset of the keys of one object', () => {
    const text = '{\n "a": 1,\n "b": [2],\n "c": "3",\n "a": 4\n}'
    for (let subset = 0; subset < 8; subset++) {
      const gone = new Set(['a', 'b', 'c'].filter((_, at) => subset & (1 << at)))
      const result = edited(text, (json) => removeMembers(members(json, root(json)), gone))
      const kept = Object.entries({ a: 4, b: [2], c: '3' }).filter(([key]) => !gone.has(key))
      expect(JSON.parse(result)).toEqual(Object.fromEntries(kept))
    }
  })
})

describe('appendElement and prependElement', () => {
  it('appendElement and prependElement put a value at either end of any array', () => {
    fc.assert(
      fc.property(arrayText, jsonText, fc.boolean(), (text, value, isLast) => {
        const put = isLast ? appendElement : prependElement
        const result = edited(text, (json) => [put(json, root(json), value)])
        const [before, one]: [unknown[], unknown] = [JSON.parse(text), JSON.parse(value)]
        expect(JSON.parse(result)).toEqual(isLast ? [...before, one] : [one, ...before])
        expect(result.length).toBeLessThanOrEqual(text.length + value.length + 1)
      }),
      RUNS,
    )
  })

  it('appendElement and prependElement work together on an array that is not empty', () => {
    const both = (json: Buffer) => [appendElement(json, root(json), '9'), prependElement(json, root(json), '0')]
    expect(edited('[ 1 ]', both)).toBe('[ 0,1,9 ]')
  })
})

describe('edits', () => {
  it('edits inside a larger replacement have no effect', () => {
    const both = (json: Buffer) => [
      appendElement(json, root(json), '9'),
      { ...root(json), text: '{}' },
      prependElement(json, root(json), '0'),
    ]
    expect(edited('[ 1 ] ', both)).toBe('{} ')
  })
})

describe('appendParagraph', () => {
  it('appendParagraph puts any text after any string, with a blank line after text that was there', () => {
    fc.assert(
      fc.property(stringText, fc.string({ unit: 'binary' }), (text, added) => {
        const result = edited(text, (json) => [appendParagraph(root(json), added)])
        const before: string = JSON.parse(text)
        expect(JSON.parse(result)).toBe(before === '' ? added : `${before}\n\n${added}`)
        expect(result.startsWith(text.slice(0, -1))).toBe(true)
      }),
      RUNS,
    )
  })
})
