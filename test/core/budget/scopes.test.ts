import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createCalendar, TIME_SCOPES } from '../../../src/core/budget/scopes.ts'

const HOUR = 3_600_000

/** Zones that set their clocks at midnight, before it, by half an hour, by a whole day, at other times, or never. */
const ZONES = [
  'UTC',
  'Europe/Berlin',
  'America/New_York',
  'Africa/Cairo',
  'America/Havana',
  'America/St_Johns',
  'America/Sao_Paulo',
  'Asia/Beirut',
  'Asia/Kathmandu',
  'Australia/Lord_Howe',
  'Pacific/Apia',
  'Pacific/Kiritimati',
]

const zone = fc.constantFrom(...ZONES)
const scope = fc.constantFrom(...TIME_SCOPES)
const instant = fc.integer({ min: Date.UTC(1995, 0), max: Date.UTC(2035, 0) })

/** The date of an instant as another formatter writes it. */
function dateOf(at: number, timeZone: string): string {
  return new Intl.DateTimeFormat('sv', { timeZone, dateStyle: 'short' }).format(at)
}

describe('periods of the calendar', () => {
  it('contain the instant that they are of, and follow each other without a gap, in any zone', () => {
    fc.assert(
      fc.property(zone, scope, instant, (name, of, at) => {
        const { start, end } = createCalendar(name).periodOf(of, at)
        expect(start).toBeLessThanOrEqual(at)
        expect(end).toBeGreaterThan(at)
        for (const inside of [start, at, end - 1])
          expect(createCalendar(name).periodOf(of, inside)).toMatchObject({ start, end })
        expect(createCalendar(name).periodOf(of, end).start).toBe(end)
        expect(createCalendar(name).periodOf(of, start - 1).end).toBe(start)
      }),
      { numRuns: 150 },
    )
  })

  it('have another name in each period, and the same one for each instant of it', () => {
    fc.assert(
      fc.property(zone, scope, instant, (name, of, at) => {
        const calendar = createCalendar(name)
        const { start, end, name: text } = calendar.periodOf(of, at)
        expect(text).toBe(`${of} ${new Date(start).toISOString()} ${name}`)
        expect(calendar.periodOf(of, end).name).not.toBe(text)
        expect(calendar.periodOf(of, end - 1).name).toBe(text)
      }),
    )
  })

  it('begin with the first instant of a date, and a week with a Monday', () => {
    fc.assert(
      fc.property(zone, instant, (name, at) => {
        const calendar = createCalendar(name)
        const day = calendar.periodOf('day', at)
        expect(dateOf(day.start - 1, name) < dateOf(day.start, name)).toBe(true)
        const week = calendar.periodOf('week', at)
        const date = new Date(`${dateOf(week.start, name)}T00:00:00Z`)
        // Where a Monday is left out, its week begins with the next day.
        expect(name === 'Pacific/Apia' ? 1 : date.getUTCDay()).toBe(1)
        expect(dateOf(calendar.periodOf('month', at).start, name).endsWith('-01')).toBe(true)
      }),
    )
  })

  it('end where the clock is set within an hour, and the next one begins there', () => {
    // Newfoundland went from 00:01 to 01:01 then.
    const set = Date.parse('2006-04-02T03:31:00Z')
    const hourOf = (at: number) => createCalendar('America/St_Johns').periodOf('hour', at)
    expect(hourOf(set - 30_000)).toMatchObject({ start: set - 60_000, end: set })
    expect(hourOf(set)).toMatchObject({ start: set, end: set + HOUR - 60_000 })
  })

  it('have 23 and 25 hours where the clock is set, and an hour is never longer than an hour', () => {
    const berlin = createCalendar('Europe/Berlin')
    const lengthOf = (date: string) => {
      const { start, end } = berlin.periodOf('day', Date.parse(date))
      return (end - start) / HOUR
    }
    expect(lengthOf('2026-03-29T12:00:00Z')).toBe(23)
    expect(lengthOf('2026-10-25T12:00:00Z')).toBe(25)
    expect(lengthOf('2026-11-27T12:00:00Z')).toBe(24)
    fc.assert(
      fc.property(zone, instant, (name, at) => {
        const { start, end } = createCalendar(name).periodOf('hour', at)
        expect(end - start).toBeLessThanOrEqual(HOUR)
      }),
    )
  })

  it('begin at one in the morning where the clock leaves midnight out', () => {
    const cairo = createCalendar('Africa/Cairo')
    const { start, end } = cairo.periodOf('day', Date.parse('2024-04-26T09:00:00Z'))
    expect(cairo.textOf(start)).toBe('2024-04-26 01:00 Africa/Cairo')
    expect(cairo.textOf(end)).toBe('2024-04-27 00:00 Africa/Cairo')
  })

  it('go on where the clock is set back past midnight', () => {
    // A minute after midnight, the clock of St. John's showed 23:01 again.
    const calendar = createCalendar('America/St_Johns')
    const day = calendar.periodOf('day', Date.parse('2010-11-07T12:00:00Z'))
    expect(calendar.textOf(day.start)).toBe('2010-11-07 00:00 America/St_Johns')
    expect((day.end - day.start) / HOUR).toBe(25)
  })

  it('are found again after a clock went back', () => {
    const calendar = createCalendar('Europe/Berlin')
    const at = Date.parse('2026-11-27T23:30:00Z')
    const { name } = calendar.periodOf('day', at)
    expect(calendar.periodOf('day', at - HOUR).name).not.toBe(name)
    expect(calendar.periodOf('day', at).name).toBe(name)
  })

  it('do not exist in a zone that does not', () => {
    expect(() => createCalendar('Mars/Olympus')).toThrow(RangeError)
  })
})
