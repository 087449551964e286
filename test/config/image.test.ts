/** The image, as far as it is made without installing packages: they come from this repository. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import nodeModule from 'node:module'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { buildImage, copiesOfDockerfile, runShell, startImage } from '../support/image.ts'

/** What of this folder Docker gets to see. */
const sent = readFileSync('.dockerignore', 'utf8')
  .split('\n')
  .flatMap((line) => (line.startsWith('!') ? [line.slice(1)] : []))

function isSent(file: string): boolean {
  return sent.some((name) => file === name || file.startsWith(`${name}/`))
}

/** Runs what a RUN says, with the packages of this repository in place of installed ones. */
async function runBuild(command: string, folder: string): Promise<void> {
  for (const part of command.split(' && ')) {
    if (part.startsWith('npm ci')) symlinkSync(resolve('node_modules'), join(folder, 'node_modules'))
    else expect(await runShell(part, folder)).not.toContain('WARNING')
  }
}

describe('the Dockerfile', () => {
  it('copies only files that exist and that .dockerignore lets through', () => {
    const sources = copiesOfDockerfile().flatMap(({ from, sources }) => (from ? [] : sources))
    expect(sources).toContain('scripts/build.mjs')
    expect(sources.filter((source) => !existsSync(source) || !isSent(source))).toEqual([])
  })

  it('has a .dockerignore that names only files that exist', () => {
    expect(sent.filter((name) => !existsSync(name))).toEqual([])
  })
})

describe('the image', () => {
  it('is built from nothing but what its Dockerfile copies, without a warning, and answers /health without writing a file', async () => {
    const root = mkdtempSync(join(tmpdir(), 'governor-image-'))
    onTestFinished(() => rmSync(root, { recursive: true }))
    const image = await buildImage(root, runBuild)
    // Node 22.1 and newer keep what they compile.
    const kept = 'enableCompileCache' in nodeModule ? ['compile-cache'] : []
    expect(readdirSync(image.folder).sort()).toEqual([...kept, 'config', 'dist', 'package.json'])
    const files = readdirSync(join(image.folder, 'dist'), { recursive: true })
    const { address, stop } = await startImage(image)
    expect(await (await fetch(`${address}/health`)).json()).toMatchObject({ status: 'ok' })
    expect(await stop()).toBe(0)
    expect(readdirSync(join(image.folder, 'dist'), { recursive: true })).toEqual(files)
    // It builds everything and runs the demo.
  }, 240_000)
})
