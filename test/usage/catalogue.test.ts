import { calcPrice } from '@pydantic/genai-prices'
import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import type { StatedBill } from '../../src/core/usage.ts'
import { messages } from '../../src/dialect/messages/index.ts'
import { type CatalogueUpstream, costOf, createCatalogue, type ModelSettings } from '../../src/usage/catalogue.ts'
import { callModel, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { completion } from '../support/provider.ts'

const OPENAI: CatalogueUpstream = { name: 'openai', origin: 'https://api.openai.com', prefix: '' }
const ANTHROPIC: CatalogueUpstream = { name: 'anthropic', origin: 'https://api.anthropic.com', prefix: '' }
const LOCAL: CatalogueUpstream = { name: 'local', origin: 'http://127.0.0.1:8000', prefix: '/v1' }
const MILLION = { input: 1_000_000, output: 1_000_000 }

async function loaded(settings: readonly ModelSettings[] = []) {
  const catalogue = createCatalogue(settings)
  await catalogue.load()
  return catalogue
}

describe('the catalogue', () => {
  it('knows prices and windows of models at the provider of the upstream', async () => {
    const catalogue = await loaded()
    expect(catalogue.modelAt('gpt-4o', OPENAI).price?.(MILLION)).toBeCloseTo(12.5)
    expect(catalogue.modelAt('gpt-4o', OPENAI).contextWindow).toBe(128_000)
    expect(catalogue.modelAt('claude-sonnet-4-5-20250929', ANTHROPIC).contextWindow).toBeGreaterThanOrEqual(200_000)
  })

  it('prices cached tokens and long prompts by their own rates', async () => {
    const catalogue = await loaded()
    const price = catalogue.modelAt('gpt-4o', OPENAI).price
    expect(price?.({ input: 1_000_000, cachedInput: 1_000_000, output: 0 })).toBeCloseTo(1.25)
    // What a provider says may not add up.
    expect(price?.({ input: 1_000_000, cachedInput: 9_000_000, output: 0 })).toBeCloseTo(1.25)
    const claude = catalogue.modelAt('claude-sonnet-4-5', ANTHROPIC).price
    expect(claude?.({ input: 100_000, output: 0 })).toBeCloseTo(0.3)
    expect(claude?.({ input: 100_000, cacheWrite: 100_000, output: 0 })).toBeCloseTo(0.375)
  })

  it('recognizes models behind a gateway by their names, with or without a prefix', async () => {
    const catalogue = await loaded()
    const direct = catalogue.modelAt('gpt-4o', OPENAI).price?.(MILLION)
    expect(catalogue.modelAt('gpt-4o', LOCAL).price?.(MILLION)).toBe(direct)
    expect(catalogue.modelAt('openai/gpt-4o', LOCAL).price?.(MILLION)).toBe(direct)
  })

  it.each(['', 'my-own-model', '__proto__', 'constructor', 'x'.repeat(10_000), 'a/b/'])(
    'reports %j as unknown',
    async (model) => {
      const catalogue = await loaded()
      expect(catalogue.modelAt(model, LOCAL).price).toBeUndefined()
      expect(catalogue.modelAt(model, LOCAL).contextWindow).toBeUndefined()
    },
  )

  it('is loaded only when a price or window is not configured', async () => {
    const settings = [{ model: 'mine-*', context_window: 1_000, price: { input: 1, output: 2 } }]
    const catalogue = createCatalogue(settings)
    expect(catalogue.modelAt('mine-1', LOCAL).price?.(MILLION)).toBe(3)
    expect(catalogue.modelAt('mine-1', LOCAL).contextWindow).toBe(1_000)
    expect(catalogue.isLoaded).toBe(false)
    expect(catalogue.modelAt('gpt-4o', OPENAI).contextWindow).toBeUndefined()
    await catalogue.load()
    expect(catalogue.isLoaded).toBe(true)
    expect(catalogue.modelAt('gpt-4o', OPENAI).contextWindow).toBe(128_000)
  })

  it('says once that its package is not there, and the costs that it would know are gaps', async () => {
    vi.doMock('@pydantic/genai-prices', () => {
      throw new Error('not there')
    })
    try {
      const failed = vi.fn()
      const catalogue = createCatalogue([], failed)
      const cost = costOf({ input: 3, output: 2 }, {}, catalogue, 'gpt-4o', OPENAI, true)
      expect(cost).toBeInstanceOf(Promise)
      expect(await cost).toEqual({ costGap: 'partial' })
      expect(await catalogue.load()).toBeInstanceOf(Error)
      expect(failed).toHaveBeenCalledTimes(1)
      expect(catalogue.isLoaded).toBe(false)
      // That is said once for all models.
      const { url, events, until } = await startBoth(({ json }, number) => ({
        body: completion(json, { text: 'hello' }, number),
      }))
      await callModel(url, START)
      await until((event) => event.kind === 'failed_open')
      await callModel(url, START)
      const kinds = events.map(({ kind }) => kind)
      expect(kinds.filter((kind) => kind === 'failed_open')).toHaveLength(1)
      expect(kinds).not.toContain('unpriced_model')
    } finally {
      vi.doUnmock('@pydantic/genai-prices')
    }
  })
})

describe('a price', () => {
  const models = ['gpt-4o', 'gpt-5-mini', 'gpt-3.5-turbo', 'claude-sonnet-4-5', 'deepseek-chat', 'MiniMax-M2', 'o3']
  const anyUsage = fc
    .tuple(fc.nat({ max: 400_000 }), fc.nat({ max: 100 }), fc.nat({ max: 100 }), fc.nat({ max: 50_000 }))
    .map(([input, read, written, output]) => {
      const cachedInput = Math.floor((input * read) / 200)
      return { input, output, cachedInput, cacheWrite: Math.floor((input * written) / 200) }
    })

  it('equals the price that the package calculates for any usage', async () => {
    const catalogue = await loaded()
    fc.assert(
      fc.property(fc.constantFrom(...models), anyUsage, (model, usage) => {
        const theirs = calcPrice(
          {
            input_tokens: usage.input,
            output_tokens: usage.output,
            cache_read_tokens: usage.cachedInput,
            cache_write_tokens: usage.cacheWrite,
          },
          model,
        )
        expect(catalogue.modelAt(model, LOCAL).price?.(usage)).toBeCloseTo(theirs?.total_price ?? -1, 9)
      }),
      { numRuns: 300 },
    )
  })
})

describe('audio', () => {
  const chat = {
    choices: [{ index: 0, message: { role: 'assistant', content: 'hello' }, finish_reason: 'stop' }],
    usage: {
      prompt_tokens: 1_000_000,
      completion_tokens: 100_000,
      prompt_tokens_details: { audio_tokens: 500_000 },
      completion_tokens_details: { audio_tokens: 50_000, text_tokens: 50_000 },
    },
  }
  const ofAudio = (tokenCount: number) => [{ modality: 'AUDIO', tokenCount }]
  const gemini = {
    candidates: [{ content: { role: 'model', parts: [{ text: 'hello' }] }, finishReason: 'STOP' }],
    usageMetadata: {
      promptTokenCount: 1_000_000,
      candidatesTokenCount: 0,
      cachedContentTokenCount: 500_000,
      promptTokensDetails: [{ modality: 'TEXT', tokenCount: 300_000 }, ...ofAudio(700_000)],
      cacheTokensDetails: ofAudio(500_000),
    },
  }
  const tooMuch = {
    ...chat,
    usage: { ...chat.usage, prompt_tokens: 500_000, prompt_tokens_details: { audio_tokens: 900_000 } },
  }
  const text = { ...chat, usage: { ...chat.usage, completion_tokens_details: {} } }
  const asked = { messages: START, contents: [{ role: 'user', parts: [{ text: 'hi' }] }] }

  it.each<[string, string, object, number]>([
    ['prices of its own', 'gpt-audio', chat, 1.25 + 16 + 0.5 + 3.2],
    ['no more than for the whole prompt', 'gpt-audio', tooMuch, 16 + 0.5 + 3.2],
    ['the price of text where it has none', 'gpt-4o-audio-preview', text, 3.5],
    ['prices of its own (Gemini)', 'gemini-2.5-flash', gemini, 0.09 + 0.2 + 0.015],
  ])('costs %s', async (_, model, body, dollars) => {
    const { url, until } = await startBoth(() => ({ body }))
    const path = model.startsWith('gemini') ? `/v1beta/models/${model}:generateContent` : '/v1/chat/completions'
    const headers = { 'content-type': 'application/json', 'x-governor-session': 'one' }
    await (await fetch(url + path, { method: 'POST', headers, body: JSON.stringify({ model, ...asked }) })).text()
    const priced = await until((event) => event.kind === 'answered' && event.usage.cost !== undefined)
    expect(priced).toMatchObject({ usage: { cost: expect.closeTo(dollars) } })
  })
})

describe('the cost of a response', () => {
  const usage = { input: 1_000_000, output: 0 }
  const claude = 'claude-sonnet-4-5'
  const cheap = { price: { input: 1, output: 1, cache_write: 2 } }

  it.each<[string, StatedBill, string, number]>([
    ['the cost that it states', { cost: 0.5 }, 'gpt-4o', 0.5],
    ['the listed price, where it states a cost of 0', { cost: 0 }, 'gpt-4o', 2.5],
    ['0, where it states that and no price is known', { cost: 0 }, 'my-own-model', 0],
    ['the price of the model that it names', { model: 'gpt-4o-mini' }, 'gpt-4o', 0.15],
    ['the price of the model that was asked, where no other is known', { model: 'unheard-of' }, 'gpt-4o', 2.5],
    ['the configured price, whatever the model calls itself', { model: 'gpt-4o' }, 'cheap', 1],
    ['the configured price of the model that it names', { model: 'cheap' }, 'gpt-4o', 1],
    ['twice the price of the tier priority', { tier: 'priority' }, 'gpt-4o', 5],
    ['half the price of the tier flex', { tier: 'flex' }, 'gpt-4o', 1.25],
    ['the price of any other tier', { tier: 'default' }, 'gpt-4o', 2.5],
    ['six times the price of the speed fast', { speed: 'fast' }, 'claude-opus-4-6', 30],
    ['a tenth more in a region', { region: 'us' }, 'claude-opus-4-6', 5.5],
    ['no more in all regions', { region: 'global' }, 'claude-opus-4-6', 5],
    ['a cent more for each search of the web', { searches: 3, tier: 'flex' }, 'gpt-5', 0.625 + 0.03],
    ['the configured price, whatever was searched', { searches: 3 }, 'gpt-5-mini', 1],
  ])('is %s', async (_, bill, model, dollars) => {
    const catalogue = await loaded(['cheap', 'gpt-5-mini'].map((name) => ({ model: name, ...cheap })))
    const upstream = model.startsWith('claude') ? ANTHROPIC : OPENAI
    expect(await costOf(usage, bill, catalogue, model, upstream, false)).toEqual({ cost: expect.closeTo(dollars) })
  })

  it.each([
    [claude, 6],
    // The tiers of its price are asked of the package.
    ['claude-sonnet-4-6', 6],
    // The catalogue has no price of them there.
    ['global.anthropic.claude-haiku-4-5-20251001-v1:0', 2],
    ['cheap', 2],
  ])('holds the price of tokens of %s that are cached for an hour', async (model, dollars) => {
    const catalogue = await loaded([{ model: 'cheap', ...cheap }])
    const upstream = model.startsWith('global') ? { ...LOCAL, name: 'aws' } : ANTHROPIC
    const written = { input: 100_000, output: 0, cacheWrite: 100_000, hourWrite: 100_000 }
    expect(catalogue.modelAt(model, upstream).price?.(written)).toBeCloseTo(dollars / 10)
  })

  it('has the tokens of an advisor at the price of its model', async () => {
    const catalogue = await loaded()
    const step = (type: string, model: string | null, tokens: number) => ({
      ...{ type, model, input_tokens: tokens, output_tokens: tokens, cache_read_input_tokens: 0 },
    })
    const iterations = [
      step('message', null, 100_000),
      step('advisor_message', 'claude-opus-4-6', 100_000),
      step('message', null, 50_000),
    ]
    const own = { input_tokens: 150_000, output_tokens: 150_000, iterations }
    const body = Buffer.from(JSON.stringify({ id: 'msg_1', model: 'claude-haiku-4-5', usage: own }))
    const stated = messages.metadata({ head: body, tail: body, whole: body, streams: false, withCalls: false })
    expect(stated.usage).toMatchObject({ input: 250_000, output: 250_000 })
    const { usage = MILLION, bill = {} } = stated
    const cost = await costOf(usage, bill, catalogue, 'claude-haiku-4-5', ANTHROPIC, false)
    // 0.15 × (1 + 5) of the one that answers, and 0.1 × (5 + 25) of its advisor.
    expect(cost).toEqual({ cost: expect.closeTo(0.9 + 3) })
  })

  it('that a provider states reaches a limit, also where no price is known', async () => {
    const { url, until } = await startBoth(
      ({ json }, number) => ({
        body: {
          ...completion(json, { calls: [{ name: 'search', arguments: {} }] }, number),
          usage: { prompt_tokens: 1, completion_tokens: 1, cost: 0.6 },
        },
      }),
      { budget: { run: { max_cost_usd: 1 } } },
    )
    const sent: object[] = [...START]
    for (const number of [1, 2]) {
      const step = await callModel(url, sent as never, { headers: { 'x-governor-session': 's' } })
      expect(step.headers.get('x-governor-verdict')).not.toBe('stop')
      await until((event) => event.kind === 'answered' && event.iteration === number)
      sent.push(
        {
          role: 'assistant',
          content: null,
          tool_calls: [{ id: `c${number}`, function: { name: 'search', arguments: '{}' } }],
        },
        { role: 'tool', tool_call_id: `c${number}`, content: `found ${number}` },
      )
    }
    const step = await callModel(url, sent as never, { headers: { 'x-governor-session': 's' } })
    expect(step.governor).toMatchObject({ terminal_reason: 'max_cost' })
  })
})

describe('configured prices and windows', () => {
  it('come before the catalogue, and the first match with a value counts', async () => {
    const catalogue = await loaded([
      { model: 'gpt-4o', upstream: 'local', context_window: 32_000 },
      { model: 'gpt-*', price: { input: 1, output: 1, cached_input: 0.5, cache_write: 2 } },
      { model: 'gpt-4o', price: { input: 9, output: 9 } },
    ])
    expect(catalogue.modelAt('gpt-4o', LOCAL).contextWindow).toBe(32_000)
    expect(catalogue.modelAt('gpt-4o', OPENAI).contextWindow).toBe(128_000)
    const usage = { input: 1_000_000, cachedInput: 200_000, cacheWrite: 100_000, output: 1_000_000 }
    expect(catalogue.modelAt('gpt-4o', OPENAI).price?.(usage)).toBeCloseTo(0.7 + 0.1 + 0.2 + 1)
  })

  it('may give a model the price 0', async () => {
    const catalogue = await loaded([{ model: '*', upstream: 'local', price: { input: 0, output: 0 } }])
    expect(catalogue.modelAt('qwen3', LOCAL).price?.(MILLION)).toBe(0)
  })
})
