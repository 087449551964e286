// Writes what is made from src/config: config/schema.json, config/governor.yaml and the configuration table in README.md.
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { build } from 'esbuild'

const root = join(import.meta.dirname, '..')
const readme = join(root, 'README.md')
// Node 20 runs no TypeScript.
const outfile = join(root, 'node_modules', '.documents.mjs')
const entryPoints = [join(import.meta.dirname, 'documents.ts')]
await build({ entryPoints, outfile, bundle: true, format: 'esm', platform: 'node', packages: 'external' })
const { commentedFile, configurationTable, jsonSchema } = await import(pathToFileURL(outfile).href)
rmSync(outfile)

writeFileSync(join(root, 'config', 'schema.json'), `${JSON.stringify(jsonSchema(), null, 2)}\n`)
writeFileSync(join(root, 'config', 'governor.yaml'), commentedFile())
const text = readFileSync(readme, 'utf8').replace(/^\| key \| default \|.*\n(?:\|.*\n)+/m, () =>
  configurationTable(),
)
writeFileSync(readme, text)
