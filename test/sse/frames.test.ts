import fc from 'fast-check'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { createFrameReader, dataFrame, dataOf, type Frame, terminated, withData } from '../../src/sse/frames.ts'

function read(pieces: readonly Buffer[]): Frame[] {
  const reader = createFrameReader()
  return [...pieces.flatMap((piece) => reader.push(piece)), ...reader.end()]
}

const raws = (frames: readonly Frame[]) => frames.map(({ raw }) => raw.toString('latin1'))
/** The same with all blank lines in a row as one: how many there are in a chunk depends on the cuts. */
function joined(frames: readonly Frame[]): string[] {
  const isBlank = (raw = '') => /^[\r\n]+$/.test(raw)
  const all: string[] = []
  for (const raw of raws(frames)) all.push(isBlank(raw) && isBlank(all.at(-1)) ? all.pop() + raw : raw)
  return all
}
const frame = (text: string): Frame => ({ raw: Buffer.from(text) })

const EVENTS = 'data: {"t":"grüße 😀"}\n\n: ping\n\nevent: x\ndata: a\ndata: b\nid: 7\n\n\ndata\n\ndata: [DONE]\n\n'
const STREAMS: Readonly<Record<string, string>> = {
  LF: EVENTS,
  'CR LF': EVENTS.replaceAll('\n', '\r\n'),
  CR: EVENTS.replaceAll('\n', '\r'),
  'mixed line ends': 'data: a\r\n\ndata: b\n\r\ndata: c\r\r\ndata: d\r\n\r\ndata: e\r\rdata: f\n\n',
  'a byte order mark': `\ufeff${EVENTS}`,
  'an unfinished end': `${EVENTS}data: half`,
  'a line end at its end': `${EVENTS}data: half\r`,
}

afterEach(() => {
  vi.restoreAllMocks()
})

/** Counts the bytes that are copied between buffers from now on. */
function countCopied(): () => number {
  let copied = 0
  const { copy } = Buffer.prototype
  vi.spyOn(Buffer.prototype, 'copy').mockImplementation(function (this: Buffer, ...args) {
    const count = copy.apply(this, args)
    copied += count
    return count
  })
  const concat = Buffer.concat.bind(Buffer)
  vi.spyOn(Buffer, 'concat').mockImplementation((...args) => {
    const whole = concat(...args)
    copied += whole.length
    return whole
  })
  return () => copied
}

describe('a long frame', () => {
  it('a long frame is copied a bounded number of times, however many chunks it has', () => {
    const chunk = Buffer.alloc(1_024, 'x')
    const pieces = Array<Buffer>(1_024).fill(chunk)
    const copied = countCopied()
    const frames = read([...pieces, Buffer.from('\n\n')])
    expect(frames.map(({ raw }) => raw.length)).toEqual([1_024 * 1_024 + 2])
    expect(copied()).toBeGreaterThan(0)
    expect(copied()).toBeLessThan(4 * 1_024 * 1_024)
  })
})

describe('frames of a stream', () => {
  it.each(Object.entries(STREAMS))('frames with %s are the same for every pair of cuts', (_, text) => {
    const bytes = Buffer.from(text)
    const whole = raws(read([bytes]))
    expect(whole.length).toBeGreaterThan(4)
    for (let first = 0; first <= bytes.length; first++) {
      for (let second = first; second <= bytes.length; second++) {
        const cut = read([bytes.subarray(0, first), bytes.subarray(first, second), bytes.subarray(second)])
        // Compared as text: calling a matcher many thousand times would take most of the time of this test.
        if (raws(cut).join('|') !== whole.join('|')) {
          expect({ first, second, frames: raws(cut) }).toEqual({ first, second, frames: whole })
        }
      }
    }
    expect(whole.join('')).toBe(bytes.toString('latin1'))
  })

  it('frames join to the input and do not depend on the cuts, whatever the input', () => {
    const text = fc
      .array(fc.constantFrom('\n', '\n\n', '\r', 'data: x', ':', 'é', '\ufeff', 'event: y'), { maxLength: 30 })
      .map((pieces) => pieces.join(''))
    fc.assert(
      fc.property(text, fc.array(fc.nat({ max: 80 }), { maxLength: 12 }), (input, cuts) => {
        const bytes = Buffer.from(input)
        const at = [0, ...cuts.toSorted((a, b) => a - b), bytes.length]
        const cut = read(at.map((start, index) => bytes.subarray(start, at[index + 1] ?? bytes.length)))
        expect(joined(cut)).toEqual(joined(read([bytes])))
        expect(Buffer.concat(cut.map(({ raw }) => raw))).toEqual(bytes)
      }),
      { numRuns: 300 },
    )
  })

  it.each(['\n', '\r\n', '\r'])(
    'blank lines in a row are one frame in each chunk, so that a megabyte costs little: %j',
    (line) => {
      const chunk = Buffer.from(line.repeat(1_000))
      expect(read([chunk, chunk]).length).toBeLessThanOrEqual(3)
      expect(raws(read([chunk, Buffer.from('data: a\n\n')])).at(-1)).toMatch(/^[\r\n]?data: a\n\n$/)
    },
  )

  it('frames are returned as soon as their blank line has arrived', () => {
    const reader = createFrameReader()
    expect(raws(reader.push(Buffer.from('data: a\n')))).toEqual([])
    expect(raws(reader.push(Buffer.from('\ndata: b\r\n\r')))).toEqual(['data: a\n\n'])
    expect(raws(reader.push(Buffer.from('\n')))).toEqual(['data: b\r\n\r\n'])
    expect(reader.end()).toEqual([])
  })

  it('frames that never end are returned in pieces, so that memory stays bounded', () => {
    const reader = createFrameReader()
    const piece = Buffer.alloc(1024 * 1024, 'x')
    let given = 0
    for (let at = 0; at < 20; at++) {
      given += piece.length
      const taken = reader.push(piece).reduce((sum, { raw }) => sum + raw.length, 0)
      given -= taken
      expect(given).toBeLessThanOrEqual(16 * 1024 * 1024)
    }
    expect(reader.end().reduce((sum, { raw }) => sum + raw.length, 0)).toBe(given)
  })
})

describe('the data of an event', () => {
  it.each([
    ['data: a\n\n', 'a'],
    ['data:a\n\n', 'a'],
    ['data:  a \n\n', ' a '],
    ['data: a\r\ndata: b\r\n\r\n', 'a\nb'],
    ['event: x\rdata: a\rdata:b\r\r', 'a\nb'],
    ['data\n\n', ''],
    ['data: a\ndata\n\n', 'a\n'],
    ['data: a', 'a'],
    ['\ufeffdata: a\n\n', 'a'],
    ['data: grüße 😀\n\n', 'grüße 😀'],
    [': comment\n\n', undefined],
    ['event: ping\nid: 3\n\n', undefined],
    ['database: a\n\n', undefined],
    ['\n', undefined],
  ])('the data of %j is %j', (raw, data) => {
    expect(dataOf(frame(raw))).toBe(data)
  })

  it.each([
    ['data: a\n\n', 'data: new\n\n'],
    ['event: x\r\nid: 7\r\ndata: a\r\ndata: b\r\n\r\n', 'event: x\r\nid: 7\r\ndata: new\r\n\r\n'],
    ['event: x\rdata: a\r\r', 'event: x\rdata: new\r\r'],
    ['data: a\r\n\n', 'data: new\r\n\r\n'],
    ['\ufeffdata: a\n\n', 'data: new\n\n'],
    [': note\ndata: a', ': note\ndata: new\n\n'],
    ['event: x\n\n', 'event: x\ndata: new\n\n'],
  ])('data is replaced in %j, and the other fields and the line ends stay', (raw, expected) => {
    expect(withData(frame(raw), 'new').toString()).toBe(expected)
  })

  it('the data of a written event is what was put in', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), (text) => {
        const line = JSON.stringify(text)
        expect(dataOf({ raw: dataFrame(line) })).toBe(line)
        expect(dataOf({ raw: withData(frame('event: x\ndata: a\n\n'), line) })).toBe(line)
        expect(raws(read([dataFrame(line), dataFrame(line)]))).toHaveLength(2)
      }),
      { numRuns: 100 },
    )
  })

  it('data of several lines stays whole in an event that is written or changed', () => {
    for (const data of ['a\nb', '{\n "a": 1\n}', '\n', 'a\n\nb']) {
      const written = [dataFrame(data, 'x'), withData(frame('event: x\ndata: a\n\n'), data)]
      expect(read(written).map(dataOf)).toEqual([data, data])
    }
  })

  it('another event can follow once an event is terminated', () => {
    for (const raw of ['data: a', 'data: a\n', 'data: a\r', 'data: a\n\n', 'data: a\r\n\r\n', 'data: a\r\r']) {
      const joined = [terminated(frame(raw)), dataFrame('b')]
      const data = read(joined).flatMap((one) => dataOf(one) ?? [])
      expect(data).toEqual(['a', 'b'])
      expect(joined[0]?.toString().startsWith(raw)).toBe(true)
    }
    expect(terminated(frame('data: a\r\n\r\n')).toString()).toBe('data: a\r\n\r\n')
  })
})
