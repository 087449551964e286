/** npm installs an older version in silence where a newer one asks for a newer Node: what is tested must be what is meant. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

interface Manifest {
  readonly name: string
  readonly version: string
  readonly devDependencies: Readonly<Record<string, string>>
}

const manifestIn = (folder: string) => JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest

const installed = (name: string) => {
  const found = manifestIn(join('node_modules', name))
  return `${found.name}@${found.version}`
}

const { devDependencies } = manifestIn('.')

/** The beginning of the version that each package must have. */
const VERSIONS = {
  openai: 'openai@6.',
  'openai-7': 'openai@7.',
  ai: 'ai@6.',
  'ai-7': 'ai@7.',
  '@ai-sdk/openai': '@ai-sdk/openai@3.',
  '@ai-sdk/openai-4': '@ai-sdk/openai@4.',
  '@ai-sdk/anthropic': '@ai-sdk/anthropic@3.',
  '@ai-sdk/anthropic-4': '@ai-sdk/anthropic@4.',
  '@ai-sdk/openai-compatible': '@ai-sdk/openai-compatible@2.',
  '@ai-sdk/openai-compatible-3': '@ai-sdk/openai-compatible@3.',
  '@openai/agents': '@openai/agents@0.14.',
  '@openai/agents-0.20': '@openai/agents@0.20.',
  '@anthropic-ai/sdk': '@anthropic-ai/sdk@1.14.',
  '@anthropic-ai/vertex-sdk': '@anthropic-ai/vertex-sdk@1.1.',
  langchain: 'langchain@1.5.',
  '@langchain/core': '@langchain/core@1.4.',
  '@langchain/openai': '@langchain/openai@1.6.',
  '@langchain/anthropic': '@langchain/anthropic@1.5.',
  '@langchain/langgraph': '@langchain/langgraph@1.7.',
} as const

describe('the packages of clients and frameworks', () => {
  it.each(Object.entries(VERSIONS))('%s is %s in the version that package.json names exactly', (name, wanted) => {
    const pinned = devDependencies[name]?.replace(/^npm:.*@/, '')
    expect(pinned).toMatch(/^\d+\.\d+\.\d+$/)
    expect(installed(name)).toMatch(new RegExp(`@${pinned}$`))
    expect(installed(name).startsWith(wanted)).toBe(true)
  })

  it('use the newest client of OpenAI where they depend on it', () => {
    const folders = ['@openai/agents-0.20/node_modules/openai', '@langchain/openai/node_modules/openai']
    expect(folders.map((folder) => installed(folder).split('.')[0])).toEqual(['openai@7', 'openai@7'])
  })
})
