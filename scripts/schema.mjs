// Writes what is made from src/config: config/schema.json, config/governor.yaml and the configuration table in README.md.
import { readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import './build.mjs'

const { commentedFile, configurationTable, jsonSchema } = await import('../dist/config/documents.js')
const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const readme = join(root, 'README.md')
writeFileSync(join(root, 'config', 'schema.json'), `${JSON.stringify(jsonSchema(), null, 2)}\n`)
writeFileSync(join(root, 'config', 'governor.yaml'), commentedFile())
const text = readFileSync(readme, 'utf8').replace(/^\| key \| default \|.*\n(?:\|.*\n)+/m, () =>
  configurationTable(),
)
writeFileSync(readme, text)
