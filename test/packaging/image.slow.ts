/** The image, made by the commands of its Dockerfile, with packages that npm installs as they say. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { buildImage, runShell, startImage } from '../support/image.ts'

describe('the image', () => {
  it('is made by the commands of its Dockerfile, holds no package but its own, and runs without writing a file', async () => {
    const root = mkdtempSync(join(tmpdir(), 'governor-image-'))
    onTestFinished(() => rmSync(root, { recursive: true }))
    const image = await buildImage(root, runShell)
    expect(readdirSync(image.folder)).not.toContain('node_modules')
    const files = readdirSync(image.folder, { recursive: true })
    const { address, stop } = await startImage(image)
    expect(await (await fetch(`${address}/health`)).json()).toMatchObject({ status: 'ok' })
    expect(await stop()).toBe(0)
    expect(readdirSync(image.folder, { recursive: true })).toEqual(files)
  })
})
