import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { responses } from '../../../src/dialect/responses/index.ts'
import { applyEdits, type Edit } from '../../../src/json/edit.ts'

interface Tool {
  readonly type: string
  readonly name: string
  readonly tools?: readonly Tool[]
}

/** A tool, or a namespace of tools that may hold further namespaces. */
const tool: fc.Arbitrary<Tool> = fc.letrec<{ tool: Tool }>((tie) => ({
  tool: fc.oneof(
    { maxDepth: 2 },
    fc.record({
      type: fc.constantFrom('function', 'custom'),
      name: fc.constantFrom('exec', 'wait', 'js', 'read'),
    }),
    fc.record({
      type: fc.constant('namespace'),
      name: fc.constantFrom('functions', 'mcp__repl'),
      tools: fc.array(tie('tool'), { minLength: 1, maxLength: 3 }),
    }),
  ),
})).tool

const tools = fc.array(tool, { minLength: 1, maxLength: 3 })

/** Where clients put their tools: a field, items of the input, or both. */
const body = fc
  .record({
    field: fc.option(fc.array(tool, { maxLength: 3 }), { nil: undefined }),
    items: fc.array(tools, { maxLength: 2 }),
    isFirst: fc.boolean(),
  })
  .map(({ field, items, isFirst }) => {
    const offers = items.map((list) => ({ type: 'additional_tools', role: 'developer', tools: list }))
    const system = { type: 'message', role: 'developer', content: 'You are an agent.' }
    const input = isFirst ? [...offers, system] : [system, ...offers]
    return {
      model: 'm',
      store: false,
      ...(field ? { tools: field } : {}),
      input: [...input, { role: 'user', content: 'Go.' }],
    }
  })

type Body = {
  readonly tools?: readonly Tool[]
  readonly tool_choice?: unknown
  readonly input: readonly (Partial<Tool> & object)[]
}

const leaves = (list: readonly Tool[]): string[] =>
  list.flatMap((one) => (one.type === 'namespace' ? leaves(one.tools ?? []) : [one.name]))

const offered = ({ tools: field = [], input }: Body) => [
  ...leaves(field),
  ...input.flatMap((item) => leaves(item.tools ?? [])),
]

function edited(of: Body, edit: (request: NonNullable<ReturnType<typeof responses.read>>) => readonly Edit[]): Body {
  const bytes = Buffer.from(JSON.stringify(of))
  const request = responses.read({ path: '', body: bytes })
  if (!request) throw new Error('not a Responses request')
  return JSON.parse(applyEdits(bytes, edit(request)).toString()) as Body
}

const KEPT: readonly Edit[] = [{ start: 0, end: 0, text: ' ' }]

describe('tools in the input or in the field of a Responses request', () => {
  it('are offered, wherever they stand and however they are nested', () => {
    fc.assert(
      fc.property(body, (one) => {
        const request = responses.read({ path: '', body: Buffer.from(JSON.stringify(one)) })
        expect(request?.conversation.offersTools).toBe(offered(one).length > 0)
        const forced = responses.read({
          path: '',
          body: Buffer.from(JSON.stringify({ ...one, tool_choice: 'required' })),
        })
        expect(forced?.forcedTools().names).toEqual(offered(one))
      }),
    )
  })

  it('are dropped by name alone, except where none would be left', () => {
    fc.assert(
      fc.property(body, fc.subarray(['exec', 'wait', 'js', 'read']), (one, dropped) => {
        const after = edited(one, (request) => request.dropTools((name) => dropped.includes(name), KEPT))
        const left = offered(one).filter((name) => !dropped.includes(name))
        expect(offered(after)).toEqual(left.length === 0 ? offered(one) : left)
        expect(JSON.stringify(after)).not.toMatch(/"namespace","name":"\w+","tools":\[\]/)
      }),
    )
  })

  it('are gone after a ban of tools, and stay with a choice of none', () => {
    fc.assert(
      fc.property(body, (one) => {
        const without = edited(one, (request) => request.banTools('no_tools'))
        expect(without).toEqual({
          ...one,
          tools: undefined,
          input: one.input.filter((item) => !('tools' in item)),
        })
        expect(edited(one, (request) => request.banTools('choice_none'))).toEqual({
          ...one,
          tool_choice: 'none',
        })
      }),
    )
  })

  it('are announced a budget in a message after the system messages and in no field, also where tools are banned', () => {
    fc.assert(
      fc.property(body, (one) => {
        if (!one.input.some((item) => 'tools' in item)) return
        const said = { role: 'developer', content: 'Pace yourself.' }
        const announced = edited(one, (request) => request.announce(said.content))
        expect(announced).toEqual({
          ...one,
          input: [...one.input.slice(0, -1), said, ...one.input.slice(-1)],
        })
        const banned = edited(one, (request) => [...request.announce(said.content), ...request.banTools('no_tools')])
        expect(banned.input.filter((item) => !('tools' in item))).toHaveLength(banned.input.length)
        expect(banned.input.at(-2)).toEqual(said)
      }),
    )
  })
})
