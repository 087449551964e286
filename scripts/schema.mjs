// Writes config/schema.json, by which editors complete and check config/governor.yaml.
import { writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import './build.mjs'

const { jsonSchema } = await import('../dist/config/json-schema.js')
const file = join(dirname(fileURLToPath(import.meta.url)), '..', 'config', 'schema.json')
writeFileSync(file, `${JSON.stringify(jsonSchema(), null, 2)}\n`)
