import { describe, expect, it } from 'vitest'
import { dictionaryAt } from '../../src/overflow/literal.ts'

describe('a dictionary as Python prints it', () => {
  it('is read with its names, numbers and texts', () => {
    const text = "Error: {'code': 400, 'param': None, 'is': True, 'texts': ('it''s', \"a\\n\")} - end"
    const broken = dictionaryAt(text, text.indexOf('{'))
    expect(broken).toBeUndefined()
    const whole = text.replace("'it''s'", "'it\\'s'")
    const found = dictionaryAt(whole, whole.indexOf('{'))
    expect(found?.value).toEqual({ code: 400, param: null, is: true, texts: ["it's", 'a\n'] })
    expect(whole.slice(found?.end)).toBe(' - end')
  })

  it.each(['constructor', 'toString', '__proto__'])('holds no %s, which every object has', (name) => {
    expect(dictionaryAt(`{'code': ${name}}`, 0)).toBeUndefined()
  })
})
